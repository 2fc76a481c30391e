//! The reading end of a pipe, a FIFO, a socket or a character device.
//!
//! An [`Endpoint`](crate::transport::base::endpoint::Endpoint): its life is described there. A read goes
//! where a stream's receive goes: small ones through the loop's buffer, after a large one straight into
//! a bytes object.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::mem::offset_of;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::error::raise_io;
use crate::capi::imports::imports;
use crate::capi::types::Method;
use crate::capi::{Fatal, Raised, Ref, Slot};
use crate::compat::transports::patchable;
use crate::event_loop::core::{Core, RECEIVE};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::endpoint::{
    self, Caller, Endpoint, Parts, Variant, fatal_error, fields, kept_descriptor, lose, report, tell,
};
use crate::transport::base::methods::{abort, reading};
use crate::transport::base::object;
use crate::transport::base::watching::{polling, watch_or_fail};
use crate::transport::reader_feed;

/// Full reads per event.
const READS: usize = 4;
/// From this size on a read counts as large.
const LARGE: usize = 32 * 1024;
/// The size of a direct read: what a pipe holds, unless it was told otherwise, and one byte, so that a full pipe does not
/// fill it. What is cut from a longer object costs as much as making one.
const DIRECT: usize = 64 * 1024 + 1;
/// The same for a pipe that holds more: below glibc's mmap threshold.
const DIRECT_MORE: usize = 120 * 1024;

/// The fields behind asyncio's base class.
#[derive(Debug)]
pub(crate) struct ReadPipe {
    endpoint: Endpoint,
    /// Where Python keeps the descriptor, if that is known.
    keeper: Slot,
    /// The last read was large: the next one goes straight into a bytes object of this size.
    direct: Cell<Option<usize>>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

impl Variant for ReadPipe {
    const NAME: &'static CStr = c"wakeloop._core.ReadPipeTransport";
    const BASES: &'static [&'static str] = &["ReadTransport"];
    const OWNER: (&'static CStr, &'static CStr) = (c"_pipe", c"_fileno");
    const ENDPOINT: usize = offset_of!(ReadPipe, endpoint);
    const TELL_FATAL: &'static str = "read_pipe_failed";

