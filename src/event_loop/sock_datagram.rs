//! `sock_recvfrom`, `sock_recvfrom_into` and `sock_sendto`: the awaitable socket calls that know addresses.
//!
//! They are steps of a [`SockCall`](super::sock::SockCall), as the calls without addresses are: tried first,
//! then waited for. Served here are ordinary sockets of the Internet and Unix families; anything else gets
//! asyncio's own coroutine. A destination that has to be looked up, or is wrong, is given to Python's socket.

use pyo3::ffi;
use pyo3::prelude::*;

use super::core::{Core, core_of};
use super::sock::{Action, SockCall};
use super::sock_methods::{check_socket, size_of_argument};
use super::sock_try::{COPIED, SEND_FLAGS, Step, sized};
use super::watch::Direction;
use crate::capi::buffer::{Buffer, RawBytes, bytes_from};
use crate::capi::call::{call, guard, method};
use crate::capi::error::{raise_message, restore};
use crate::capi::fallible::{string, tuple};
use crate::capi::imports::{imports, support};
use crate::capi::sockaddr::{self, SockAddr};
use crate::capi::types::Method;
use crate::capi::{Args, Raised, Ref, Slot};

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Exchange {
    Receive(usize),
    ReceiveInto {
        target: Slot,
        size: usize,
    },
    Send {
        data: Buffer,
        address: SockAddr,
    },
    /// By `socket.sendto(data, address)`.
    SendByPython {
        data: Slot,
        address: Slot,
    },
}

impl Exchange {
    /// What the collector should see of it: an object of the caller's own.
    pub(crate) fn held(&self) -> Option<&Slot> {
        match self {
            Exchange::ReceiveInto { target, .. } => Some(target),
            Exchange::SendByPython { address, .. } => Some(address),
            _ => None,
        }
    }

    /// One try.
    pub(crate) fn attempt(&self, core: &Core, fd: i32, socket: &Ref) -> Result<Step, Raised> {
        match self {
            Exchange::Receive(size) => receive(core, fd, *size),
            Exchange::ReceiveInto { target, size } => receive_into(fd, target, *size),
            Exchange::Send { data, address } => {
                let data = data.as_slice();
                // SAFETY: data and address are valid for their lengths.
                let count = unsafe {
                    let place = data.as_ptr().cast();
                    libc::sendto(fd, place, data.len(), SEND_FLAGS, address.as_ptr(), address.len())
                };
                sized(count, Direction::Write, number)
            }
            Exchange::SendByPython { data, address } => {
                // Held: Python runs, and may close this call.
                let (data, address) = (data.get().ok_or(Raised)?, address.get().ok_or(Raised)?);
                match method(socket, imports().sendto.as_ptr(), &[data.as_ptr(), address.as_ptr()]) {
                    Ok(count) => Ok(Step::Finished(count)),
                    Err(raised) => blocked(raised),
                }
            }
        }
    }
}

/// A non-blocking Python call failed: did it only mean "wait"?
fn blocked(raised: Raised) -> Result<Step, Raised> {
    // SAFETY: an error is set; the classes are statics of the interpreter.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_BlockingIOError) == 0
            && ffi::PyErr_ExceptionMatches(ffi::PyExc_InterruptedError) == 0
        {
            return Err(raised);
        }
        ffi::PyErr_Clear();
    }
    Ok(Step::Blocked(Direction::Write))
}

fn number(count: usize) -> Result<Ref, Raised> {
    // SAFETY: an owned int or null with an error.
    unsafe { Ref::from_owned(ffi::PyLong_FromSize_t(count)) }.ok_or(Raised)
}

/// (what was received, where it came from).
fn pair(received: Ref, sender: &SockAddr) -> Result<Ref, Raised> {
    let sender = sender.as_python()?.unwrap_or_else(Ref::none);
    tuple([received, sender])
}

fn receive(core: &Core, fd: i32, size: usize) -> Result<Step, Raised> {
    let mut sender = SockAddr::room();
    let (address, length) = sender.places();
    if size <= COPIED {
        let buffer = &mut core.receive_buffer()[..size];
        let place = buffer.as_mut_ptr().cast();
        // SAFETY: the buffer is valid for its length and copied before anything else runs; the places are
        // those of a live address.
        let count = unsafe { libc::recvfrom(fd, place, size, libc::MSG_DONTWAIT, address, length) };
        return sized(count, Direction::Read, |count| pair(bytes_from(&buffer[..count])?, &sender));
    }
    let mut bytes = RawBytes::with_capacity(size)?;
    let place = bytes.as_mut_ptr().cast();
    // SAFETY: the object has room for `size` bytes and is seen by nobody else.
    let count = unsafe { libc::recvfrom(fd, place, size, libc::MSG_DONTWAIT, address, length) };
    sized(count, Direction::Read, |count| {
        // SAFETY: `recvfrom` has written `count` bytes.
        pair(unsafe { bytes.finish(count) }?, &sender)
    })
}

fn receive_into(fd: i32, target: &Slot, size: usize) -> Result<Step, Raised> {
    // Held: asking for the buffer may run Python code that closes this call.
    let target = target.get().unwrap_or_else(Ref::none);
    let buffer = Buffer::writable(target.as_ptr(), "recvfrom_into")?;
    if size > buffer.len() {
        // SAFETY: reading a static of the interpreter.
        let kind = unsafe { ffi::PyExc_ValueError };
        raise_message(kind, "nbytes is greater than the length of the buffer");
        return Err(Raised);
    }
    let mut sender = SockAddr::room();
    let (address, length) = sender.places();
    let place = buffer.as_ptr().cast();
    // SAFETY: the view keeps the memory alive and writable, and it has room for `size` bytes.
    let count = unsafe { libc::recvfrom(fd, place, size, libc::MSG_DONTWAIT, address, length) };
    drop(buffer);
    sized(count, Direction::Read, |count| pair(number(count)?, &sender))
}

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
    let family = if sockaddr::is_plain_socket(socket) { sockaddr::family(socket)? } else { libc::AF_UNSPEC };
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
