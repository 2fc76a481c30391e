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

use crate::capi::error::{raise_io, take_exception};
use crate::capi::imports::imports;
use crate::capi::sockaddr::SockAddr;
use crate::capi::{Fatal, Raised, Ref, This};
use crate::event_loop::core::{Core, RECEIVE};
use crate::reactor::Readiness;

use super::state::Datagram;
use crate::transport::base::reporting::{Caller, notify};

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
    if batch::POSSIBLE && this.rules.family != libc::AF_UNIX && this.receiving.expects_more.replace(true) {
        batch::receive(this, core)
    } else {
        receive_one(this, core)
    }
}

#[inline(always)]
fn receive_one(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    let mut sender = SockAddr::room();
    let (address, length) = sender.places();
    let buffer = core.receive_buffer();
    // SAFETY: the buffer is valid for its length and copied before anything else can run; the places are
    // those of a live address.
    let count = unsafe {
        libc::recvfrom(
            this.descriptor(),
            buffer.as_mut_ptr().cast(),
            RECEIVE,
            libc::MSG_DONTWAIT,
            address,
            length,
        )
    };
    if count < 0 {
        return failed(this, core, &io::Error::last_os_error());
    }
    let data = core.bytes_cache.bytes_from(&buffer[..count as usize]);
    match data.and_then(|data| Ok((data, this.receiving.peers.name(this.rules.family, &sender)?))) {
        Ok((data, sender)) => {
            let delivered = deliver(this, core, &data, &sender);
            core.bytes_cache.keep(data);
            delivered
        }
        // No memory for it: this datagram is lost, as datagrams may be.
        Err(raised) => core.unraisable(raised),
    }
}

/// -1 from a receive: nothing there, or an error for the protocol.
#[cold]
fn failed(this: This<'_, Datagram>, core: &Core, error: &io::Error) -> Result<(), Fatal> {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
        return Ok(());
    }
    let Raised = raise_io(error);
    error_received(this, core, Caller::Reading, &take_exception())
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
fn deliver(this: This<'_, Datagram>, core: &Core, data: &Ref, sender: &Ref) -> Result<(), Fatal> {
    notify(this, core, Caller::Reading, &imports().datagram_received, &[data.borrow(), sender.borrow()])
}

/// Delivers what a pause has interrupted.
#[cold]
fn deliver_held_back(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    while this.base.awaits_data() {
        let Some((data, sender)) = this.receiving.held_back.pop_front() else { break };
        if let Err(fatal) = deliver(this, core, &data, &sender) {
            if !this.receiving.held_back.is_empty() {
                core.requeue(this.base.token.get(), Readiness::READABLE);
            }
            return Err(fatal);
        }
    }
    Ok(())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod batch {
    //! `recvmmsg` and its buffers.

    use std::cell::Cell;
    use std::ptr::null_mut;

    use super::{
        Core, Datagram, Fatal, Raised, Readiness, Ref, SockAddr, This, deliver, failed, io, receive_one,
        take_exception,
    };
    use crate::capi::error::raise;

    pub(super) const POSSIBLE: bool = true;

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
        senders: [libc::sockaddr_storage; BATCH],
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
                header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
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
            // SAFETY: the last fill has written so many bytes to this stride, which lies within the capacity.
            let data =
                unsafe { std::slice::from_raw_parts(self.vectors[index].iov_base.cast::<u8>(), length) };
            let data = core.bytes_cache.bytes_from(data)?;
            let sender = SockAddr::written(self.senders[index], header.msg_hdr.msg_namelen);
            Ok((data, this.receiving.peers.name(this.rules.family, &sender)?))
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
        for index in 0..count {
            if this.base.life.is_closing() {
                // What a closed socket still held is lost, in the kernel or here.
                break;
            }
            match batch.take(index, this, core) {
                Ok(taken) if this.base.paused.get() => this.receiving.held_back.push_back(taken),
                Ok((data, sender)) => {
                    let delivered = deliver(this, core, &data, &sender);
                    core.bytes_cache.keep(data);
                    if delivered.is_err() {
                        return Err(interrupted(this, core, batch, index + 1..count));
                    }
                }
                // No memory for it: this datagram is lost, as datagrams may be.
                Err(raised) => core.unraisable(raised)?,
            }
        }
        Ok(())
    }

    /// A fatal error leaves the loop in the middle of a batch: the rest is kept for the next run.
    #[cold]
    fn interrupted(
        this: This<'_, Datagram>,
        core: &Core,
        batch: &Batch,
        rest: std::ops::Range<usize>,
    ) -> Fatal {
        let exception = take_exception();
        for index in rest {
            match batch.take(index, this, core) {
                Ok(taken) => this.receiving.held_back.push_back(taken),
                Err(raised) => drop(raised.take()),
            }
        }
        core.requeue(this.base.token.get(), Readiness::READABLE);
        raise(exception);
        Fatal
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod batch {
    //! Systems without `recvmmsg`.

    use super::{Core, Datagram, Fatal, This, receive_one};

    pub(super) const POSSIBLE: bool = false;

    pub(super) fn receive(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
        receive_one(this, core)
    }
}
