//! The loop's methods that return an awaitable socket call: they bind the arguments and make asyncio's checks.
//!
//! An error of a check is raised when the call is awaited, as in a coroutine. An object that has not the methods of a
//! `socket.socket` gets asyncio's own coroutine, which calls the object's.

use std::cell::Cell;

use pyo3::ffi;

use super::call::{Action, SockCall};
use super::exchange::Exchange;
use crate::capi::audit::has_hook;
use crate::capi::buffer::Buffer;
use crate::capi::fallible::string;
use crate::capi::inspect::is_error_set;
use crate::capi::methods::Method;
use crate::capi::sockaddr::{self, is_plain_socket};
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref, Slot, This};
use crate::compat::sockets::{self, Use};
use crate::kernel::core::Core;
use crate::kernel::support::call_support;

type Loop<'a> = This<'a, Core>;

/// The name of a method of the loop, as an attribute and in full.
type Names = (&'static str, &'static str);

/// Creates the awaitable; `make` checks the other arguments. For an object that has not the methods of a
/// `socket.socket`, returns asyncio's own coroutine, which calls them.
fn awaitable(
    core: Loop<'_>,
    used: Use,
    names: Names,
    socket: Borrowed<'_>,
    arguments: &[Borrowed<'_>],
    make: impl FnOnce() -> Result<Action, Raised>,
) -> Result<Ref, Raised> {
    if !sockets::is_native(used, &socket) || notices_patch(&core) {
        return inherited(core, names, socket, arguments);
    }
    create(core, names, socket, make)
}

fn create(
    core: Loop<'_>,
    (_, name): Names,
    socket: Borrowed<'_>,
    make: impl FnOnce() -> Result<Action, Raised>,
) -> Result<Ref, Raised> {
    let action = check_socket(&core, socket)
        .and_then(|()| make())
        .unwrap_or_else(|raised| Action::Fail(Slot::new(Some(raised.take()))));
    SockCall::create(&core, name, socket, action)
}

/// Is this call the first that notices a patch of asyncio's classes? It may be one of asyncio's version of this method.
#[inline(always)]
fn notices_patch(core: &Core) -> bool {
    core.clock.has_changed(&core.borrow()) && core.clock.take_changed().is_some()
}

/// asyncio's own coroutine, which makes the checks itself.
#[cold]
fn inherited(
    core: Loop<'_>,
    (function, _): Names,
    socket: Borrowed<'_>,
    arguments: &[Borrowed<'_>],
) -> Result<Ref, Raised> {
    let function = string(function)?;
    let first = [core.object(), function.borrow(), socket];
    let all: Vec<_> = first.iter().chain(arguments).copied().collect();
    call_support(core.py(), "inherited_sock_call", &all)
}

/// Makes asyncio's checks of a socket. A plain socket needs none, except in debug mode.
fn check_socket(core: &Core, socket: Borrowed<'_>) -> Result<(), Raised> {
    if is_plain_socket(socket.as_ptr()) && !core.is_debug() {
        return Ok(());
    }
    call_support(socket.py(), "check_socket", &[core.borrow(), socket]).map(drop)
}

/// The size argument of the socket's method `function`. It must not be negative.
fn size_of_argument(value: &Ref, function: &str) -> Result<usize, Raised> {
    // SAFETY: a live object. The call returns an owned int, or null with an error.
    let number = unsafe { Ref::from_owned(ffi::PyNumber_Index(value.as_ptr())) }.ok_or(Raised)?;
    // SAFETY: an int. -1 means an error if one is set.
    let size = unsafe { ffi::PyLong_AsSsize_t(number.as_ptr()) };
    if size == -1 && is_error_set() {
        return Err(Raised);
    }
    usize::try_from(size)
        .map_err(|_| Exception::ValueError.raise(&format!("negative buffersize in {function}")))
}

fn held(object: Borrowed<'_>) -> Slot {
    Slot::new(Some(object.to_owned()))
}

// -- without addresses

fn sock_recv(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket, size], []) = arguments.bind("sock_recv", ["sock", "n"], [])?;
    awaitable(core, Use::Exchange, ("sock_recv", "EventLoop.sock_recv"), socket, &[size], || {
        size_of_argument(&size, "recv").map(Action::Receive)
    })
}

fn sock_recv_into(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket, target], []) = arguments.bind("sock_recv_into", ["sock", "buf"], [])?;
    awaitable(core, Use::Exchange, ("sock_recv_into", "EventLoop.sock_recv_into"), socket, &[target], || {
        Ok(Action::ReceiveInto(held(target)))
    })
}

fn sock_sendall(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket, data], []) = arguments.bind("sock_sendall", ["sock", "data"], [])?;
    awaitable(core, Use::Exchange, ("sock_sendall", "EventLoop.sock_sendall"), socket, &[data], || {
        Ok(Action::Send { data: Buffer::readable(&data)?, sent: Cell::new(0) })
    })
}

