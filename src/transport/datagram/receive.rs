//! From a datagram socket to the protocol.
//!
//! There is one receive per turn, by one of two system calls:
//! - `recvfrom` is cheapest for a datagram that comes alone: a request and its answer cost one `epoll_wait`, one
//!   `recvfrom` and one `sendto`.
//! - `recvmmsg` takes up to [`batch::BATCH`] datagrams at once.
//!
//! The last receive decides: after a `recvfrom` a batch is tried, and batches go on as long as they find more than one
//! datagram. A batch that finds one costs 80 ns more than `recvfrom`; a burst costs one `recvfrom` for its first datagram.
//! The registration is level-triggered, so what is left is reported again, and nothing has to be read until it is empty.
//! After a batch of several the next turn reads again without a poll ([`Core::reread`]). This cuts polls per datagram from
//! 0.5 to 0.1 for ten clients that are answered in turn.
//!
//! The batch's buffers belong to the thread, not to the transport, and are taken out while they are delivered from: a
//! protocol that runs another loop inside gets buffers of its own.

use std::io;

use socket2::SockAddr;

use crate::capi::error::raise_io;
use crate::capi::imports::imports;
use crate::capi::socket::receive_from;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::event_loop::core::{Core, RECEIVE};
use crate::reactor::Readiness;

use super::state::Datagram;
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
    // Unix datagrams can be longer than a batch has room for.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if this.rules.family != libc::AF_UNIX && this.receiving.expects_more.replace(true) {
        return batch::receive(this, core);
    }
    receive_one(this, core)
}

#[inline(always)]
fn receive_one(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    let buffer = core.receive_buffer();
    // SAFETY: the buffer is valid for its length, and copied before anything else can run.
    let (count, sender) = unsafe { receive_from(this.descriptor(), buffer.as_mut_ptr(), RECEIVE) };
    if count < 0 {
        return failed(this, core, &io::Error::last_os_error());
    }
    match to_python(this, core, &buffer[..count as usize], &sender) {
        Ok((data, sender)) => deliver(this, core, data, &sender),
        // No memory for it: this datagram is lost, as datagrams may be.
        Err(raised) => core.unraisable(raised),
    }
}

/// A datagram and its sender as the protocol is given them.
#[inline(always)]
fn to_python(
    this: This<'_, Datagram>,
    core: &Core,
    data: &[u8],
    sender: &SockAddr,
) -> Result<(Ref, Ref), Raised> {
    Ok((core.bytes_cache.bytes_from(data)?, this.receiving.peers.name(sender)?))
}

/// -1 from a receive: nothing there, or an error for the protocol.
#[cold]
fn failed(this: This<'_, Datagram>, core: &Core, error: &io::Error) -> Result<(), Fatal> {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
        return Ok(());
    }
    error_received(this, core, Caller::Reading, &raise_io(error).take())
}

/// `protocol.error_received(exception)`, from the loop.
#[cold]
pub(crate) fn error_received(
    this: This<'_, Datagram>,
    core: &Core,
    caller: Caller,
    exception: &Ref,
) -> Result<(), Fatal> {
    notify(this, core, caller, &imports().error_received, &[exception.borrow()])
}

#[inline(always)]
fn deliver(this: This<'_, Datagram>, core: &Core, data: Ref, sender: &Ref) -> Result<(), Fatal> {
    let arguments = [data.borrow(), sender.borrow()];
    let delivered = notify(this, core, Caller::Reading, &imports().datagram_received, &arguments);
    core.bytes_cache.keep(data);
    delivered
}

/// Delivers what a pause has interrupted.
#[cold]
fn deliver_held_back(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    while this.base.awaits_data() {
        let Some((data, sender)) = this.receiving.held_back.pop_front() else { break };
        deliver(this, core, data, &sender).inspect_err(|_| keep_for_next_run(this, core))?;
    }
    Ok(())
}

