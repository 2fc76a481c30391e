//! The socket calls with addresses: `sock_recvfrom`, `sock_recvfrom_into` and `sock_sendto`.
//!
//! This file handles sockets of the families AF_INET, AF_INET6 and AF_UNIX. If a destination needs a name lookup
//! or is wrong, or if there is an audit hook, Python's `socket.sendto` is called.

use socket2::SockAddr;

use super::attempt::{Attempt, blocked, receive_by, sized};
use crate::capi::buffer::Buffer;
use crate::capi::fallible::tuple;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::sockaddr::to_python;
use crate::capi::socket::{SEND_FLAGS, receive_from};
use crate::capi::{Exception, Raised, Ref, Slot};
use crate::kernel::core::Core;
use crate::kernel::core::watched_fd::Direction;
use crate::recorder::event::Kind;

/// What the call does.
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
    /// Call `socket.sendto(data, address)`.
    SendByPython {
        data: Slot,
        address: Slot,
    },
}

impl Exchange {
    /// The kind of a call's wait, as [`Wait::kind`](crate::capi::coroutine::Wait).
    pub(super) fn wait_kind(&self) -> &'static str {
        match self {
            Exchange::Receive(_) | Exchange::ReceiveInto { .. } => "socket read",
            Exchange::Send { .. } | Exchange::SendByPython { .. } => "socket write",
        }
    }

    /// The object for the garbage collector to visit: one that the caller has passed, of any class.
    pub(super) fn held(&self) -> Option<&Slot> {
        match self {
            Exchange::ReceiveInto { target, .. } => Some(target),
            Exchange::SendByPython { address, .. } => Some(address),
            _ => None,
        }
    }

    /// Makes one attempt.
    pub(super) fn attempt(&self, core: &Core, fd: i32, socket: &Ref) -> Result<Attempt, Raised> {
        match self {
            Exchange::Receive(size) => {
                let call = |place| {
                    // SAFETY: `receive_by` passes a pointer to `size` writable bytes.
                    let received = unsafe { receive_from(fd, place, *size) };
                    core.note_received(fd, received.0);
                    received
                };
                receive_by(core, *size, call, pair)
            }
            Exchange::ReceiveInto { target, size } => {
                // An owned reference: to ask for the buffer may run Python code that closes this call.
                let target = target.get().unwrap_or_else(Ref::none);
                let buffer = Buffer::writable(&target, "recvfrom_into() argument 1")?;
                if *size > buffer.len() {
                    return Err(
                        Exception::ValueError.raise("nbytes is greater than the length of the buffer")
                    );
                }
                // SAFETY: the view keeps the memory alive and writable, and it has room for `size` bytes.
                let (count, sender) = unsafe { receive_from(fd, buffer.as_ptr(), *size) };
                drop(buffer);
                core.note_received(fd, count);
                sized(count, Direction::Read, |count| pair(integer(count as i64)?, sender))
            }
            Exchange::Send { data, address } => {
                let data = data.as_slice();
                core.probe.recorder.sends(Kind::Write, fd, || data.len());
                // SAFETY: data and address are valid for their lengths.
                let count = unsafe {
                    let (place, address, length) = (data.as_ptr(), address.as_ptr(), address.len());
                    libc::sendto(fd, place.cast(), data.len(), SEND_FLAGS, address.cast(), length)
                };
                core.probe.recorder.sent(fd, || data.len() - count.max(0) as usize);
                sized(count, Direction::Write, |count| integer(count as i64))
            }
            Exchange::SendByPython { data, address } => {
                // Owned references: the method runs Python code, which may close this call.
                let (data, address) = (data.get().ok_or(Raised)?, address.get().ok_or(Raised)?);
                match socket.call_method(&imports().sendto, &[data.borrow(), address.borrow()]) {
                    Ok(count) => Ok(Attempt::Finished(count)),
                    Err(raised) => blocked(raised).map(|()| Attempt::Blocked(Direction::Write)),
                }
            }
        }
    }
}

/// The tuple of what was received, and the sender's address.
fn pair(received: Ref, sender: SockAddr) -> Result<Ref, Raised> {
    tuple([received, to_python(&sender)?])
}
