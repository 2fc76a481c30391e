//! The writing end of a pipe, a FIFO, a socket or a character device.
//!
//! An [`Endpoint`](crate::transport::base::endpoint::Endpoint): its life is described there. Unlike a
//! stream's, writes are not gathered: what the pipe takes is in it when `write` returns, as in asyncio. The
//! other end is most often a child, and a callback that writes a line to it and then blocks until the answer
//! comes would wait for ever on a line that is sent at the end of the turn.
//!
//! A pipe whose reader goes away reports an error even to one who only writes, and a socket becomes
//! readable; so both are watched for reading, which is how the end is noticed while nothing is written.

use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::capi::buffer::{Buffer, bytes_from, bytes_slice, is_scattered};
use crate::capi::error::{raise, raise_errno, raise_io, raise_message, restore, take_exception};
use crate::capi::types::Method;
use crate::capi::{Args, Fatal, Raised, Ref, Slot};
use crate::compat::transports::patchable;
use crate::event_loop::core::Core;
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::endpoint::{
    self, Endpoint, Parts, Variant, connection_lost, fatal_error, fields, force_close, kept_descriptor, lose,
    maybe_pause, maybe_resume,
};
use crate::transport::base::methods::{with, writing};
use crate::transport::base::object;
use crate::transport::base::watching::{polling, watch_or_fail, watch_or_raise};
use crate::transport::base::write_buffer::{Done, WriteBuffer, write_one};
use crate::transport::stream::methods::truth;

const WRITE_ERROR: &str = "Fatal write error on pipe transport";

/// The fields behind asyncio's base classes.
#[derive(Debug)]
pub(crate) struct WritePipe {
    endpoint: Endpoint,
    /// Where Python keeps the descriptor, if that is known.
    keeper: Slot,
    buffer: UnsafeCell<WriteBuffer>,
    /// The descriptor tells when its other end is closed.
    notices_close: bool,
    /// Was full a moment ago: still watched for writing, because one who fills a pipe will fill it again, and
    /// two changes of the registration each time cost more than one idle event at the end.
    lingers: Cell<bool>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

impl Variant for WritePipe {
    const NAME: &'static CStr = c"wakeloop._core.WritePipeTransport";
    const BASES: &'static [&'static str] = &["_FlowControlMixin", "WriteTransport"];
    const OWNER: (&'static CStr, &'static CStr) = (c"_pipe", c"_fileno");
    const ENDPOINT: usize = offset_of!(WritePipe, endpoint);
    const END_COUNTS: bool = false;

    fn kind() -> &'static AtomicPtr<ffi::PyTypeObject> {
        &TYPE
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn act(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: the source was registered with a write pipe.
        let pipe = unsafe { fields::<WritePipe>(object.as_ptr()) };
        let trouble = Readiness::ERROR | Readiness::WRITE_CLOSED | Readiness::READ_CLOSED;
        if pipe.notices_close && readiness.intersects(Readiness::READABLE | trouble) {
            return closed_by_peer(object, pipe, core);
        }
        if !pipe.buffer().is_empty() && readiness.intersects(Readiness::WRITABLE | trouble) {
            return flush(object, pipe, core);
        }
        if pipe.lingers.replace(false) {
            return watch_or_fail(object, pipe, core);
        }
        Ok(())
    }

    fn descriptor(&self) -> RawFd {
        kept_descriptor(&self.endpoint, &self.keeper)
    }

    fn interest(&self) -> Option<Interest> {
        if self.endpoint.ending.get() {
            return None;
        }
        match (self.notices_close, !self.buffer().is_empty() || self.lingers.get()) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        }
    }

    fn unsent(&self) -> usize {
        self.buffer().len()
    }

    fn drop_unsent(&self) {
        let unsent = self.buffer().take();
        drop(unsent);
    }

    fn each_slot(&self, each: &mut dyn FnMut(&Slot)) {
        each(&self.keeper);
    }

    fn describe(&self, text: &mut String) {
        let state = polling(&self.endpoint, Interest::WRITE);
        text.push_str(&format!(" {state} bufsize={}", self.buffer().len()));
    }
}

