//! The loop's methods that give an awaitable socket call: they bind the arguments and make asyncio's checks.

use std::cell::Cell;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::super::core::{Core, core_of};
use super::call::{Action, SockCall};
use super::exchange::Exchange;
use crate::capi::buffer::Buffer;
use crate::capi::call::{call, guard};
use crate::capi::error::{raise_message, restore};
use crate::capi::fallible::string;
use crate::capi::imports::support;
use crate::capi::sockaddr::{self, SockAddr, is_plain_socket};
use crate::capi::types::Method;
use crate::capi::{Args, Raised, Ref, Slot};

/// A method that makes an awaitable: binds the arguments and makes asyncio's checks.
///
/// # Safety
/// `object` is one of our loops, and the rest are the arguments of the running call.
unsafe fn sock_call(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    make: impl FnOnce(*mut ffi::PyObject) -> Result<Action, Raised>,
    (name, function, parameter): (&'static str, &str, &str),
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the arguments of the running call.
        let arguments = unsafe { Args::new(values, count, names) };
        let required = if parameter.is_empty() { 1 } else { 2 };
        let bound = match arguments.bind(function, ["sock", parameter], required) {
            Ok(bound) => bound,
            Err(Raised) => return null_mut(),
        };
        // SAFETY: the method sits on our loop class.
        let core = unsafe { core_of(object) };
        // A wrong argument is raised where the call is awaited, as a coroutine would.
        let action = check_socket(core, bound[0])
            .and_then(|()| make(bound[1]))
            .unwrap_or_else(|raised| Action::Fail(Slot::new(Some(raised.take()))));
        SockCall::create(object, bound[0], name, action).map_or(null_mut(), Ref::into_ptr)
    })
}

/// An ordinary socket passes at once; anything else is asked what asyncio asks.
fn check_socket(core: &Core, socket: *mut ffi::PyObject) -> Result<(), Raised> {
    if is_plain_socket(socket) && !core.is_debug() {
        return Ok(());
    }
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let check = support(py, "check_socket").map_err(|error| restore(py, error))?;
    call(&Ref::from(check), &[core.object(), socket]).map(drop)
}

fn receive_action(size: *mut ffi::PyObject) -> Result<Action, Raised> {
    size_of_argument(size, "recv").map(Action::Receive)
}

/// A size that the socket's method `function` is called with: not negative.
fn size_of_argument(value: *mut ffi::PyObject, function: &str) -> Result<usize, Raised> {
    // SAFETY: a live object; null means failure.
    let number = unsafe { Ref::from_owned(ffi::PyNumber_Index(value)) }.ok_or(Raised)?;
    // SAFETY: an int; -1 with an error set means failure.
    let size = unsafe { ffi::PyLong_AsSsize_t(number.as_ptr()) };
    // SAFETY: asks for the indicator only.
    if size == -1 && !unsafe { ffi::PyErr_Occurred() }.is_null() {
        return Err(Raised);
    }
    if size < 0 {
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_ValueError }, &format!("negative buffersize in {function}"));
        return Err(Raised);
    }
    Ok(size as usize)
}

fn receive_into_action(target: *mut ffi::PyObject) -> Result<Action, Raised> {
    // SAFETY: a borrowed argument.
    Ok(Action::ReceiveInto(Slot::new(Some(unsafe { Ref::from_borrowed(target) }))))
}

fn send_action(data: *mut ffi::PyObject) -> Result<Action, Raised> {
    Ok(Action::Send { data: Buffer::readable(data)?, sent: Cell::new(0) })
}

macro_rules! sock_method {
    ($name:ident, $parameter:literal, $make:expr) => {
        unsafe extern "C" fn $name(
            object: *mut ffi::PyObject,
            values: *const *mut ffi::PyObject,
            count: ffi::Py_ssize_t,
            names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            let called = (concat!("EventLoop.", stringify!($name)), stringify!($name), $parameter);
            // SAFETY: the method sits on our loop class; the arguments are those of this call.
            unsafe { sock_call(object, values, count, names, $make, called) }
        }
    };
}

sock_method!(sock_recv, "n", receive_action);
sock_method!(sock_recv_into, "buf", receive_into_action);
sock_method!(sock_sendall, "data", send_action);
sock_method!(sock_accept, "", |_| Ok(Action::Accept));
sock_method!(_sock_connected, "", |_| Ok(Action::Connect { waited: Cell::new(false) }));

fn slot(object: *mut ffi::PyObject) -> Slot {
    // SAFETY: a borrowed argument of the running call.
    Slot::new(Some(unsafe { Ref::from_borrowed(object) }))
}

