//! Receives datagrams, and calls the protocol.
//!
//! There is one receive per turn, by one of two system calls:
//! - `recvfrom` is cheapest for a single datagram: a request and its answer cost one `epoll_wait`, one `recvfrom` and
//!   one `sendto`.
//! - `recvmmsg` receives up to [`batch::BATCH`] datagrams.
//!
//! The last receive decides which one is used. After a `recvfrom` the next receive is a `recvmmsg`, and so are the
//! following ones as long as each finds more than one datagram. A `recvmmsg` that finds only one costs 80 ns more than
//! `recvfrom`. The registration is level-triggered, so the poller reports again if datagrams are left. After a batch of
//! several datagrams the next turn reads again without a poll ([`Core::reread`]). With ten clients that are answered in
//! turn, this cuts polls per datagram from 0.5 to 0.1.
//!
//! The buffers of a batch belong to the thread. They are moved out of the thread-local while datagrams are delivered: a
//! protocol that runs another loop inside of a callback then gets other buffers.

use std::io;

use socket2::SockAddr;

use crate::capi::error::{handling, raise_os_error};
use crate::capi::imports::imports;
use crate::capi::socket::receive_from;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::kernel::core::{Core, RECEIVE};
use crate::reactor::Readiness;

use super::state::Datagram;
use crate::transport::base::closing::fatal_error;
use crate::transport::base::reporting::{Caller, notify};
use crate::transport::base::transport::TransportKind;

/// The socket is readable, or has an error that a read will report.
#[inline(always)]
pub(crate) fn on_readable(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    if !this.base.awaits_data() || this.base.has_just_resumed(core) {
        return Ok(());
    }
    if !this.receiving.held_back.is_empty() {
        return deliver_held_back(this, core);
    }
    core.note_io();
    // Datagrams of Unix sockets can be longer than the buffers of a batch.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if this.rules.family != libc::AF_UNIX
        && this.receiving.expects_more.replace(true)
        && this.has_no_own_attributes()
    {
        return batch::receive(this, core);
    }
    receive_one(this, core)
}

#[inline(always)]
fn receive_one(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    let size = match this.receive_size(RECEIVE) {
        Ok(size) => size,
        Err(raised) => return fatal_error(this, raised, "Fatal read error on datagram transport"),
    };
    let mut buffer = core.scratch.receive_buffer();
    // SAFETY: the buffer is valid for its length.
    let (count, sender) = unsafe { receive_from(this.descriptor(), buffer.as_mut_ptr(), size) };
    core.note_received(this.descriptor(), count);
    if count < 0 {
        return failed(this, core, &io::Error::last_os_error());
    }
    this.sending.habit.note_received();
    match to_python(this, core, &buffer[..count as usize], &sender) {
        Ok((data, sender)) => deliver(this, core, data, &sender),
        // Memory has run out, so this datagram is dropped.
        Err(raised) => core.unraisable(raised),
    }
}

/// A datagram and its sender as Python objects.
#[inline(always)]
fn to_python(
    this: This<'_, Datagram>,
    core: &Core,
    data: &[u8],
    sender: &SockAddr,
) -> Result<(Ref, Ref), Raised> {
    Ok((core.bytes_cache.bytes_from(data)?, this.receiving.peers.name(sender)?))
}

/// Handles the error of a receive: no datagram is waiting, or the protocol gets the error.
#[cold]
fn failed(this: This<'_, Datagram>, core: &Core, error: &io::Error) -> Result<(), Fatal> {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
        return Ok(());
    }
    error_received(this, core, Caller::Reading, &raise_os_error(error).take())
}

/// Calls `protocol.error_received(exception)` from the loop, which handles the exception meanwhile, as in asyncio.
#[cold]
pub(crate) fn error_received(
    this: This<'_, Datagram>,
    core: &Core,
    caller: Caller,
    exception: &Ref,
) -> Result<(), Fatal> {
    this.sending.send_next_at_once();
    handling(exception, || notify(this, core, caller, &imports().error_received, &[exception.borrow()]))
}

#[inline(always)]
fn deliver(this: This<'_, Datagram>, core: &Core, data: Ref, sender: &Ref) -> Result<(), Fatal> {
    let arguments = [data.borrow(), sender.borrow()];
    let delivered = notify(this, core, Caller::Reading, &imports().datagram_received, &arguments);
    core.bytes_cache.keep(data);
    delivered
}

/// Delivers datagrams that were received while the protocol paused reading.
#[cold]
fn deliver_held_back(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    while this.base.awaits_data() {
        let Some((data, sender)) = this.receiving.held_back.pop() else { break };
        deliver(this, core, data, &sender).inspect_err(|_| keep_for_next_run(this, core))?;
    }
    Ok(())
}

