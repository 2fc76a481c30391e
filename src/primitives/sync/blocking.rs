//! The same operations for threads that may block: they wait without the GIL, and end for a signal.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

use super::line::{Seat, Tried};
use super::sleeper::Sleeper;
use super::wait::Wanted;
use crate::capi::error::exception;
use crate::capi::threads::{Parked, Parker, run_signal_handlers};
use crate::capi::{Borrowed, Raised, Ref, Slot};
use crate::primitives::sleep::duration;

/// The deadline of a timeout that may be `None`; `None` for one without end.
///
/// # Errors
/// TypeError if it is not a number. ValueError for NaN.
pub(super) fn deadline(timeout: Option<Borrowed<'_>>) -> Result<Option<Instant>, Raised> {
    let Some(timeout) = timeout.filter(|timeout| !timeout.is_none()) else { return Ok(None) };
    let wait: Option<Duration> = duration(timeout.to_float()?)?;
    Ok(wait.and_then(|wait| Instant::now().checked_add(wait)))
}

/// As [`deadline`], for the queue's methods.
///
/// # Errors
/// Raises ValueError for a negative timeout too, with the words of `queue.Queue`.
pub(super) fn queue_deadline(timeout: Option<Borrowed<'_>>) -> Result<Option<Instant>, Raised> {
    if let Some(timeout) = timeout.filter(|timeout| !timeout.is_none())
        && timeout.to_float()? < 0.0
    {
        return Err(
            exception::<pyo3::exceptions::PyValueError>("'timeout' must be a non-negative number").into()
        );
    }
    deadline(timeout)
}

/// Blocks until the operation succeeds, or `deadline` passes: then `None`.
///
/// # Errors
/// What a signal handler raises. Then nothing was done.
pub(super) fn block(
    py: Python<'_>,
    wanted: Wanted<'_>,
    item: &Slot,
    deadline: Option<Instant>,
) -> Result<Option<Ref>, Raised> {
    let mut seat = Seat::default();
    let result = loop {
        match wanted.attempt(py, item, &mut seat) {
            Ok(Tried::Done(result)) => break Ok(Some(result)),
            Ok(Tried::Refused) => {}
            Ok(Tried::Waits(_)) => break Err(Raised),
            Err(raised) => break Err(raised),
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            break Ok(None);
        }
        let parker = match Parker::new() {
            Ok(parker) => parker,
            Err(raised) => break Err(raised),
        };
        seat.sleeper = Some(Sleeper::Thread(parker.clone()));
        match wanted.attempt(py, item, &mut seat) {
            Ok(Tried::Done(result)) => break Ok(Some(result)),
            Ok(Tried::Waits(place)) => seat.place = Some(place),
            // It cannot be refused with a sleeper.
            Ok(Tried::Refused) => break Err(Raised),
            Err(raised) => break Err(raised),
        }
        let parked = loop {
            match parker.park(py, deadline) {
                Parked::Interrupted => match run_signal_handlers() {
                    Ok(()) => {}
                    Err(raised) => break Err(raised),
                },
                parked => break Ok(parked),
            }
        };
        let served = seat.place.is_some_and(|place| !wanted.is_waiting(place));
        match parked {
            Err(raised) => break Err(raised),
            Ok(_) if served && let Some(result) = wanted.when_served() => break Ok(Some(result)),
            // It tries for the last time, because it may have been notified meanwhile.
            Ok(_) => {}
        }
    };
    seat.sleeper = None;
    if let Some(place) = seat.place {
        wanted.leave(py, place);
    }
    result
}
