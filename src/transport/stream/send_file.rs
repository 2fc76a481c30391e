//! `loop.sendfile` on a stream transport.
//!
//! asyncio's code pauses reading, waits until all data is sent, and rejects writes until the file is sent. Then the
//! events of the transport's own registration drive the transfer. So no descriptor is duplicated or registered, and the
//! waiting task is woken only once.

use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

use super::state::{SendingFile, Stream};
use crate::capi::error::{Outcome, exception, take_unless_fatal};
use crate::capi::{Fatal, Raised, Ref, This};
use crate::event_loop::sock::file_transfer::{FileTransfer, Progress};
use crate::kernel::completion::{complete_with, is_done};
use crate::kernel::core::Core;
use crate::kernel::futures::new_future;

/// Sends a file through a transport, after `_make_empty_waiter` was called and its future has completed. Returns a
/// future of (number of bytes sent, exception or `None`). Returns `None` if the transport is not in that state.
#[pyfunction]
pub(crate) fn send_file<'py>(
    transport: Bound<'py, PyAny>,
    file: RawFd,
    offset: i64,
    count: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = transport.py();
    let transport = Ref::from(transport);
    match transport.with_native(|this| begin(this, FileTransfer::new(file, offset, count))) {
        Some(future) => Ok(future?.map(|future| future.bind(py))),
        None => Err(exception::<PyTypeError>("send_file() needs a stream transport")),
    }
}

fn begin(this: This<'_, Stream>, transfer: FileTransfer) -> Result<Option<Ref>, Raised> {
    let ready = !this.writing.empty_waiter.is_empty() && this.writing.is_empty();
    if !ready || this.base.life.is_lost() || this.writing.is_sending() {
        return Ok(None);
    }
    let future = new_future(this.base.core())?;
    let sending = SendingFile { transfer, future: future.clone_ref() };
    drop(this.writing.sending.replace(Some(Rc::new(sending))));
    resume(this, this.base.core())?;
    Ok(Some(future))
}

/// Sends more of the file. Called when the socket has room.
pub(super) fn resume(this: This<'_, Stream>, core: &Core) -> Result<(), Fatal> {
    let Some(sending) = this.writing.sending() else { return Ok(()) };
    if is_done(core, &sending.future)? {
        // The future was cancelled. The waiting task will call `_reset_empty_waiter`.
        return Ok(());
    }
    core.note_io();
    let progress = sending.transfer.send_more(this.descriptor());
    if !this.writing.is_sending() {
        // The transfer was ended by another thread while `sendfile` had released the GIL.
        return Ok(());
    }
    match progress {
        Progress::Blocked => this.block(),
        Progress::Again => this.block_until_next_turn(core),
        Progress::Ended(outcome) => return end(this, core, &sending, sending.transfer.result(outcome)),
    }
    Ok(())
}

/// The connection is lost. Fails the future of `_make_empty_waiter`, and ends the transfer.
pub(super) fn lost(this: This<'_, Stream>, core: &Core, reason: &Ref) -> Result<(), Fatal> {
    let mut outcome = Outcome::default();
    if let Some(waiter) = this.writing.empty_waiter.get() {
        outcome.note(core.support("fail_waiter", &[waiter.borrow()]));
    }
    if let Some(sending) = this.writing.sending() {
        let reason = (!reason.is_none()).then(|| reason.clone_ref());
        outcome.note(end(this, core, &sending, sending.transfer.lost(reason)));
    }
    outcome.finish()
}

fn end(
    this: This<'_, Stream>,
    core: &Core,
    sending: &SendingFile,
    result: Result<Ref, Raised>,
) -> Result<(), Fatal> {
    this.stop_sending();
    match result {
        Ok(result) => complete_with(core, &sending.future, &result),
        // Memory for the result has run out.
        Err(Raised) => {
            let error = take_unless_fatal()?;
            core.support("fail_waiter", &[sending.future.borrow(), error.borrow()])
        }
    }
}