/// The call of an ordinary socket; `make` is given its family. Another socket's is asyncio's own coroutine.
fn exchange(
    event_loop: *mut ffi::PyObject,
    (name, function): (&'static str, &str),
    arguments: &[*mut ffi::PyObject],
    make: impl FnOnce(i32) -> Result<Exchange, Raised>,
) -> Result<Ref, Raised> {
    // SAFETY: the methods below sit on our loop class.
    let core = unsafe { core_of(event_loop) };
    let socket = arguments[0];
    let family = if is_plain_socket(socket) { sockaddr::family(socket)? } else { libc::AF_UNSPEC };
    if matches!(family, libc::AF_INET | libc::AF_INET6 | libc::AF_UNIX) {
        // A wrong argument is raised where the call is awaited, as a coroutine would.
        let action = check_socket(core, socket).and_then(|()| make(family)).map_or_else(
            |raised| Action::Fail(Slot::new(Some(raised.take()))),
            |it| Action::Exchange(Box::new(it)),
        );
        return SockCall::create(event_loop, socket, name, action);
    }
    // It makes asyncio's checks itself.
    // SAFETY: every method runs with the GIL held.
    let py = unsafe { Python::assume_attached() };
    let inherited = support(py, "inherited_sock_call").map_err(|error| restore(py, error))?;
    let function = string(function)?;
    let mut stack = vec![event_loop, function.as_ptr()];
    stack.extend(arguments.iter().filter(|argument| !argument.is_null()));
    call(&Ref::from(inherited), &stack)
}

macro_rules! exchange_method {
    ($name:ident, $parameters:expr, $required:expr, $make:expr) => {
        unsafe extern "C" fn $name(
            object: *mut ffi::PyObject,
            values: *const *mut ffi::PyObject,
            count: ffi::Py_ssize_t,
            names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            guard(|| {
                // SAFETY: the arguments of the running call.
                let arguments = unsafe { Args::new(values, count, names) };
                arguments
                    .bind(stringify!($name), $parameters, $required)
                    .and_then(|bound| {
                        let called = (concat!("EventLoop.", stringify!($name)), stringify!($name));
                        exchange(object, called, &bound, |family| $make(family, &bound))
                    })
                    .map_or(std::ptr::null_mut(), Ref::into_ptr)
            })
        }
    };
}

exchange_method!(sock_recvfrom, ["sock", "bufsize"], 2, |_, bound: &[*mut ffi::PyObject; 2]| {
    size_of_argument(bound[1], "recvfrom").map(Exchange::Receive)
});

exchange_method!(sock_recvfrom_into, ["sock", "buf", "nbytes"], 2, |_, bound: &[*mut ffi::PyObject; 3]| {
    // As in asyncio, whatever is false means all of the buffer.
    // SAFETY: asked of a live object only; -1 with an error set means failure.
    let given = match if bound[2].is_null() { 0 } else { unsafe { ffi::PyObject_IsTrue(bound[2]) } } {
        0 => 0,
        -1 => return Err(Raised),
        // The buffer is looked at before it.
        _ => Buffer::writable(bound[1], "recvfrom_into")
            .and_then(|_| size_of_argument(bound[2], "recvfrom_into"))?,
    };
    let size = match given {
        0 => {
            // SAFETY: a live object; -1 with an error set means failure.
            let size = unsafe { ffi::PyObject_Size(bound[1]) };
            usize::try_from(size).map_err(|_| Raised)?
        }
        given => given,
    };
    Ok(Exchange::ReceiveInto { target: slot(bound[1]), size })
});

exchange_method!(sock_sendto, ["sock", "data", "address"], 3, |family, bound: &[*mut ffi::PyObject; 3]| {
    Ok(match SockAddr::from_python(family, bound[2]) {
        Some(address) => Exchange::Send { data: Buffer::readable(bound[1])?, address },
        None => Exchange::SendByPython { data: slot(bound[1]), address: slot(bound[2]) },
    })
});

/// What is put on the loop class.
pub(crate) const METHODS: &[Method] = &[
    Method::Fast(
        c"sock_recv",
        sock_recv,
        c"sock_recv(sock, n)\n\nReceive up to n bytes from a non-blocking socket. Awaitable.",
    ),
    Method::Fast(
        c"sock_recv_into",
        sock_recv_into,
        c"sock_recv_into(sock, buf)\n\nReceive into a writable buffer. Awaitable; gives the count.",
    ),
    Method::Fast(c"sock_sendall", sock_sendall, c"sock_sendall(sock, data)\n\nSend all the data. Awaitable."),
    Method::Fast(
        c"sock_accept",
        sock_accept,
        c"sock_accept(sock)\n\nAccept a connection. Awaitable; gives (socket, address).",
    ),
    Method::Fast(
        c"_sock_connected",
        _sock_connected,
        c"_sock_connected(sock)\n\nWait for a connect that was started. Awaitable; gives SO_ERROR.",
    ),
    Method::Fast(
        c"sock_recvfrom",
        sock_recvfrom,
        c"sock_recvfrom(sock, bufsize)\n\nReceive a datagram of up to bufsize bytes. Awaitable; gives (data, address).",
    ),
    Method::Fast(
        c"sock_recvfrom_into",
        sock_recvfrom_into,
        c"sock_recvfrom_into(sock, buf, nbytes=0)\n\nReceive a datagram into a writable buffer. Awaitable; gives (count, address).",
    ),
    Method::Fast(
        c"sock_sendto",
        sock_sendto,
        c"sock_sendto(sock, data, address)\n\nSend a datagram to an address. Awaitable; gives the count of bytes.",
    ),
];