/// Called when a fatal error leaves the loop. Datagrams that are held back are delivered when the loop runs again.
#[cold]
fn keep_for_next_run(this: This<'_, Datagram>, core: &Core) {
    if !this.receiving.held_back.is_empty() {
        core.requeue(this.base.token.get(), Readiness::READABLE);
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod batch {
    //! `recvmmsg` and its buffers.

    use std::cell::Cell;
    use std::ptr::null_mut;

    use socket2::{SockAddr, SockAddrStorage};

    use super::{
        Core, Datagram, Fatal, Raised, Ref, This, TransportKind, deliver, failed, io, keep_for_next_run,
        receive_one, to_python,
    };
    use crate::capi::error::Outcome;

    /// Datagrams per system call.
    pub(super) const BATCH: usize = 64;
    /// No IPv4 or IPv6 datagram is longer.
    const LONGEST: usize = 64 * 1024;
    /// The distance between two buffers. With a power of two, the beginnings of all buffers would share a few cache
    /// lines.
    const STRIDE: usize = LONGEST + 33 * 64;

    /// Buffers for one `recvmmsg`. The kernel allocates a page only when a datagram is written to it.
    struct Batch {
        headers: [libc::mmsghdr; BATCH],
        vectors: [libc::iovec; BATCH],
        senders: [SockAddrStorage; BATCH],
        /// The memory of the buffers. Its length stays 0: the kernel writes to its capacity.
        space: Vec<u8>,
        /// How many headers the last `fill` has written.
        used: usize,
    }

    thread_local! {
        static SPARE: Cell<Option<Box<Batch>>> = const { Cell::new(None) };
    }

    impl Batch {
        /// `None` if memory has run out. Receiving single datagrams needs no such memory.
        fn new() -> Option<Box<Batch>> {
            let mut space = Vec::new();
            space.try_reserve_exact(STRIDE * BATCH).ok()?;
            // SAFETY: all of these structures are valid when zeroed.
            let mut batch = unsafe {
                Box::new(Batch {
                    headers: std::mem::zeroed(),
                    vectors: std::mem::zeroed(),
                    senders: std::mem::zeroed(),
                    space,
                    used: BATCH,
                })
            };
            // The contents of the box and of the vector never move, so the pointers are set once.
            let Batch { headers, vectors, senders, space, .. } = &mut *batch;
            for (index, header) in headers.iter_mut().enumerate() {
                // SAFETY: the capacity is `STRIDE * BATCH`.
                let start = unsafe { space.as_mut_ptr().add(index * STRIDE) };
                vectors[index] = libc::iovec { iov_base: start.cast(), iov_len: LONGEST };
                header.msg_hdr.msg_name = (&raw mut senders[index]).cast();
                header.msg_hdr.msg_iov = &raw mut vectors[index];
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = null_mut();
            }
            Some(batch)
        }

        /// Receives up to [`BATCH`] datagrams.
        fn fill(&mut self, fd: i32) -> io::Result<usize> {
            for header in &mut self.headers[..self.used] {
                header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            }
            self.used = 0;
            // SAFETY: all headers point into this batch, which outlives the call.
            let count = unsafe {
                libc::recvmmsg(fd, self.headers.as_mut_ptr(), BATCH as _, libc::MSG_DONTWAIT as _, null_mut())
            };
            if count < 0 {
                return Err(io::Error::last_os_error());
            }
            self.used = (count as usize).min(BATCH);
            Ok(self.used)
        }

        /// Datagram `index` of the last `fill`, as Python objects.
        fn take(&self, index: usize, this: This<'_, Datagram>, core: &Core) -> Result<(Ref, Ref), Raised> {
            let header = &self.headers[index];
            let length = (header.msg_len as usize).min(LONGEST);
            // SAFETY: the last `fill` has written `length` bytes to this buffer, and an address of `msg_namelen` bytes
            // to this entry of `senders`.
            let (data, sender) = unsafe {
                let storage = std::ptr::read(&raw const self.senders[index]);
                core.note_received(this.descriptor(), length as isize);
                (
                    std::slice::from_raw_parts(self.vectors[index].iov_base.cast::<u8>(), length),
                    SockAddr::new(storage, header.msg_hdr.msg_namelen),
                )
            };
            to_python(this, core, data, &sender)
        }
    }

    pub(super) fn receive(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
        let Some(mut batch) = SPARE.take().or_else(Batch::new) else { return receive_one(this, core) };
        let outcome = match batch.fill(this.descriptor()) {
            Ok(count) => {
                this.receiving.expects_more.set(count > 1);
                if count > 1 {
                    core.polls.reread_token.set(Some(this.base.token.get()));
                }
                deliver_all(this, core, &batch, count)
            }
            // A sandbox may support only the older system call.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => receive_one(this, core),
            Err(error) => failed(this, core, &error),
        };
        SPARE.set(Some(batch));
        outcome
    }

    fn deliver_all(this: This<'_, Datagram>, core: &Core, batch: &Batch, count: usize) -> Result<(), Fatal> {
        let mut outcome = Outcome::default();
        this.sending.habit.note_received();
        for index in 0..count {
            if this.base.life.is_closing() {
                // The transport was closed. Its unread datagrams are dropped, like those in the kernel.
                break;
            }
            match batch.take(index, this, core) {
                Ok(taken) if this.base.paused.get() || outcome.is_fatal() => {
                    this.receiving.held_back.push(taken);
                }
                Ok((data, sender)) => {
                    this.sending.batch.set(Some(index + 1 < count));
                    outcome.note(deliver(this, core, data, &sender));
                }
                // Memory has run out, so this datagram is dropped.
                Err(raised) => outcome.note(core.unraisable(raised)),
            }
        }
        this.sending.batch.set(None);
        this.sending.habit.end_batch(count);
        outcome.finish().inspect_err(|_| keep_for_next_run(this, core))
    }
}