fn sock_accept(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket], []) = arguments.bind("sock_accept", ["sock"], [])?;
    awaitable(core, Use::Accept, ("sock_accept", "EventLoop.sock_accept"), socket, &[], || Ok(Action::Accept))
}

fn sock_connected(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket], []) = arguments.bind("_sock_connected", ["sock"], [])?;
    create(core, ("_sock_connected", "EventLoop._sock_connected"), socket, || {
        Ok(Action::Connect { waited: Cell::new(false) })
    })
}

// -- with addresses

/// As [`awaitable`], for the families whose addresses native code knows; `make` gets the family.
fn exchange(
    core: Loop<'_>,
    names: Names,
    socket: Borrowed<'_>,
    arguments: &[Borrowed<'_>],
    make: impl FnOnce(i32) -> Result<Exchange, Raised>,
) -> Result<Ref, Raised> {
    if sockets::is_native(Use::Exchange, &socket)
        && !notices_patch(&core)
        && let family = sockaddr::family(&socket)?
        && matches!(family, libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX)
    {
        return create(core, names, socket, || {
            make(family).map(|exchange| Action::Exchange(Box::new(exchange)))
        });
    }
    inherited(core, names, socket, arguments)
}

fn sock_recvfrom(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket, size], []) = arguments.bind("sock_recvfrom", ["sock", "bufsize"], [])?;
    exchange(core, ("sock_recvfrom", "EventLoop.sock_recvfrom"), socket, &[size], |_| {
        size_of_argument(&size, "recvfrom").map(Exchange::Receive)
    })
}

fn sock_recvfrom_into(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    const NAMES: Names = ("sock_recvfrom_into", "EventLoop.sock_recvfrom_into");
    let ([socket, target], [size]) = arguments.bind(NAMES.0, ["sock", "buf"], ["nbytes"])?;
    let given: Vec<_> = [Some(target), size].into_iter().flatten().collect();
    exchange(core, NAMES, socket, &given, |_| {
        // As in asyncio, a false size means the whole buffer.
        let size = match size {
            Some(size) if size.is_true()? => {
                // As in Python, the buffer is checked before the size.
                drop(Buffer::writable(&target, "recvfrom_into() argument 1")?);
                size_of_argument(&size, "recvfrom_into")?
            }
            _ => 0,
        };
        let size = if size == 0 { length(target)? } else { size };
        Ok(Exchange::ReceiveInto { target: held(target), size })
    })
}

/// `len(object)`.
fn length(object: Borrowed<'_>) -> Result<usize, Raised> {
    // SAFETY: a live object. -1 means an error.
    usize::try_from(unsafe { ffi::PyObject_Size(object.as_ptr()) }).map_err(|_| Raised)
}

fn sock_sendto(core: Loop<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([socket, data, address], []) = arguments.bind("sock_sendto", ["sock", "data", "address"], [])?;
    exchange(core, ("sock_sendto", "EventLoop.sock_sendto"), socket, &[data, address], |family| {
        // An audit hook sees the call of the socket's method.
        let known = if has_hook() { None } else { sockaddr::from_python(family, &address) };
        Ok(match known {
            Some(address) => Exchange::Send { data: Buffer::readable(&data)?, address },
            None => Exchange::SendByPython { data: held(data), address: held(address) },
        })
    })
}

/// The methods that are added to the loop class.
pub(crate) const METHODS: &[Method<Core>] = &[
    Method::fast(
        c"sock_recv",
        sock_recv,
        c"sock_recv(sock, n)\n\nReceive up to n bytes from a non-blocking socket. Awaitable.",
    ).coroutine(),
    Method::fast(
        c"sock_recv_into",
        sock_recv_into,
        c"sock_recv_into(sock, buf)\n\nReceive into a writable buffer. Awaitable: returns the number of bytes.",
    ).coroutine(),
    Method::fast(c"sock_sendall", sock_sendall, c"sock_sendall(sock, data)\n\nSend all the data. Awaitable.").coroutine(),
    Method::fast(
        c"sock_accept",
        sock_accept,
        c"sock_accept(sock)\n\nWait for a connection to a listening, non-blocking socket. Awaitable: returns (socket, address).",
    ).coroutine(),
    Method::fast(
        c"_sock_connected",
        sock_connected,
        c"_sock_connected(sock)\n\nWait for a connect that was started. Awaitable: returns SO_ERROR.",
    ).coroutine(),
    Method::fast(
        c"sock_recvfrom",
        sock_recvfrom,
        c"sock_recvfrom(sock, bufsize)\n\nReceive a datagram of up to bufsize bytes. Awaitable: returns (data, address).",
    ).coroutine(),
    Method::fast(
        c"sock_recvfrom_into",
        sock_recvfrom_into,
        c"sock_recvfrom_into(sock, buf, nbytes=0)\n\nReceive a datagram into a writable buffer. Awaitable: returns (number of bytes, address).",
    ).coroutine(),
    Method::fast(
        c"sock_sendto",
        sock_sendto,
        c"sock_sendto(sock, data, address)\n\nSend a datagram to an address. Awaitable: returns the number of bytes.",
    ).coroutine(),
];
