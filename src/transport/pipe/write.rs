//! The transport for the writing end of a pipe, a FIFO, a socket or a character device.
//!
//! As in asyncio, `write` writes at once as much as the pipe accepts. Unlike with a stream, nothing waits for the end
//! of the turn: the other end is often a child process, and a callback may write a line and then block until the child
//! answers.
//!
//! When the reader of a pipe is closed, the pipe reports an error, and a socket becomes readable. So both are watched
//! for reading, to notice the end even while nothing is written.

use std::cell::Cell;
use std::ffi::CStr;
use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::fd_holder::FdHolder;
use crate::capi::buffer::{Content, is_scattered};
use crate::capi::call::call0;
use crate::capi::error::{raise, raise_os_error, take_exception};
use crate::capi::methods::{Attribute, Method};
use crate::capi::{Arguments, Borrowed, Exception, Fatal, Raised, Slot, This};
use crate::compat::transports::Replaced;
use crate::event_loop::event_loop::EventLoop;
use crate::kernel::core::Core;
use crate::kernel::source::SourceKind;
use crate::reactor::{Interest, Readiness};
use crate::recorder::event::Kind;
use crate::transport::base::class::{make_class, native_transport};
use crate::transport::base::closing::{fatal_error, force_close, watch_or_lose, watch_or_raise};
use crate::transport::base::events::EventHandler;
use crate::transport::base::flow_control::{after_send, maybe_pause};
use crate::transport::base::methods::{close_now, patchable, shown_buffer, writing};
use crate::transport::base::opening::{self, Parts};
use crate::transport::base::reporting::log_in_debug;
use crate::transport::base::transport::{TransportBase, TransportKind};
use crate::transport::base::watching::polling;
use crate::transport::base::write_buffer::{Done, WriteBuffer, write_one};

const WRITE_FAILED: &str = "Fatal write error on pipe transport";
const WRITE_AFTER_LOST: &str = "pipe_write_after_lost";

/// The fields.
#[derive(Debug)]
pub(crate) struct WritePipe {
    base: TransportBase,
    protocol: Slot,
    fd_holder: FdHolder,
    buffer: WriteBuffer,
    /// The descriptor reports when the other end is closed.
    notices_close: bool,
    /// The pipe was full, and stays registered for writing until the first event with nothing to write. A program that
    /// fills a pipe will often fill it again, and one unnecessary event costs less than two changes of the registration
    /// each time.
    lingers: Cell<bool>,
}

native_transport!(WritePipe, base, protocol, |it| [it.fd_holder.slot()]);

impl TransportKind for WritePipe {
    const NAME: &'static CStr = c"wakeloop._core.WritePipeTransport";
    const DOC: &'static CStr = c"The transport of a pipe, socket or terminal that is only written.";
    const CLOSED: &str = " closed";
    const REPLACES: Replaced = Replaced::WritePipe;
    const MAX_SIZE: Option<i64> = None;
    const BASES: &'static [&'static str] = &["_FlowControlMixin", "WriteTransport"];
    const DESCRIPTOR: &'static CStr = c"_fileno";
    const OWNER: &'static CStr = c"_pipe";
    const END_COUNTS: bool = false;

    fn descriptor(&self) -> RawFd {
        self.fd_holder.descriptor(&self.base)
    }

    fn interest(&self) -> Option<Interest> {
        if self.base.life.is_lost() {
            return None;
        }
        Interest::of(self.notices_close, !self.buffer.is_empty() || self.lingers.get())
    }

    fn source_kind(&self) -> SourceKind {
        SourceKind::WritePipe
    }

    fn unsent(&self) -> usize {
        self.buffer.len()
    }

    fn drop_unsent(&self) {
        drop(self.buffer.take());
    }

    fn describe(&self, text: &mut String) {
        let state = polling(&self.base, Interest::WRITE);
        text.push(' ');
        text.push_str(state);
        // As in asyncio, the repr has no size once the loop is closed.
        if !self.base.core().is_closed() {
            text.push_str(&format!(" bufsize={}", self.unsent()));
        }
    }
}

impl WritePipe {
    /// Are new writes dropped?
    fn is_lost(&self) -> bool {
        self.base.life.is_closing() || self.base.lost_writes() > 0
    }
}

impl EventHandler for WritePipe {
    fn handle(this: This<'_, Self>, core: &Core, readiness: Readiness) -> Result<(), Fatal> {
        let trouble = Readiness::ERROR | Readiness::WRITE_CLOSED | Readiness::READ_CLOSED;
        if this.notices_close && readiness.intersects(Readiness::READABLE | trouble) {
            return closed_by_peer(this);
        }
        if !this.buffer.is_empty() && readiness.intersects(Readiness::WRITABLE | trouble) {
            return flush(this, core);
        }
        if this.lingers.replace(false) {
            return watch_or_lose(this, core);
        }
        Ok(())
    }
}

/// The other end is closed, so pending data will never be read.
fn closed_by_peer(this: This<'_, WritePipe>) -> Result<(), Fatal> {
    if this.base.life.is_lost() {
        return Ok(());
    }
    log_in_debug(this, "closed_by_peer")?;
    // As in asyncio, the error has neither a number nor a text.
    let broken = || call0(&Exception::BrokenPipeError.class()).unwrap_or_else(Raised::take);
    force_close(this, (!this.buffer.is_empty()).then(broken))
}

