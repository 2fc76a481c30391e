//! The writing end of a pipe, a FIFO, a socket or a character device.
//!
//! An [`Endpoint`](super::endpoint::Endpoint): its life and its watching are described there. Writes are
//! gathered like a stream's: small ones leave together at the end of the turn, in one `writev`; from
//! [`AT_ONCE`] bytes on, above the high-water mark or outside a running loop they are written immediately.
//! Whoever asks for the buffer's size, closes or aborts has what was gathered written first, because
//! asyncio would have done that at once.
//!
//! A pipe whose reader goes away reports an error even to one who only writes, and a socket becomes
//! readable; so both are watched for reading, which is how the end is noticed while nothing is written.

use std::cell::{Cell, UnsafeCell};
use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::endpoint::{
    self, Endpoint, Parts, Variant, connection_lost, fatal_error, fields, force_close, lose, maybe_pause,
    maybe_resume, watch_or_fail,
};
use super::endpoint_methods::{with, writing};
use super::endpoint_type;
use super::methods::truth;
use super::write_buffer::{Done, Sent, WriteBuffer, write_one};
use crate::capi::buffer::{Buffer, bytes_from, bytes_slice};
use crate::capi::error::{raise_errno, raise_io, raise_message, restore};
use crate::capi::types::Method;
use crate::capi::{Args, Fatal, Raised, Ref};
use crate::event_loop::core::Core;
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};

/// From this many pending bytes on, a write is done at once.
const AT_ONCE: usize = 64 * 1024;
const WRITE_ERROR: &str = "Fatal write error on pipe transport";

/// The fields behind asyncio's base classes.
#[derive(Debug)]
pub(crate) struct WritePipe {
    endpoint: Endpoint,
    buffer: UnsafeCell<WriteBuffer>,
    /// The descriptor tells when its other end is closed.
    notices_close: bool,
    /// Waits for the end of the turn to be flushed.
    queued: Cell<bool>,
    room: Cell<Room>,
    /// Was full a moment ago: still watched for writing, because one who fills a pipe will fill it again, and
    /// two changes of the registration each time cost more than one idle event at the end.
    lingers: Cell<bool>,
}

/// Whether the pipe will take more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// As far as is known.
    Some,
    /// It was full a moment ago, and more was written since: most likely it is full again. The poller, which
    /// is asked in any case, will tell; trying would be one system call too many.
    Doubtful,
    /// It was full at the last write; the poller will tell when it has room.
    None,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

impl Variant for WritePipe {
    const NAME: &'static CStr = c"wakeloop._core.WritePipeTransport";
    const BASES: &'static [&'static str] = &["_FlowControlMixin", "WriteTransport"];
    const OWNER: (&'static CStr, &'static CStr) = (c"_pipe", c"_fileno");
    const ENDPOINT: usize = offset_of!(WritePipe, endpoint);

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
        if pipe.room.get() != Room::Some && readiness.intersects(Readiness::WRITABLE | trouble) {
            return flush(object, core);
        }
        if pipe.lingers.replace(false) {
            return watch_or_fail(object, pipe, core);
        }
        Ok(())
    }

    fn interest(&self) -> Option<Interest> {
        if self.endpoint.ending.get() {
            return None;
        }
        match (self.notices_close, self.room.get() != Room::Some || self.lingers.get()) {
            (true, true) => Some(Interest::BOTH),
            (true, false) => Some(Interest::READ),
            (false, true) => Some(Interest::WRITE),
            (false, false) => None,
        }
    }

    fn send_gathered(&self, object: &Ref) -> Result<(), Raised> {
        if self.room.get() == Room::None || self.buffer().is_empty() || self.endpoint.fd.get() < 0 {
            return Ok(());
        }
        match write_pending(self) {
            Ok(()) => watch_or_fail(object, self, self.endpoint.core()),
            Err(raised) => fatal_error(object, self, raised, WRITE_ERROR),
        }
        .map_err(|Fatal| Raised)
    }

    fn unsent(&self) -> usize {
        self.buffer().len()
    }

    fn drop_unsent(&self) {
        self.room.set(Room::Some);
        let unsent = self.buffer().take();
        drop(unsent);
    }

    fn describe(&self, text: &mut String) {
        let state = endpoint::polling(&self.endpoint, Interest::WRITE);
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
}

