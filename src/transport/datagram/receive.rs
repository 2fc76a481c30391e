//! From a datagram socket to the protocol.
//!
//! One receive per turn. A datagram that comes alone is cheapest to get with a plain `recvfrom`, so
//! that a request and its answer cost one `epoll_wait`, one `recvfrom` and one `sendto`; several that wait
//! with `recvmmsg`, which takes up to [`batch::BATCH`] of them, to be delivered under one hold of the GIL.
//! Nothing tells beforehand, so the last receive is the guess: after a plain one a batch is tried, and as
//! long as batches find more than one datagram they go on. A batch that finds one costs 80 ns more than
//! `recvfrom`, and a burst its first datagram apart. The registration is level-triggered, so what is left
//! is reported again and nothing has to be read until it is empty. After a batch of several the next turn reads
//! again without asking the poller ([`Core::busy`]): ten clients that are answered in turn then cost 0.1 polls per
//! datagram where it were 0.5.
//!
//! The batch's buffers belong to the thread, not to the transport, and are taken out while they are
//! delivered from: a protocol that runs another loop inside gets buffers of its own.

use std::io;

use crate::capi::error::{raise_io, take_exception};
use crate::capi::imports::imports;
use crate::capi::sockaddr::SockAddr;
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::core::{Core, RECEIVE};
use crate::reactor::Readiness;

use super::transport::Datagram;
use crate::transport::base::endpoint::{Caller, tell};

/// The socket is readable, or has an error that reading will tell.
#[inline(always)]
pub(crate) fn on_readable(datagram: &Datagram, core: &Core) -> Result<(), Fatal> {
    if !datagram.endpoint.reads_now(core) || !datagram.is_open() {
        return Ok(());
    }
    if !datagram.held_back().is_empty() {
        return deliver_held_back(datagram, core);
    }
    core.note_io();
    // Unix datagrams can be longer than a batch has room for.
    if batch::POSSIBLE && datagram.family != libc::AF_UNIX && datagram.expect_more.replace(true) {
        batch::receive(datagram, core)
    } else {
        receive_one(datagram, core)
    }
}

#[inline(always)]
fn receive_one(datagram: &Datagram, core: &Core) -> Result<(), Fatal> {
    let mut sender = SockAddr::room();
    let (address, length) = sender.places();
    let buffer = core.receive_buffer();
    // SAFETY: the buffer is valid for its length and copied before anything else can run; the places are
    // those of a live address.
    let count = unsafe {
        libc::recvfrom(
            datagram.descriptor(),
            buffer.as_mut_ptr().cast(),
            RECEIVE,
            libc::MSG_DONTWAIT,
            address,
            length,
        )
    };
    if count < 0 {
        return failed(datagram, core, &io::Error::last_os_error());
    }
    let data = core.spare_bytes.bytes_from(&buffer[..count as usize]);
    match data.and_then(|data| Ok((data, datagram.name(&sender)?))) {
        Ok((data, sender)) => {
            let delivered = deliver(datagram, core, &data, &sender);
            core.spare_bytes.keep(data);
            delivered
        }
        // No memory for it: this datagram is lost, as datagrams may be.
        Err(raised) => core.unraisable(raised),
    }
}

/// -1 from a receive: nothing there, or an error for the protocol.
#[cold]
fn failed(datagram: &Datagram, core: &Core, error: &io::Error) -> Result<(), Fatal> {
    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) {
        return Ok(());
    }
    let Raised = raise_io(error);
    error_received(datagram, core, Caller::Reading, &take_exception())
}

/// `protocol.error_received(exception)`, from the loop.
#[cold]
pub(crate) fn error_received(
    datagram: &Datagram,
    core: &Core,
    caller: Caller,
    exception: &Ref,
) -> Result<(), Fatal> {
    tell(datagram, core, caller, imports().error_received.as_ptr(), &[exception.as_ptr()])
}

#[inline(always)]
fn deliver(datagram: &Datagram, core: &Core, data: &Ref, sender: &Ref) -> Result<(), Fatal> {
    let name = imports().datagram_received.as_ptr();
    tell(datagram, core, Caller::Reading, name, &[data.as_ptr(), sender.as_ptr()])
}

/// Delivers what a pause has interrupted.
#[cold]
fn deliver_held_back(datagram: &Datagram, core: &Core) -> Result<(), Fatal> {
    while datagram.endpoint.is_reading() && datagram.is_open() {
        let Some((data, sender)) = datagram.held_back().pop_front() else { break };
        if let Err(fatal) = deliver(datagram, core, &data, &sender) {
            if !datagram.held_back().is_empty() {
                core.requeue(datagram.endpoint.token.get(), Readiness::READABLE);
            }
            return Err(fatal);
        }
    }
    Ok(())
}

/// How many senders are remembered: what four bits of a hash can name.
const PEERS: usize = 16;
/// The longest address that is: that of an IPv6 socket.
const KEY: usize = size_of::<libc::sockaddr_in6>();

#[derive(Debug)]
struct Peer {
    key: [u8; KEY],
    length: usize,
    name: Ref,
}

/// Senders that were here before, with the tuples that their addresses became: most datagrams come from a
/// few peers, and a tuple costs about as much as a copy of its datagram.
#[derive(Debug, Default)]
pub(crate) struct Peers(Option<Box<[Option<Peer>; PEERS]>>);

