//! The transport for the reading end of a pipe, a FIFO, a socket or a character device.
//!
//! As with a stream, small messages are read into the loop's buffer. After a large one, the next read goes directly
//! into a bytes object.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::fd_holder::FdHolder;
use crate::capi::buffer::{RawBytes, bytes_from};
use crate::capi::error::raise_os_error;
use crate::capi::imports::imports;
use crate::capi::methods::Method;
use crate::capi::{Fatal, Raised, Ref, Slot, This};
use crate::compat::transports::Replaced;
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::core::{Core, RECEIVE};
use crate::kernel::source::SourceKind;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::class::{make_class, native_transport};
use crate::transport::base::closing::{fatal_error, lose, watch_or_lose};
use crate::transport::base::events::EventHandler;
use crate::transport::base::methods::{abort_now, patchable, reading};
use crate::transport::base::opening::{self, Parts};
use crate::transport::base::reporting::{Caller, log_in_debug, notify, report_call};
use crate::transport::base::sizes::{LARGE, READS};
use crate::transport::base::transport::{TransportBase, TransportKind};
use crate::transport::base::watching::polling;
use crate::transport::reader_feed;

/// The size of a direct read: the default capacity of a pipe plus one byte, so that a full pipe does not fill it.
/// Shrinking a larger object costs as much as creating one.
const DIRECT: usize = 64 * 1024 + 1;
/// The size of a direct read for a larger pipe. It is below glibc's mmap threshold.
const DIRECT_MORE: usize = 120 * 1024;

/// The fields.
#[derive(Debug)]
pub(crate) struct ReadPipe {
    base: TransportBase,
    protocol: Slot,
    fd_holder: FdHolder,
    /// After a large read: the next one goes directly into a bytes object of this size.
    direct: Cell<Option<usize>>,
}

native_transport!(ReadPipe, base, protocol, |it| [it.fd_holder.slot()]);

impl TransportKind for ReadPipe {
    const NAME: &'static CStr = c"wakeloop._core.ReadPipeTransport";
    const DOC: &'static CStr = c"The transport of a pipe, socket or terminal that is only read.";
    const CLOSED: &str = " closed";
    const REPLACES: Replaced = Replaced::ReadPipe;
    const BASES: &'static [&'static str] = &["ReadTransport"];
    const DESCRIPTOR: &'static CStr = c"_fileno";
    const OWNER: &'static CStr = c"_pipe";
    const REPORT_FATAL: &'static str = "read_pipe_failed";

    fn descriptor(&self) -> RawFd {
        self.fd_holder.descriptor(&self.base)
    }

    fn interest(&self) -> Option<Interest> {
        self.base.is_reading().then_some(Interest::READ)
    }

    fn source_kind(&self) -> SourceKind {
        SourceKind::ReadPipe
    }

    fn describe(&self, text: &mut String) {
        text.push(' ');
        text.push_str(polling(&self.base, Interest::READ));
    }
}

impl EventHandler for ReadPipe {
    fn handle(this: This<'_, Self>, core: &Core, _readiness: Readiness) -> Result<(), Fatal> {
        core.note_io();
        // As in asyncio, each iteration reads once if the program may have set `max_size`.
        let reads = if this.has_no_own_attributes() { READS } else { 1 };
        for _ in 0..reads {
            if !this.base.awaits_data() || this.base.has_just_resumed(core) {
                break;
            }
            let fed = this.protocol.get().filter(reader_feed::is_fed);
            match read(this, core, fed.as_ref())? {
                Read::Fed { full: true } => {}
                Read::Fed { full: false } | Read::Empty => break,
                Read::Data { data, full } => {
                    notify(this, core, Caller::Reading, &imports().data_received, &[data.borrow()])?;
                    if !full {
                        break;
                    }
                }
                Read::Eof => return end(this, core),
                Read::Failed => return fatal_error(this, Raised, "Fatal read error on pipe transport"),
            }
        }
        Ok(())
    }
}

