//! `loop.sendfile` on a stream transport.
//!
//! asyncio pauses the reading, waits until everything written is out, and refuses writes until the file is. From
//! then on the socket's edges, which the transport gets anyway, drive the transfer: no descriptor is duplicated,
//! nothing is registered, and the task that waits is woken once.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::transport::{Stream, is_stream, stream_of};
use crate::capi::error::{exception, fetch, take_unless_fatal};
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::completion::{complete_with, is_done};
use crate::event_loop::core::Core;
use crate::event_loop::futures::new_future;
use crate::event_loop::sock::file_transfer::{FileTransfer, Progress};

/// A file that is being sent, and the future of who waits for that.
#[derive(Debug)]
struct Sending {
    transfer: FileTransfer,
    future: Ref,
}

/// The transport's place for it.
#[derive(Debug, Default)]
pub(crate) struct SendingFile(UnsafeCell<Option<Rc<Sending>>>);

impl SendingFile {
    fn get(&self) -> Option<Rc<Sending>> {
        // SAFETY: GIL held, and the borrow ends here. The count is touched with the GIL only.
        unsafe { (*self.0.get()).clone() }
    }

    fn set(&self, sending: Option<Rc<Sending>>) -> Option<Rc<Sending>> {
        // SAFETY: as above; what was there is dropped by the caller.
        unsafe { std::mem::replace(&mut *self.0.get(), sending) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: as above.
        unsafe { (*self.0.get()).is_none() }
    }

    /// The future, borrowed, for the collector; null if there is none.
    pub(crate) fn future(&self) -> *mut ffi::PyObject {
        // SAFETY: as above.
        unsafe { (*self.0.get()).as_ref().map_or(std::ptr::null_mut(), |sending| sending.future.as_ptr()) }
    }

    /// Forgets the file. The socket may still be full; the next write will find that out.
    pub(crate) fn clear(&self, stream: &Stream) {
        if let Some(sending) = self.set(None) {
            stream.blocked.set(false);
            if !stream.awaits_data() {
                stream.settle();
            }
            drop(sending);
        }
    }
}

/// Sends the file behind a descriptor through a transport on which `_make_empty_waiter` was called and waited
/// for. A future of (how much was sent, the error or `None`); `None` where no sendfile was begun like that.
#[pyfunction]
pub(crate) fn send_file<'py>(
    transport: &Bound<'py, PyAny>,
    file: RawFd,
    offset: i64,
    count: Option<i64>,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    if !is_stream(transport.as_ptr()) {
        return Err(exception::<PyTypeError>("send_file() needs a stream transport"));
    }
    // SAFETY: just tested; the caller holds it.
    let stream = unsafe { stream_of(transport.as_ptr()) };
    let ready = !stream.empty_waiter.is_empty() && stream.buffer().is_empty();
    if !ready || stream.conn_lost.get() > 0 || !stream.sending.is_empty() {
        return Ok(None);
    }
    let begun = new_future(stream.event_loop.as_ptr()).and_then(|future| {
        let transfer = FileTransfer::new(file, offset, count);
        drop(stream.sending.set(Some(Rc::new(Sending { transfer, future: future.clone_ref() }))));
        go_on(stream, stream.core()).map_err(|Fatal| Raised)?;
        Ok(future)
    });
    match begun {
        Ok(future) => Ok(Some(future.bind(transport.py()).clone())),
        Err(Raised) => Err(fetch(transport.py())),
    }
}

/// The socket has room for more of the file.
pub(crate) fn go_on(stream: &Stream, core: &Core) -> Result<(), Fatal> {
    let Some(sending) = stream.sending.get() else { return Ok(()) };
    if is_done(core, &sending.future)? {
        // Cancelled; its task will clear up.
        return Ok(());
    }
    core.note_io();
    let progress = sending.transfer.go_on(stream.descriptor());
    if stream.sending.is_empty() {
        // Another thread was at it, while the GIL was given up.
        return Ok(());
    }
    match progress {
        Progress::Blocked => stream.block(),
        Progress::Again => stream.block_until_called(core),
        Progress::Ended(outcome) => return end(stream, core, &sending, sending.transfer.result(outcome)),
    }
    Ok(())
}

/// The connection is gone.
pub(crate) fn lost(stream: &Stream, core: &Core, reason: &Ref) -> Result<(), Fatal> {
    let Some(sending) = stream.sending.get() else { return Ok(()) };
    // SAFETY: comparing with the address of `None`.
    let reason = (reason.as_ptr() != unsafe { ffi::Py_None() }).then(|| reason.clone_ref());
    end(stream, core, &sending, sending.transfer.lost(reason))
}

fn end(stream: &Stream, core: &Core, sending: &Sending, result: Result<Ref, Raised>) -> Result<(), Fatal> {
    stream.sending.clear(stream);
    match result {
        Ok(result) => complete_with(core, &sending.future, &result),
        // No memory for the result.
        Err(Raised) => {
            let error = take_unless_fatal()?;
            core.support("fail_waiter", &[sending.future.as_ptr(), error.as_ptr()])
        }
    }
}