/// A fatal error leaves the loop. What is held back is delivered when the loop runs again.
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
    /// No datagram of an Internet socket is longer.
    const LONGEST: usize = 64 * 1024;
    /// From one buffer to the next. A power of two would put the beginnings of all of them into the same
    /// few lines of the cache.
    const STRIDE: usize = LONGEST + 33 * 64;

    /// Buffers for one `recvmmsg`. The pages are the kernel's until datagrams are written to them.
    struct Batch {
        headers: [libc::mmsghdr; BATCH],
        vectors: [libc::iovec; BATCH],
        senders: [SockAddrStorage; BATCH],
        /// Never filled as a vector: the kernel writes to its capacity.
        space: Vec<u8>,
        /// How many headers the last fill has written to.
        used: usize,
    }

    thread_local! {
        static SPARE: Cell<Option<Box<Batch>>> = const { Cell::new(None) };
    }

    impl Batch {
        /// `None` if there is no memory for it, which one datagram at a time needs none of.
        fn new() -> Option<Box<Batch>> {
            let mut space = Vec::new();
            space.try_reserve_exact(STRIDE * BATCH).ok()?;
            // SAFETY: all of these structures are valid when zero.
            let mut batch = unsafe {
                Box::new(Batch {
                    headers: std::mem::zeroed(),
                    vectors: std::mem::zeroed(),
                    senders: std::mem::zeroed(),
                    space,
                    used: BATCH,
                })
            };
            // The box's content and the vector's stay where they are, so the pointers are set once.
            let Batch { headers, vectors, senders, space, .. } = &mut *batch;
            for (index, header) in headers.iter_mut().enumerate() {
                // SAFETY: within the capacity, which is that of so many strides.
                let start = unsafe { space.as_mut_ptr().add(index * STRIDE) };
                vectors[index] = libc::iovec { iov_base: start.cast(), iov_len: LONGEST };
                header.msg_hdr.msg_name = (&raw mut senders[index]).cast();
                header.msg_hdr.msg_iov = &raw mut vectors[index];
                header.msg_hdr.msg_iovlen = 1;
                header.msg_hdr.msg_control = null_mut();
            }
            Some(batch)
        }

        /// Receives what is there, at most [`BATCH`] datagrams.
        fn fill(&mut self, fd: i32) -> io::Result<usize> {
            for header in &mut self.headers[..self.used] {
                header.msg_hdr.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
            }
            self.used = 0;
            // SAFETY: every header points into this batch, which outlives the call.
            let count = unsafe {
                libc::recvmmsg(fd, self.headers.as_mut_ptr(), BATCH as _, libc::MSG_DONTWAIT as _, null_mut())
            };
            if count < 0 {
                return Err(io::Error::last_os_error());
            }
            self.used = (count as usize).min(BATCH);
            Ok(self.used)
        }

        /// Datagram `index` of the last fill, as Python objects.
        fn take(&self, index: usize, this: This<'_, Datagram>, core: &Core) -> Result<(Ref, Ref), Raised> {
            let header = &self.headers[index];
            let length = (header.msg_len as usize).min(LONGEST);
            // SAFETY: the last fill has written so many bytes to this stride, which lies within the capacity, and an address
            // of this length to this place.
            let (data, sender) = unsafe {
                let storage = std::ptr::read(&raw const self.senders[index]);
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
                    core.reread(this.base.token.get());
                }
                deliver_all(this, core, &batch, count)
            }
            // A sandbox may know the older call only.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => receive_one(this, core),
            Err(error) => failed(this, core, &error),
        };
        SPARE.set(Some(batch));
        outcome
    }

    fn deliver_all(this: This<'_, Datagram>, core: &Core, batch: &Batch, count: usize) -> Result<(), Fatal> {
        let mut outcome = Outcome::default();
        for index in 0..count {
            if this.base.life.is_closing() {
                // What a closed socket still held is lost, in the kernel or here.
                break;
            }
            match batch.take(index, this, core) {
                Ok(taken) if this.base.paused.get() || outcome.is_fatal() => {
                    this.receiving.held_back.push_back(taken);
                }
                Ok((data, sender)) => outcome.note(deliver(this, core, data, &sender)),
                // No memory for it: this datagram is lost, as datagrams may be.
                Err(raised) => outcome.note(core.unraisable(raised)),
            }
        }
        outcome.finish().inspect_err(|_| keep_for_next_run(this, core))
    }
}
