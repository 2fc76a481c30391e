//! The Python methods and attributes that only stream transports have.

use super::send;
use super::state::Stream;
use crate::capi::methods::{Attribute, Method};
use crate::capi::{Arguments, Exception, Raised, Ref, This};
use crate::compat::version::TRANSPORT_SENDS_PIECES;
use crate::kernel::completion::complete;
use crate::kernel::futures::new_future;
use crate::transport::base::methods::{close_now, force_close_now, patchable, shown_buffer};
use crate::transport::base::transport::TransportKind;

fn writelines(this: This<'_, Stream>, arguments: Arguments<'_>) -> Result<(), Raised> {
    send::writelines(this, arguments.one("writelines", "list_of_data")?)
}

fn make_empty_waiter(this: This<'_, Stream>) -> Result<Ref, Raised> {
    if !this.writing.empty_waiter.is_empty() {
        return Err(Exception::RuntimeError.raise("Empty waiter is already set"));
    }
    send::send_gathered(this)?;
    let waiter = new_future(this.base.core())?;
    if this.writing.is_empty() {
        complete(this.base.core(), &waiter)?;
    }
    this.writing.empty_waiter.set(Some(waiter.clone_ref()));
    Ok(waiter)
}

fn reset_empty_waiter(this: This<'_, Stream>) {
    this.stop_sending();
    this.writing.empty_waiter.clear();
}

/// Sends what this turn has written. For Python code that is about to use the descriptor without the transport.
fn send_writes(this: This<'_, Stream>) -> Result<(), Raised> {
    this.send_tls_writes();
    send::send_gathered(this)
}

pub(super) const METHODS: &[Method<Stream>] = &[
    Method::fast(
        c"write",
        |this: This<'_, Stream>, arguments: Arguments<'_>| send::write(this, arguments.one("write", "data")?),
        c"write(data)\n\nSend bytes. Never blocks.",
    ),
    Method::fast(
        c"writelines",
        patchable!(fast, Stream, writelines, Writelines),
        c"writelines(list_of_data)\n\nSend several bytes-like objects, in order.",
    ),
    Method::no_args(c"write_eof", send::write_eof, c"Close the write side after pending data was sent."),
    Method::no_args(c"can_write_eof", |_this: This<'_, Stream>| true, c"True. A socket can be half-closed."),
    Method::no_args(
        c"close",
        patchable!(no_args, Stream, close_now::<Stream>, Close),
        c"Stop reading, send pending data, then call connection_lost(None) and close the socket.",
    ),
    Method::one_arg(
        c"_force_close",
        force_close_now,
        c"Close at once with an exception for connection_lost.",
    ),
    Method::no_args(c"_send_writes", send_writes, c"Send what was written, as far as the socket takes it."),
    Method::no_args(
        c"_make_empty_waiter",
        make_empty_waiter,
        c"A future that completes when all data is sent.",
    ),
    Method::no_args(
        c"_reset_empty_waiter",
        reset_empty_waiter,
        c"Forget the future of _make_empty_waiter().",
    ),
];

/// asyncio's `_buffer`, as a copy. What is held for the next write is sent first: asyncio would have sent it already.
fn buffer(this: This<'_, Stream>) -> Result<Ref, Raised> {
    send::send_gathered(this)?;
    shown_buffer(this.py(), &this.writing.buffer, TRANSPORT_SENDS_PIECES)
}

pub(super) const ATTRIBUTES: &[Attribute<Stream>] = &[
    Attribute::read_only(c"_server", |this: This<'_, Stream>| this.server.get()),
    Attribute::read_only(c"_buffer", buffer),
    Attribute::read_only(c"_eof", |this: This<'_, Stream>| this.writing.eof.get()),
];