impl WritePipe {
    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; the borrow ends before Python runs")]
    fn buffer(&self) -> &mut WriteBuffer {
        // SAFETY: see the reason above.
        unsafe { &mut *self.buffer.get() }
    }
}

impl Source for WritePipe {
    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        endpoint::on_ready::<WritePipe>(object, core, readiness)
    }

    fn has_descriptor(object: &Ref) -> bool {
        endpoint::has_descriptor::<WritePipe>(object)
    }
}

/// The other end is closed: what is still pending will never be read.
fn closed_by_peer(object: &Ref, pipe: &WritePipe, core: &Core) -> Result<(), Fatal> {
    if pipe.endpoint.ending.get() {
        return Ok(());
    }
    if core.is_debug() {
        core.support("closed_by_peer", &[object.as_ptr()])?;
    }
    let mut exception = None;
    if !pipe.buffer().is_empty() {
        let raised = raise_errno(libc::EPIPE);
        exception = Some(raised.take());
    }
    force_close(object, pipe, exception);
    Ok(())
}

/// The pipe has room again.
fn flush(object: &Ref, pipe: &WritePipe, core: &Core) -> Result<(), Fatal> {
    core.note_io();
    let mut done = Done::default();
    let outcome = pipe.buffer().write(pipe.descriptor(), &mut done);
    drop(done);
    if let Err(error) = outcome {
        pipe.endpoint.count_lost();
        return fatal_error(object, pipe, raise_io(&error), WRITE_ERROR);
    }
    let endpoint = &pipe.endpoint;
    maybe_resume(object, pipe)?;
    if !pipe.buffer().is_empty() {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        maybe_pause(object, pipe).or_else(|raised| core.unraisable(raised))?;
    } else if endpoint.closing.get() && !endpoint.ending.replace(true) {
        return connection_lost::<WritePipe>(object, core);
    }
    watch_or_fail(object, pipe, core)
}

/// asyncio's assertion on what is written.
fn check_kind(data: *mut ffi::PyObject) -> Result<(), Raised> {
    // SAFETY: a borrowed argument of the running call; the GIL is held.
    unsafe {
        if ffi::PyBytes_Check(data) != 0
            || ffi::PyByteArray_Check(data) != 0
            || ffi::PyMemoryView_Check(data) != 0
        {
            return Ok(());
        }
        let py = Python::assume_attached();
        let text = Bound::from_borrowed_ptr(py, data).repr().map_err(|error| restore(py, error))?;
        raise_message(ffi::PyExc_AssertionError, &text.to_string_lossy());
    }
    Err(Raised)
}

unsafe extern "C" fn write(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    with(object, |held, pipe: &WritePipe| {
        // SAFETY: the arguments of this call.
        let data = unsafe { Args::new(values, count, names) }.one("write", "data")?;
        check_kind(data)?;
        // SAFETY: a borrowed argument, which outlives the slice.
        let (bytes, view) = unsafe {
            if ffi::PyBytes_Check(data) != 0 {
                (Some(Ref::from_borrowed(data)), None)
            } else {
                match Buffer::readable(data) {
                    Ok(view) => (None, Some(view)),
                    Err(_) if is_scattered() => return scattered(held, pipe),
                    Err(raised) => return Err(raised),
                }
            }
        };
        let content = match (&bytes, &view) {
            // SAFETY: a bytes object that is held.
            (Some(bytes), _) => unsafe { bytes_slice(bytes.as_ptr()) },
            (None, Some(view)) => view.as_slice(),
            (None, None) => return Ok(()),
        };
        if content.is_empty() {
            return Ok(());
        }
        if pipe.endpoint.conn_lost.get() > 0 || pipe.endpoint.closing.get() {
            return pipe.endpoint.write_to_lost("pipe_write_after_lost");
        }
        let written = if pipe.buffer().is_empty() { write_now(held, pipe, content)? } else { 0 };
        if written == content.len() || pipe.endpoint.conn_lost.get() > 0 {
            return Ok(());
        }
        // A mutable object's content may change as soon as we return.
        let (rest, sent) = match bytes {
            Some(bytes) => (bytes, written),
            None => (bytes_from(&content[written..])?, 0),
        };
        if !pipe.lingers.replace(true) {
            // What cannot be watched for is not kept either: nobody would send it.
            watch_or_raise(held, pipe, pipe.endpoint.core()).inspect_err(|_| pipe.lingers.set(false))?;
        }
        pipe.buffer().push(rest, sent);
        maybe_pause(held, pipe)
    })
}