/// The other end is closed: what is still pending will never be read.
fn closed_by_peer(object: &Ref, pipe: &WritePipe, core: &Core) -> Result<(), Fatal> {
    if pipe.endpoint.ending.get() {
        return Ok(());
    }
    if core.debug.get() {
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

/// Writes as much as the pipe takes. Its error is set as a Python error.
fn write_pending(pipe: &WritePipe) -> Result<(), Raised> {
    pipe.endpoint.core().touched.set(true);
    let mut done = Done::default();
    let outcome = pipe.buffer().write(pipe.endpoint.fd.get(), &mut done);
    pipe.room.set(Room::Some);
    if matches!(outcome, Ok(Sent::Blocked)) {
        pipe.room.set(Room::None);
        pipe.lingers.set(true);
    }
    drop(done);
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => Err(raise_io(&error)),
    }
}

/// At the end of a turn, or when the pipe has room again.
fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: flushes are queued for write pipes only.
    let pipe = unsafe { fields::<WritePipe>(object.as_ptr()) };
    pipe.queued.set(false);
    let endpoint = &pipe.endpoint;
    if endpoint.ending.get() || endpoint.fd.get() < 0 || pipe.buffer().is_empty() {
        return Ok(());
    }
    if let Err(raised) = write_pending(pipe) {
        return fatal_error(object, pipe, raised, WRITE_ERROR);
    }
    maybe_resume(object, pipe)?;
    if !pipe.buffer().is_empty() {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        maybe_pause(object, pipe).or_else(|raised| core.unraisable(raised))?;
    } else if endpoint.closing.get() && !endpoint.ending.replace(true) {
        return connection_lost::<WritePipe>(object, core);
    }
    watch_or_fail(object, pipe, core)
}

/// After a push: does the pipe get it now?
fn pushed(object: &Ref, pipe: &WritePipe) -> Result<(), Raised> {
    let pending = pipe.buffer().len();
    let core = pipe.endpoint.core();
    if pipe.lingers.get() && pipe.room.get() == Room::Some && core.running.get() {
        pipe.room.set(Room::Doubtful);
    }
    if pipe.room.get() != Room::Some {
        return maybe_pause(object, pipe);
    }
    if pending < AT_ONCE && pending <= pipe.endpoint.high.get() && core.running.get() {
        if !pipe.queued.replace(true) {
            core.flush_later(object.clone_ref(), flush);
            core.wake_if_parked();
        }
        return Ok(());
    }
    pipe.send_gathered(object)?;
    maybe_pause(object, pipe)
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
                (None, Some(Buffer::readable(data)?))
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
        let bytes = match bytes {
            Some(bytes) => bytes,
            // Its content may change as soon as we return: written or copied now.
            None => match write_changeable(held, pipe, content)? {
                Some(rest) => rest,
                None => return Ok(()),
            },
        };
        pipe.buffer().push(bytes, 0);
        pushed(held, pipe)
    })
}

/// Writes what the pipe takes now; the rest as a copy.
fn write_changeable(object: &Ref, pipe: &WritePipe, content: &[u8]) -> Result<Option<Ref>, Raised> {
    let mut written = 0;
    if pipe.buffer().is_empty() && pipe.room.get() != Room::None {
        written = match write_one(pipe.endpoint.fd.get(), content) {
            Ok(count) => count,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            Err(error) => {
                return fatal_error(object, pipe, raise_io(&error), WRITE_ERROR)
                    .map(|()| None)
                    .map_err(|Fatal| Raised);
            }
        };
    }
    if written == content.len() { Ok(None) } else { bytes_from(&content[written..]).map(Some) }
}

unsafe extern "C" fn write_eof(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    with(object, |held, pipe: &WritePipe| {
        if pipe.endpoint.closing.get() || pipe.endpoint.fd.get() < 0 {
            return Ok(());
        }
        pipe.send_gathered(held)?;
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
            c"write(data)\n\nWrite bytes. Small writes of one turn leave together at its end; nothing blocks.",
        ),
        Method::NoArgs(c"write_eof", write_eof, c"Close the pipe once everything pending is written."),
        Method::NoArgs(c"can_write_eof", can_write_eof, c"True: closing the pipe is its end of file."),
        Method::NoArgs(
            c"close",
            write_eof,
            c"Write what is pending, then call connection_lost(None) and close the pipe.",
        ),
    ]);
    endpoint_type::make_type::<WritePipe>(py, methods)
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
    endpoint::make(event_loop, parts, |endpoint| WritePipe {
        endpoint,
        buffer: UnsafeCell::default(),
        notices_close,
        queued: Cell::new(false),
        room: Cell::new(Room::Some),
        lingers: Cell::new(false),
    })
}