    fn kind() -> &'static AtomicPtr<ffi::PyTypeObject> {
        &TYPE
    }

    fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn act(object: &Ref, core: &Core, _readiness: Readiness) -> Result<(), Fatal> {
        // SAFETY: the source was registered with a read pipe.
        let pipe = unsafe { fields::<ReadPipe>(object.as_ptr()) };
        core.note_io();
        for _ in 0..READS {
            if !pipe.endpoint.reads_now(core) || pipe.endpoint.fd.get() < 0 {
                break;
            }
            let fed = pipe.endpoint.protocol.get().filter(|protocol| reader_feed::is_fed(protocol.as_ptr()));
            let read = match &fed {
                Some(protocol) => pipe.read_for_reader(core, protocol)?,
                None => pipe.read(core),
            };
            match read {
                Read::Fed { full: true } => {}
                Read::Fed { full: false } => break,
                Read::Data { data, full } => {
                    tell(pipe, core, Caller::Reading, imports().data_received.as_ptr(), &[data.as_ptr()])?;
                    if !full {
                        break;
                    }
                }
                Read::Empty => break,
                Read::Eof => return end(object, pipe, core),
                Read::Failed => {
                    return fatal_error(object, pipe, Raised, "Fatal read error on pipe transport");
                }
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> RawFd {
        kept_descriptor(&self.endpoint, &self.keeper)
    }

    fn interest(&self) -> Option<Interest> {
        self.endpoint.is_reading().then_some(Interest::READ)
    }

    fn each_slot(&self, each: &mut dyn FnMut(&Slot)) {
        each(&self.keeper);
    }

    fn describe(&self, text: &mut String) {
        text.push(' ');
        text.push_str(polling(&self.endpoint, Interest::READ));
    }
}

/// What one read came to.
enum Read {
    /// `full` if there was no room for more.
    Data { data: Ref, full: bool },
    /// The data is in its reader already.
    Fed { full: bool },
    /// Nothing is there.
    Empty,
    /// Every writer has closed its end.
    Eof,
    /// An error is set.
    Failed,
}

impl Read {
    /// The meaning of 0 and -1. Called at once, before anything else can change errno.
    #[cold]
    fn nothing(count: isize) -> Read {
        if count == 0 {
            return Read::Eof;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            // An interrupted read is tried again: the pipe is still reported as readable.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Read::Empty,
            _ => {
                let Raised = raise_io(&error);
                Read::Failed
            }
        }
    }
}

impl Source for ReadPipe {
    #[inline(always)]
    fn on_ready(object: &Ref, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        endpoint::on_ready::<ReadPipe>(object, core, readiness)
    }

    fn has_descriptor(object: &Ref) -> bool {
        endpoint::has_descriptor::<ReadPipe>(object)
    }
}

impl ReadPipe {
    /// Reads into the loop's buffer and from there into that of an asyncio.StreamReader.
    fn read_for_reader(&self, core: &Core, protocol: &Ref) -> Result<Read, Fatal> {
        let buffer = core.receive_buffer();
        // SAFETY: the buffer is valid for its length; it is copied before anything else can run.
        let count = unsafe { libc::read(self.descriptor(), buffer.as_mut_ptr().cast(), RECEIVE) };
        if count <= 0 {
            return Ok(Read::nothing(count));
        }
        let (data, full) = (&buffer[..count as usize], count as usize == RECEIVE);
        let reader = reader_feed::reader_of(protocol);
        match reader.map_or(Ok(false), |reader| reader_feed::feed(&reader, data)) {
            Ok(true) => Ok(Read::Fed { full }),
            Ok(false) => Ok(bytes_from(data).map_or(Read::Failed, |data| Read::Data { data, full })),
            Err(raised) => {
                let name = imports().data_received.as_ptr();
                report(self, core, Caller::Reading, (protocol, name), &[], raised)?;
                Ok(Read::Fed { full })
            }
        }
    }

    fn read(&self, core: &Core) -> Read {
        let fd = self.descriptor();
        let (data, count, room) = if let Some(size) = self.direct.get() {
            let Ok(mut bytes) = RawBytes::with_capacity(size) else { return Read::Failed };
            // SAFETY: the object has room for that many bytes and is seen by nobody else.
            let count = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), size) };
            if count <= 0 {
                return Read::nothing(count);
            }
            // SAFETY: `read` has written `count` bytes.
            (unsafe { bytes.finish(count as usize) }, count as usize, size)
        } else {
            let buffer = core.receive_buffer();
            // SAFETY: the buffer is valid for its length; it is copied before anything else can run.
            let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), RECEIVE) };
            if count <= 0 {
                return Read::nothing(count);
            }
            (bytes_from(&buffer[..count as usize]), count as usize, RECEIVE)
        };
        let size = if count < DIRECT { DIRECT } else { DIRECT_MORE };
        self.direct.set((count >= LARGE).then_some(size));
        match data {
            Ok(data) => Read::Data { data, full: count == room },
            Err(Raised) => Read::Failed,
        }
    }
}

/// The end of the data: `eof_received` and then `connection_lost`, each as a step of its own.
fn end(object: &Ref, pipe: &ReadPipe, core: &Core) -> Result<(), Fatal> {
    if core.is_debug() {
        core.support("closed_by_peer", &[object.as_ptr()])?;
    }
    pipe.endpoint.closing.set(true);
    core.call_native(object.clone_ref(), eof_received);
    lose(object, pipe, None);
    watch_or_fail(object, pipe, core)
}

fn eof_received(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a read pipe.
    let pipe = unsafe { fields::<ReadPipe>(object.as_ptr()) };
    tell(pipe, core, Caller::Loop, imports().eof_received.as_ptr(), &[])
}

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let mut methods = reading::<ReadPipe>();
    methods.push(Method::NoArgs(
        c"close",
        patchable!(no_args, abort::<ReadPipe>, Close),
        c"Stop reading, then call connection_lost(None) and close the pipe.",
    ));
    object::make_type::<ReadPipe>(py, methods)
}

/// `_make_read_pipe_transport`'s native half. The pipe was found to be one and does not block.
#[pyfunction]
#[pyo3(signature = (event_loop, pipe, protocol, waiter, extra))]
pub(crate) fn make_read_pipe<'py>(
    event_loop: &Bound<'py, EventLoop>,
    pipe: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let parts = Parts::new(pipe, protocol, waiter, extra)?;
    let keeper = Slot::new(parts.keeper(event_loop.py()));
    endpoint::make(event_loop, parts, |endpoint| ReadPipe { endpoint, keeper, direct: Cell::new(None) })
}
