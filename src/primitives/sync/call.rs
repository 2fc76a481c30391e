//! The coroutine of an operation on a queue or an event that may have to wait.
//!
//! One that can be done at once costs no future and no turn of the loop. Otherwise the task waits for a future of its own
//! loop, and tries again when it is woken. A task whose operations can always be done yields to the loop now and then, and
//! does so before it takes or puts anything: so a task that is cancelled has neither taken nor put.

use std::cell::Cell;

use pyo3::prelude::*;

use super::line::{Seat, Tried};
use super::objects::{EventObject, QueueObject};
use super::queue::Side;
use super::sleeper::Sleeper;
use super::wait::Wanted;
use crate::bridge::budget;
use crate::capi::coroutine::{self, Step, already_awaited};
use crate::capi::methods::Method;
use crate::capi::native::native_class;
use crate::capi::pending::{AsyncCall, Pending, Stage};
use crate::capi::{Borrowed, Raised, Ref, This};
use crate::wait_queue::Place;

/// A call of a queue or an event, which is the target. The object is what is to be put.
pub(super) type SyncCall = Pending<SyncState>;

#[derive(Debug)]
pub(super) struct SyncState {
    side: Side,
    place: Cell<Option<Place>>,
}

// `make_type` builds the class, of which `create` makes every instance.
native_class!(unsafe SyncCall, freelist 64);

/// What the call of this object waits for. `side` counts for a queue only.
#[inline(always)]
fn wanted(object: &Ref, side: Side) -> Option<Wanted<'_>> {
    if let Some(queue) = object.downcast_sync::<QueueObject>() {
        return Some(Wanted::Queue(&queue.fields().queue, side));
    }
    object.downcast_sync::<EventObject>().map(|event| Wanted::Event(&event.fields().event))
}

/// A call of `object`, which is a queue or an event.
#[inline(always)]
pub(super) fn create(
    object: Borrowed<'_>,
    name: &'static str,
    side: Side,
    item: Option<Ref>,
) -> Result<Ref, Raised> {
    SyncCall::make(name, Some(object.to_owned()), item, SyncState { side, place: Cell::new(None) })
}

#[inline(always)]
fn attempt(this: This<'_, SyncCall>, wanted: Wanted<'_>) -> Result<Step, Raised> {
    let py = this.py();
    let mut seat = Seat { place: this.state.place.get(), sleeper: None };
    let mut tried = wanted.attempt(py, &this.object, &mut seat)?;
    let mut awaited = None;
    if matches!(tried, Tried::Refused) {
        let (sleeper, future) = Sleeper::task(py)?;
        seat.sleeper = Some(sleeper);
        awaited = Some(future);
        tried = wanted.attempt(py, &this.object, &mut seat)?;
    }
    match (tried, awaited) {
        (Tried::Done(result), _) => {
            this.state.place.set(None);
            this.future.clear();
            budget::spend_item(0);
            Ok(Step::Done(result))
        }
        (Tried::Waits(place), Some(future)) => {
            this.state.place.set(Some(place));
            budget::refill();
            Ok(SyncCall::wait(this, future))
        }
        // The garbage collector has taken what was to be put.
        _ => Err(already_awaited()),
    }
}

impl AsyncCall for SyncState {
    #[inline(always)]
    fn step(this: This<'_, SyncCall>, stage: Stage) -> Result<Option<Step>, Raised> {
        let Some(object) = this.target.get() else { return Err(already_awaited()) };
        let Some(wanted) = wanted(&object, this.state.side) else { return Err(already_awaited()) };
        if stage == Stage::New && budget::is_spent() {
            return Ok(Some(Step::Yield));
        }
        if let (Stage::Waiting, Some(place)) = (stage, this.state.place.get()) {
            if wanted.is_waiting(place) {
                return Ok(None);
            }
            if let Some(result) = wanted.when_served() {
                return Ok(Some(Step::Done(result)));
            }
        }
        attempt(this, wanted).map(Some)
    }

    /// Passes on what the call was notified of.
    #[inline(always)]
    fn finish(call: &SyncCall, object: Option<&Ref>) {
        if let Some(place) = call.state.place.take()
            && let Some(object) = object
            && let Some(wanted) = wanted(object, call.state.side)
        {
            wanted.leave(object.py(), place);
        }
        call.object.clear();
    }

    fn wait_kind(call: &SyncCall) -> &'static str {
        let is_event =
            call.target.get().is_some_and(|object| object.downcast_sync::<EventObject>().is_some());
        if is_event { "event" } else { "queue" }
    }
}

fn is_shared(this: This<'_, SyncCall>, run: Borrowed<'_>) -> Result<bool, Raised> {
    let run = run.to_index()?;
    let object = this.target.get();
    let wanted = object.as_ref().and_then(|object| wanted(object, this.state.side));
    Ok(wanted.is_some_and(|wanted| wanted.is_shared(run as u32)))
}

/// Makes the class. Called once, by the module's initialisation.
pub(super) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<SyncCall>(c"wakeloop._core.SyncCall")
        .methods(&[Method::one_arg(
            c"_is_shared",
            is_shared,
            c"_is_shared(run, /)\n\nWhether other threads may end the wait, as far as that can be seen. `run` is the number of a testing loop's run.",
        )])
        .build(py)
        .map(drop)
}
