//! The Python methods and attributes of all kinds of transports.

use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::closing::{abort, close, force_close, watch_or_lose, watch_or_raise};
use super::flow_control::maybe_pause;
use super::opening;
use super::reporting::log_in_debug;
use super::transport::TransportKind;
use super::write_buffer::WriteBuffer;
use crate::capi::error::raise_errno;
use crate::capi::fallible::tuple;
use crate::capi::imports::support;
use crate::capi::inspect::{boolean, integer};
use crate::capi::methods::{Attribute, Method};
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref, This};
use crate::transport::attributes::mark_attribute;

/// `abort()`, and `close()` of a transport that only reads.
pub(crate) fn abort_now<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    this.send_tls_writes();
    abort(this)
}

/// `close()` of a transport that writes.
pub(crate) fn close_now<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    this.send_tls_writes();
    Ok(close(this)?)
}

/// asyncio's `_force_close(exception)`.
pub(crate) fn force_close_now<T: TransportKind>(
    this: This<'_, T>,
    error: Borrowed<'_>,
) -> Result<(), Raised> {
    Ok(force_close(this, Some(error.to_owned()))?)
}

fn set_protocol<T: TransportKind>(this: This<'_, T>, arguments: Arguments<'_>) -> Result<(), Raised> {
    this.set_protocol(arguments.one("set_protocol", "protocol")?.to_owned())
}

fn get_extra_info<T: TransportKind>(
    this: This<'_, T>,
    arguments: Arguments<'_>,
) -> Result<Option<Ref>, Raised> {
    let ([name], [default]) = arguments.bind("get_extra_info", ["name"], ["default"])?;
    let py = this.py();
    let found = T::extra_info(this, py, &name.bind(py))?;
    Ok(found.map(Ref::from).or_else(|| default.map(Borrowed::to_owned)))
}

fn pause_reading<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let base = this.base();
    if !base.is_reading() {
        return Ok(());
    }
    base.paused.set(true);
    T::reading_paused(this);
    watch_or_lose(this, base.core())?;
    Ok(log_in_debug(this, "paused_reading")?)
}

fn resume_reading<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let base = this.base();
    if base.life.is_closing() || !base.paused.get() {
        return Ok(());
    }
    base.paused.set(false);
    base.core().check_usable()?;
    if this.descriptor() != base.fd.get() {
        check_open(base.fd.get())?;
    }
    opening::take_back(this, base.core())?;
    base.resume_next_turn(base.core());
    T::reading_resumed(this, base.core());
    watch_or_raise(this, base.core())?;
    Ok(log_in_debug(this, "resumed_reading")?)
}

/// Raises what asyncio's selector raises for a descriptor that is not open, because the program has closed the file.
#[cold]
fn check_open(fd: RawFd) -> Result<(), Raised> {
    // SAFETY: F_GETFD may be called with any number.
    if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 { Err(raise_errno(libc::EBADF)) } else { Ok(()) }
}

fn is_closing<T: TransportKind>(this: This<'_, T>) -> Result<bool, Raised> {
    T::send_for_drain(this)?;
    Ok(this.base().life.is_closing())
}

/// The size of the write buffer, from which all that asyncio would have sent has been sent.
pub(crate) fn get_write_buffer_size<T: TransportKind>(this: This<'_, T>) -> Result<usize, Raised> {
    T::send_gathered(this)?;
    Ok(this.unsent())
}

/// asyncio's `_buffer`, as a copy: a bytearray, or with `in_pieces` a deque.
pub(crate) fn shown_buffer(py: Python<'_>, buffer: &WriteBuffer, in_pieces: bool) -> Result<Ref, Raised> {
    let pair = |(bytes, sent): (Ref, usize)| tuple([bytes, integer(sent as i64)?]);
    let pairs = buffer.pieces().into_iter().map(pair).collect::<Result<Vec<_>, Raised>>()?;
    let show = Ref::from(support(py, "shown_buffer")?);
    show.call(&[tuple(pairs)?.borrow(), boolean(in_pieces).borrow()])
}

fn set_write_buffer_limits<T: TransportKind>(
    this: This<'_, T>,
    arguments: Arguments<'_>,
) -> Result<(), Raised> {
    let ([], [high, low]) = arguments.bind("set_write_buffer_limits", [], ["high", "low"])?;
    this.base().marks.set(high, low)?;
    // What is held is sent first: asyncio would have sent it already, so it must not cause a pause.
    T::send_gathered(this)?;
    maybe_pause(this)
}

/// Makes a native method of a transport that calls the patch of asyncio's method, if there is one. The arguments are
/// the calling convention (`no_args` or `fast`), the type of the transport, the native function and the [`Method`].
macro_rules! patchable {
    (no_args, $kind:ty, $function:expr, $method:ident) => {
        |this: $crate::capi::This<'_, $kind>| {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(
                <$kind as $crate::transport::base::transport::TransportKind>::REPLACES,
                Method::$method,
            ) {
                None => $crate::capi::returned::Returned::into_object(($function)(this)),
                Some(patch) => patch.call(this.object(), $crate::capi::Arguments::NONE),
            }
        }
    };
    (fast, $kind:ty, $function:expr, $method:ident) => {
        |this: $crate::capi::This<'_, $kind>, arguments: $crate::capi::Arguments<'_>| {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(
                <$kind as $crate::transport::base::transport::TransportKind>::REPLACES,
                Method::$method,
            ) {
                None => $crate::capi::returned::Returned::into_object(($function)(this, arguments)),
                Some(patch) => patch.call(this.object(), arguments),
            }
        }
    };
}

