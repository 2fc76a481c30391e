//! The socket calls that know addresses: `sock_recvfrom`, `sock_recvfrom_into` and `sock_sendto`.
//!
//! Ordinary sockets of the Internet and Unix families are served here. A destination that has to be looked up, or is
//! wrong, is given to Python's socket.

use super::super::core::Core;
use super::super::core::watched_fd::Direction;
use super::attempt::{Attempt, COPIED, SEND_FLAGS, blocked, sized};
use crate::capi::buffer::{Buffer, RawBytes, bytes_from};
use crate::capi::exceptions::Exception;
use crate::capi::fallible::tuple;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::sockaddr::SockAddr;
use crate::capi::{Raised, Ref, Slot};

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
    pub(super) fn held(&self) -> Option<&Slot> {
        match self {
            Exchange::ReceiveInto { target, .. } => Some(target),
            Exchange::SendByPython { address, .. } => Some(address),
            _ => None,
        }
    }

    /// One attempt.
    pub(super) fn attempt(&self, core: &Core, fd: i32, socket: &Ref) -> Result<Attempt, Raised> {
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
                sized(count, Direction::Write, |count| integer(count as i64))
            }
            Exchange::SendByPython { data, address } => {
                // Held: Python runs, and may close this call.
                let (data, address) = (data.get().ok_or(Raised)?, address.get().ok_or(Raised)?);
                match socket.call_method(&imports().sendto, &[data.borrow(), address.borrow()]) {
                    Ok(count) => Ok(Attempt::Finished(count)),
                    Err(raised) => blocked(raised).map(|()| Attempt::Blocked(Direction::Write)),
                }
            }
        }
    }
}

/// (what was received, where it came from).
fn pair(received: Ref, sender: &SockAddr) -> Result<Ref, Raised> {
    let sender = sender.as_python()?.unwrap_or_else(Ref::none);
    tuple([received, sender])
}

fn receive(core: &Core, fd: i32, size: usize) -> Result<Attempt, Raised> {
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
    // SAFETY: the object has room for `size` bytes and is not shared yet.
    let count = unsafe { libc::recvfrom(fd, place, size, libc::MSG_DONTWAIT, address, length) };
    sized(count, Direction::Read, |count| {
        // SAFETY: `recvfrom` has written `count` bytes.
        pair(unsafe { bytes.finish(count) }?, &sender)
    })
}

fn receive_into(fd: i32, target: &Slot, size: usize) -> Result<Attempt, Raised> {
    // Held: asking for the buffer may run Python code that closes this call.
    let target = target.get().unwrap_or_else(Ref::none);
    let buffer = Buffer::writable(target.as_ptr(), "recvfrom_into")?;
    if size > buffer.len() {
        return Err(Exception::ValueError.raise("nbytes is greater than the length of the buffer"));
    }
    let mut sender = SockAddr::room();
    let (address, length) = sender.places();
    let place = buffer.as_ptr().cast();
    // SAFETY: the view keeps the memory alive and writable, and it has room for `size` bytes.
    let count = unsafe { libc::recvfrom(fd, place, size, libc::MSG_DONTWAIT, address, length) };
    drop(buffer);
    sized(count, Direction::Read, |count| pair(integer(count as i64)?, &sender))
}