/// The outcome of a read.
enum Read {
    /// `full` if there was no room for more.
    Data { data: Ref, full: bool },
    /// The data was fed to the StreamReader.
    Fed { full: bool },
    /// There is no data.
    Empty,
    /// Every writer has closed its end.
    Eof,
    /// An error is set.
    Failed,
}

impl Read {
    /// The outcome for a result of 0 or -1. Called right after the read, because it reads errno.
    #[cold]
    fn nothing(count: isize) -> Read {
        if count == 0 {
            return Read::Eof;
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            // After EINTR the poller reports the pipe again.
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Read::Empty,
            _ => {
                let Raised = raise_os_error(&error);
                Read::Failed
            }
        }
    }
}

/// Reads once. If there is a protocol `fed`, the data is fed to its StreamReader.
fn read(this: This<'_, ReadPipe>, core: &Core, fed: Option<&Ref>) -> Result<Read, Fatal> {
    let fd = this.descriptor();
    let Ok(most) = this.receive_size(usize::MAX) else { return Ok(Read::Failed) };
    let (data, count, room) = if let (Some(size), None) = (this.direct.get(), fed) {
        let size = size.min(most);
        let Ok(mut bytes) = RawBytes::with_capacity(size) else { return Ok(Read::Failed) };
        // SAFETY: the object has room for `size` bytes, and no other code has a reference to it.
        let count = unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), size) };
        core.note_received(fd, count);
        if count <= 0 {
            return Ok(Read::nothing(count));
        }
        // SAFETY: `read` has written `count` bytes.
        (unsafe { bytes.finish(count as usize) }, count as usize, size)
    } else {
        let mut buffer = core.scratch.receive_buffer();
        let size = RECEIVE.min(most);
        // SAFETY: the buffer is valid for its length.
        let count = unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), size) };
        core.note_received(fd, count);
        if count <= 0 {
            return Ok(Read::nothing(count));
        }
        let (data, full) = (&buffer[..count as usize], count as usize == size);
        if let Some(protocol) = fed
            && let Some(reader) = reader_feed::reader_of(protocol)
        {
            match reader_feed::feed(&reader, core, data) {
                Ok(true) => return Ok(Read::Fed { full }),
                Ok(false) => {}
                Err(raised) => {
                    let called = (protocol, &imports().data_received);
                    report_call(this, core, Caller::Reading, called, &[], raised)?;
                    return Ok(Read::Fed { full });
                }
            }
        }
        (bytes_from(data), count as usize, size)
    };
    let size = if count < DIRECT { DIRECT } else { DIRECT_MORE };
    this.direct.set((count >= LARGE).then_some(size));
    Ok(data.map_or(Read::Failed, |data| Read::Data { data, full: count == room }))
}

/// The end of file: queues `eof_received`, and then `connection_lost`, as two callbacks.
fn end(this: This<'_, ReadPipe>, core: &Core) -> Result<(), Fatal> {
    log_in_debug(this, "closed_by_peer")?;
    core.call_native(this.object().to_owned(), eof_received);
    lose(this, None)?;
    watch_or_lose(this, core)
}

fn eof_received(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<ReadPipe>() else { return Ok(()) };
    notify(this, core, Caller::Loop, &imports().eof_received, &[])
}

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let close = [Method::no_args(
        c"close",
        patchable!(no_args, ReadPipe, abort_now::<ReadPipe>, Close),
        c"Stop reading, then call connection_lost(None) and close the pipe.",
    )];
    make_class(py, &[&reading(), &close], &[])
}

/// The native half of `_make_read_pipe_transport`. The caller has checked the pipe, and made it non-blocking.
#[pyfunction]
pub(crate) fn make_read_pipe<'py>(
    event_loop: &Bound<'py, EventLoop>,
    pipe: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let _held = event_loop.get().outside().enter();
    let parts = Parts::of_owner(pipe, protocol, waiter, Some(extra.into_any().into()), None)?;
    let fd_holder = FdHolder::of(event_loop.py(), &parts);
    let transport = opening::create(event_loop.get().core(), parts, |base| ReadPipe {
        base,
        protocol: Slot::empty(),
        fd_holder,
        direct: Cell::new(None),
    })?;
    Ok(transport.bind(event_loop.py()).clone())
}