impl Datagram {
    /// A sender's address as Python shows it.
    #[inline(always)]
    fn name(&self, sender: &SockAddr) -> Result<Ref, Raised> {
        let bytes = sender.as_bytes();
        if self.family == libc::AF_UNIX || bytes.len() > KEY {
            return Ok(sender.as_python()?.unwrap_or_else(Ref::none));
        }
        // SAFETY: GIL held; nothing runs while the table is borrowed, what leaves it is dropped afterwards.
        let table = unsafe { &mut (*self.peers.get()).0 };
        let table = table.get_or_insert_with(|| Box::new([const { None }; PEERS]));
        let index = slot(bytes);
        self.last_named.set(index);
        let place = &mut table[index];
        if let Some(peer) = place
            && peer.length == bytes.len()
            && peer.key[..peer.length] == *bytes
        {
            return Ok(peer.name.clone_ref());
        }
        let name = sender.as_python()?.unwrap_or_else(Ref::none);
        let mut key = [0; KEY];
        key[..bytes.len()].copy_from_slice(bytes);
        let old = place.replace(Peer { key, length: bytes.len(), name: name.clone_ref() });
        drop(old);
        Ok(name)
    }

    /// The address behind `name`, if that is the very tuple that the last sender was shown as: most answers go to
    /// whoever has asked.
    #[inline(always)]
    pub(super) fn sender_named(&self, name: &Ref) -> Option<SockAddr> {
        // SAFETY: GIL held; nothing runs while the table is borrowed.
        let table = unsafe { &(*self.peers.get()).0 };
        let peer = table.as_ref()?[self.last_named.get()].as_ref()?;
        // SAFETY: the first `length` bytes of the key are an address that the kernel has written.
        (peer.name.as_ptr() == name.as_ptr())
            .then(|| unsafe { SockAddr::copied(peer.key.as_ptr().cast(), peer.length as libc::socklen_t) })
    }
}

/// Where a peer is remembered: its words folded, and the best bits of a product of them.
#[inline(always)]
fn slot(address: &[u8]) -> usize {
    let word = |bytes: &[u8]| bytes.iter().fold(0, |word: u32, byte| word << 8 | u32::from(*byte));
    let folded = address.chunks_exact(4).fold(0, |hash: u32, bytes| hash.rotate_left(5) ^ word(bytes));
    folded.wrapping_mul(0x9e37_79b1) as usize >> 28
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod batch {
    //! `recvmmsg` and its buffers.

    use std::cell::Cell;
    use std::ptr::null_mut;

    use super::{
        Core, Datagram, Fatal, Raised, Readiness, Ref, SockAddr, deliver, failed, io, receive_one,
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
        fn take(&self, index: usize, datagram: &Datagram, core: &Core) -> Result<(Ref, Ref), Raised> {
            let header = &self.headers[index];
            let length = (header.msg_len as usize).min(LONGEST);
            // SAFETY: the last fill has written so many bytes to this stride, which lies within the capacity.
            let data =
                unsafe { std::slice::from_raw_parts(self.vectors[index].iov_base.cast::<u8>(), length) };
            let data = core.spare_bytes.bytes_from(data)?;
            let sender = SockAddr::written(self.senders[index], header.msg_hdr.msg_namelen);
            Ok((data, datagram.name(&sender)?))
        }
    }

    pub(super) fn receive(datagram: &Datagram, core: &Core) -> Result<(), Fatal> {
        let Some(mut batch) = SPARE.take().or_else(Batch::new) else { return receive_one(datagram, core) };
        let outcome = match batch.fill(datagram.descriptor()) {
            Ok(count) => {
                datagram.expect_more.set(count > 1);
                if count > 1 {
                    core.reread(datagram.endpoint.token.get());
                }
                deliver_all(datagram, core, &batch, count)
            }
            // A sandbox may know the older call only.
            Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => receive_one(datagram, core),
            Err(error) => failed(datagram, core, &error),
        };
        SPARE.set(Some(batch));
        outcome
    }

    fn deliver_all(datagram: &Datagram, core: &Core, batch: &Batch, count: usize) -> Result<(), Fatal> {
        for index in 0..count {
            if !datagram.is_open() {
                // What a closed socket still held is lost, in the kernel or here.
                break;
            }
            match batch.take(index, datagram, core) {
                Ok(taken) if datagram.endpoint.paused.get() => datagram.held_back().push_back(taken),
                Ok((data, sender)) => {
                    let delivered = deliver(datagram, core, &data, &sender);
                    core.spare_bytes.keep(data);
                    if delivered.is_err() {
                        return Err(interrupted(datagram, core, batch, index + 1..count));
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
    fn interrupted(datagram: &Datagram, core: &Core, batch: &Batch, rest: std::ops::Range<usize>) -> Fatal {
        let exception = take_exception();
        for index in rest {
            match batch.take(index, datagram, core) {
                Ok(taken) => datagram.held_back().push_back(taken),
                Err(raised) => drop(raised.take()),
            }
        }
        core.requeue(datagram.endpoint.token.get(), Readiness::READABLE);
        raise(exception);
        Fatal
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod batch {
    //! Systems without `recvmmsg`.

    use super::{Core, Datagram, Fatal, receive_one};

    pub(super) const POSSIBLE: bool = false;

    pub(super) fn receive(datagram: &Datagram, core: &Core) -> Result<(), Fatal> {
        receive_one(datagram, core)
    }
}