/// What cannot be written as it lies in memory, with the error that says so.
#[cold]
fn scattered(object: &Ref, pipe: &WritePipe) -> Result<(), Raised> {
    let exception = take_exception();
    if pipe.endpoint.conn_lost.get() > 0 || pipe.endpoint.closing.get() {
        return pipe.endpoint.write_to_lost("pipe_write_after_lost");
    }
    if !pipe.buffer().is_empty() {
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_TypeError }, "can't concat memoryview to bytearray");
        return Err(Raised);
    }
    raise(exception);
    pipe.endpoint.count_lost();
    fatal_error(object, pipe, Raised, WRITE_ERROR).map_err(|Fatal| Raised)
}

/// How much of it the pipe took. An error ends the transport and is no error of the caller's.
fn write_now(object: &Ref, pipe: &WritePipe, content: &[u8]) -> Result<usize, Raised> {
    pipe.endpoint.core().note_io();
    match write_one(pipe.descriptor(), content) {
        Ok(count) => Ok(count),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
        Err(error) => {
            pipe.endpoint.count_lost();
            match fatal_error(object, pipe, raise_io(&error), WRITE_ERROR) {
                Ok(()) => Ok(0),
                Err(Fatal) => Err(Raised),
            }
        }
    }
}

unsafe extern "C" fn write_eof(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, pipe: &WritePipe| {
        if pipe.endpoint.closing.get() || pipe.endpoint.fd.get() < 0 {
            return Ok(());
        }
        pipe.endpoint.closing.set(true);
        if pipe.buffer().is_empty() {
            lose(held, pipe, None);
        }
        watch_or_fail(held, pipe, pipe.endpoint.core()).map_err(|Fatal| Raised)
    })
}

unsafe extern "C" fn can_write_eof(_object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    truth(true)
}

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let mut methods = writing::<WritePipe>();
    methods.extend([
        Method::Fast(
            c"write",
            write,
            c"write(data)\n\nWrite bytes. What the pipe does not take now is kept; nothing blocks.",
        ),
        Method::NoArgs(c"write_eof", write_eof, c"Close the pipe once everything pending is written."),
        Method::NoArgs(c"can_write_eof", can_write_eof, c"True: closing the pipe is its end of file."),
        Method::NoArgs(
            c"close",
            patchable!(no_args, write_eof, Close),
            c"Write what is pending, then call connection_lost(None) and close the pipe.",
        ),
    ]);
    object::make_type::<WritePipe>(py, methods)
}

/// `_make_write_pipe_transport`'s native half. The pipe was found to be one and does not block;
/// `notices_close` says that it is a pipe or a socket.
#[pyfunction]
#[pyo3(signature = (event_loop, pipe, protocol, waiter, extra, notices_close))]
pub(crate) fn make_write_pipe<'py>(
    event_loop: &Bound<'py, EventLoop>,
    pipe: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Bound<'py, PyDict>,
    notices_close: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let parts = Parts::new(pipe, protocol, waiter, extra)?;
    let keeper = Slot::new(parts.keeper(event_loop.py()));
    endpoint::make(event_loop, parts, |endpoint| WritePipe {
        endpoint,
        keeper,
        buffer: UnsafeCell::default(),
        notices_close,
        lingers: Cell::new(false),
    })
}