/// The pipe has room again.
fn flush(this: This<'_, WritePipe>, core: &Core) -> Result<(), Fatal> {
    core.note_io();
    let mut done = Done::default();
    core.probe.recorder.sends(Kind::Flush, this.descriptor(), || this.buffer.len());
    let outcome = this.buffer.write(this.descriptor(), &mut done);
    core.probe.recorder.sent(this.descriptor(), || this.buffer.len());
    drop(done);
    if let Err(error) = outcome {
        return failed(this, raise_os_error(&error));
    }
    // As in asyncio, a pipe resumes its protocol only once everything is written.
    if this.buffer.is_empty() { after_send(this, core) } else { watch_or_lose(this, core) }
}

/// Handles a write that has failed with the error that is set: counts it as lost, and closes the transport.
#[cold]
fn failed(this: This<'_, WritePipe>, raised: Raised) -> Result<(), Fatal> {
    this.base.count_lost_write();
    fatal_error(this, raised, WRITE_FAILED)
}

fn write(this: This<'_, WritePipe>, arguments: Arguments<'_>) -> Result<(), Raised> {
    let data = arguments.one("write", "data")?;
    let content = match Content::of(data) {
        Ok(Some(content)) => content,
        Ok(None) => return Err(refuse(data)),
        Err(_) if is_scattered() => return scattered(this),
        Err(raised) => return Err(raised),
    };
    let len = content.as_slice().len();
    if len == 0 {
        return Ok(());
    }
    this.base.core().send_others(false).map_err(|Fatal| Raised)?;
    if this.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    let written = if this.buffer.is_empty() { write_now(this, content.as_slice())? } else { 0 };
    if written == len || this.is_lost() {
        return Ok(());
    }
    let (rest, sent) = content.keep(written)?;
    if !this.lingers.replace(true) {
        // If this fails, the data is not kept, because the transport would get no event when the pipe has room.
        watch_or_raise(this, this.base.core()).inspect_err(|_| this.lingers.set(false))?;
    }
    this.buffer.push(rest, sent)?;
    maybe_pause(this)
}

/// asyncio's AssertionError for data that is not bytes-like.
#[cold]
fn refuse(data: Borrowed<'_>) -> Raised {
    match data.repr() {
        Ok(text) => Exception::AssertionError.raise(text.text().unwrap_or_default()),
        Err(raised) => raised,
    }
}

/// Handles a non-contiguous buffer, for which an error is set: fails as asyncio does.
#[cold]
fn scattered(this: This<'_, WritePipe>) -> Result<(), Raised> {
    let exception = take_exception();
    if this.is_lost() {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    if !this.buffer.is_empty() {
        return Err(Exception::TypeError.raise("can't concat memoryview to bytearray"));
    }
    Ok(failed(this, raise(exception))?)
}

/// Writes, and returns how many bytes the pipe has accepted. An error closes the transport, and is not raised to the
/// caller.
fn write_now(this: This<'_, WritePipe>, content: &[u8]) -> Result<usize, Raised> {
    let (core, fd) = (this.base.core(), this.descriptor());
    core.note_io();
    core.probe.recorder.sends(Kind::Write, fd, || content.len());
    let outcome = write_one(fd, content);
    core.probe.recorder.sent(fd, || content.len() - outcome.as_ref().unwrap_or(&0));
    outcome.or_else(|error| {
        if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
            failed(this, raise_os_error(&error))?;
        }
        Ok(0)
    })
}

const METHODS: &[Method<WritePipe>] = &[
    Method::fast(
        c"write",
        write,
        c"write(data)\n\nWrite bytes. Never blocks: data that the pipe does not accept now is written later.",
    ),
    Method::no_args(
        c"write_eof",
        close_now::<WritePipe>,
        c"Close the pipe once everything pending is written.",
    ),
    Method::no_args(
        c"can_write_eof",
        |_this: This<'_, WritePipe>| true,
        c"True. Closing the pipe signals the end of file.",
    ),
    Method::no_args(
        c"close",
        patchable!(no_args, WritePipe, close_now::<WritePipe>, Close),
        c"Write pending data, then call connection_lost(None) and close the pipe.",
    ),
];

const ATTRIBUTES: &[Attribute<WritePipe>] =
    &[Attribute::read_only(c"_buffer", |this: This<'_, WritePipe>| {
        shown_buffer(this.py(), &this.buffer, false)
    })];

pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    make_class(py, &[&writing(), METHODS], ATTRIBUTES)
}

/// The native half of `_make_write_pipe_transport`. The caller has checked the pipe, and made it non-blocking.
/// `notices_close` is true for a pipe or a socket.
#[pyfunction]
pub(crate) fn make_write_pipe<'py>(
    event_loop: &Bound<'py, EventLoop>,
    pipe: Bound<'py, PyAny>,
    protocol: Bound<'py, PyAny>,
    waiter: Option<Bound<'py, PyAny>>,
    extra: Bound<'py, PyDict>,
    notices_close: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let _held = event_loop.get().outside().enter();
    let parts = Parts::of_owner(pipe, protocol, waiter, Some(extra.into_any().into()), None)?;
    let fd_holder = FdHolder::of(event_loop.py(), &parts);
    let transport = opening::create(event_loop.get().core(), parts, |base| WritePipe {
        base,
        protocol: Slot::empty(),
        fd_holder,
        buffer: WriteBuffer::default(),
        notices_close,
        lingers: Cell::new(false),
    })?;
    Ok(transport.bind(event_loop.py()).clone())
}