pub(crate) use patchable;

/// A table of methods. Each calls the patch of asyncio's method instead, if there is one.
macro_rules! patchable_methods {
    ($kind:ident; $($arguments:ident $name:literal $method:ident: $function:expr, $doc:literal;)*) => {
        [$(Method::$arguments($name, patchable!($arguments, $kind, $function, $method), $doc)),*]
    };
}

/// The methods of every transport.
pub(super) fn common<T: TransportKind>() -> [Method<T>; 4] {
    patchable_methods! { T;
        no_args c"is_closing" IsClosing: is_closing::<T>,
            c"True if the transport is closing or closed.";
        fast c"set_protocol" SetProtocol: set_protocol::<T>,
            c"set_protocol(protocol)\n\nUse another protocol from now on.";
        no_args c"get_protocol" GetProtocol: |this: This<'_, T>| this.protocol().get(),
            c"The protocol, or None after connection_lost.";
        fast c"get_extra_info" GetExtraInfo: get_extra_info::<T>,
            c"get_extra_info(name, default=None)\n\nInformation about the transport, such as its socket, addresses or pipe.";
    }
}

/// The methods of transports that read.
pub(crate) fn reading<T: TransportKind>() -> [Method<T>; 3] {
    patchable_methods! { T;
        no_args c"is_reading" IsReading: |this: This<'_, T>| this.base().is_reading(),
            c"True unless the transport is closing or paused.";
        no_args c"pause_reading" PauseReading: pause_reading::<T>,
            c"Deliver no data until resume_reading() is called.";
        no_args c"resume_reading" ResumeReading: resume_reading::<T>, c"Deliver data again.";
    }
}

/// The methods of transports that write.
pub(crate) fn writing<T: TransportKind>() -> [Method<T>; 4] {
    patchable_methods! { T;
        no_args c"abort" Abort: abort_now::<T>, c"Close at once. Pending data is lost.";
        no_args c"get_write_buffer_size" GetWriteBufferSize: get_write_buffer_size::<T>,
            c"The number of bytes that are not sent yet.";
        no_args c"get_write_buffer_limits" GetWriteBufferLimits: |this: This<'_, T>| this.base().marks.pair(),
            c"The (low, high) water marks in bytes.";
        fast c"set_write_buffer_limits" SetWriteBufferLimits: set_write_buffer_limits::<T>,
            c"set_write_buffer_limits(high=None, low=None)\n\nSet the water marks for pause_writing and resume_writing.";
    }
}

/// Replaces what `get_extra_info` returns. Servers behind a proxy put the client's address there.
fn set_extra<T: TransportKind>(this: This<'_, T>, value: Option<Borrowed<'_>>) -> Result<(), Raised> {
    let Some(extra) = value.filter(|value| value.bind(this.py()).is_instance_of::<PyDict>()) else {
        return Err(Exception::TypeError.raise("_extra must be a dict"));
    };
    this.base().extra.set(Some(extra.to_owned()));
    Ok(())
}

/// The private attributes that asyncio's inherited code or existing programs use.
pub(super) fn attributes<T: TransportKind>() -> [Attribute<T>; 12] {
    [
        Attribute::dict(),
        Attribute::read_only(T::DESCRIPTOR, |this: This<'_, T>| this.base().fd.get()),
        Attribute::read_only(c"_loop", |this: This<'_, T>| {
            let base = this.base();
            // asyncio drops the loop with the connection.
            (base.fd.get() >= 0).then(|| base.event_loop().clone_ref())
        }),
        Attribute::new(
            c"_extra",
            |this: This<'_, T>| -> Result<Option<Ref>, Raised> { Ok(T::all_extra(this, this.py())?) },
            set_extra::<T>,
        ),
        Attribute::read_only(c"_protocol_paused", |this: This<'_, T>| this.base().protocol_paused.get()),
        Attribute::read_only(c"_conn_lost", |this: This<'_, T>| this.conn_lost()),
        // As soon as Python code has the transport, `set_protocol` was called.
        Attribute::read_only(c"_protocol_connected", |_: This<'_, T>| true),
        mark_attribute!(T, c"_high_water", |this| this.base().marks.high),
        mark_attribute!(T, c"_low_water", |this| this.base().marks.low),
        Attribute::read_only(c"_closing", |this: This<'_, T>| this.base().life.is_closing()),
        Attribute::read_only(c"_paused", |this: This<'_, T>| this.base().paused.get()),
        Attribute::new(
            c"_protocol",
            |this: This<'_, T>| this.protocol().get(),
            |this: This<'_, T>, value: Option<Borrowed<'_>>| match value {
                Some(protocol) => this.set_protocol(protocol.to_owned()),
                None => Err(Exception::AttributeError.raise("cannot delete attribute")),
            },
        ),
    ]
}
