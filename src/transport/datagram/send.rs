//! From the protocol to a datagram socket.
//!
//! The first datagram of a turn is sent at once, as asyncio sends every one. From the second on they are
//! kept and leave at the end of the turn, up to [`BATCH`] per `sendmmsg`: an answer to one request costs no
//! detour, a burst costs a fraction of the system calls. What is kept is no write buffer in asyncio's
//! sense, only what asyncio would have sent already; so it is sent before the buffer's size is read and before a close or an abort, and it is sent early when it grows large or once the transport is closing.
//!
//! What the socket refuses stays in the same queue until there is room, and counts against the high-water
//! mark. An error of the socket belongs to the datagram at the head: that one is given up and
//! `error_received` is called, as in asyncio. (One kind of error is not seen: the kernel forgets an ICMP error
//! that comes in between two datagrams of one `sendmmsg`.)

use std::io;
use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::receive::error_received;
use super::state::{Datagram, Outgoing, Target};
use crate::capi::buffer::{Buffer, bytes_from, is_scattered};
use crate::capi::error::{raise, raise_io, take_exception};
use crate::capi::imports::imports;
use crate::capi::inspect::clear_error;
use crate::capi::sockaddr::SockAddr;
use crate::capi::{Borrowed, Exception, Fatal, Raised, Ref, This};
use crate::event_loop::core::Core;
use crate::transport::base::closing::{fatal_error, finish, watch_or_lose, watch_or_raise};
use crate::transport::base::flow_control::{maybe_pause, maybe_resume};
use crate::transport::base::reporting::Caller;

const WRITE_AFTER_LOST: &str = "write_after_lost";
/// Datagrams per system call, and how many are kept at most until the end of a turn.
const BATCH: usize = 64;
/// From so many bytes on, what is kept is sent early.
const EARLY: usize = 64 * 1024;

#[cfg(any(target_os = "linux", target_os = "android"))]
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const FLAGS: i32 = libc::MSG_DONTWAIT;

/// How an attempt to send one or more datagrams ended.
enum Sent {
    /// So many from the head of the queue are with the kernel.
    Some(usize),
    /// The socket takes no more for now.
    Blocked,
    /// The datagram cannot be sent: the exception is for `error_received`.
    Refused(Ref),
    /// The transport cannot go on: an error that is none of the socket's is set. Comes of a
    /// [`Target::Python`] only.
    Broken,
}

impl Sent {
    /// What -1 from the system means.
    fn from_last_error() -> Sent {
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Sent::Blocked,
            _ => {
                let Raised = raise_io(&error);
                Sent::Refused(take_exception())
            }
        }
    }
}

/// What `sendto` is given: a bytes object, or a view of something that may change.
enum Data {
    Bytes(Ref),
    View(Buffer),
}

impl Data {
    #[inline(always)]
    fn of(data: Borrowed<'_>) -> Result<Data, Raised> {
        if data.bytes().is_some() {
            return Ok(Data::Bytes(data.to_owned()));
        }
        if !data.is_bytes_like() {
            return Err(refuse(data));
        }
        Buffer::readable(data.as_ptr()).map(Data::View)
    }

    /// The content. Not kept across anything that may run Python code, which could change it.
    #[inline(always)]
    fn as_slice(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes.bytes().unwrap_or_default(),
            Data::View(view) => view.as_slice(),
        }
    }

    /// The content for later: itself if it cannot change, or a copy.
    fn keep(self) -> Result<Ref, Raised> {
        match self {
            Data::Bytes(bytes) => Ok(bytes),
            Data::View(view) => bytes_from(view.as_slice()),
        }
    }
}

/// asyncio's TypeError for what is not bytes-like.
#[cold]
fn refuse(data: Borrowed<'_>) -> Raised {
    let py = data.py();
    match data.bind(py).get_type().name().and_then(|name| name.repr()) {
        Ok(name) => {
            Exception::TypeError.raise(&format!("data argument must be a bytes-like object, not {name}"))
        }
        Err(error) => error.into(),
    }
}

/// `transport.sendto(data, addr)`.
#[inline(always)]
pub(super) fn sendto(
    this: This<'_, Datagram>,
    data: Borrowed<'_>,
    address: Borrowed<'_>,
) -> Result<(), Raised> {
    let outgoing = match Data::of(data) {
        Ok(data) => data,
        Err(_) if is_scattered() => return scattered(this, data, address),
        Err(raised) => return Err(raised),
    };
    if !this.rules.sends_empty && outgoing.as_slice().is_empty() {
        return Ok(());
    }
    let address = check_address(this, address)?;
    if is_lost(this) {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    let target = target(this, &address);
    let core = this.base.core();
    core.note_io();
    let sending = &this.sending;
    let apart = matches!(target, Target::Python(_));
    if apart && !sending.queue().is_empty() {
        // It may be wrong, which is an error at once and in its turn.
        send_queued(this)?;
        if this.base.life.is_closed() {
            return this.write_to_lost(WRITE_AFTER_LOST);
        }
    }
    if sending.queue().is_empty() && !sending.blocked.get() && (apart || !waits_for_end_of_turn(this, core)) {
        sending.sent_in.set(core.counters.turns.get());
        match send_now(this, outgoing.as_slice(), &target) {
            Sent::Some(_) => return Ok(()),
            Sent::Blocked => {
                sending.blocked.set(true);
                watch_or_raise(this, core).inspect_err(|_| sending.blocked.set(false))?;
            }
            Sent::Refused(exception) => return refused(this, &exception),
            Sent::Broken => return Ok(broken(this)?),
        }
    }
    let outgoing = Outgoing { bytes: outgoing.keep()?, target };
    sending.size.set(sending.size.get() + size_of_one(this, &outgoing));
    sending.queue().push_back(outgoing);
    kept(this, core)
}

/// Is what is sent now dropped? One that has no address of its own to send to goes on while it can, as in asyncio.
fn is_lost(this: This<'_, Datagram>) -> bool {
    this.base.life.is_closed() || (this.base.life.is_lost() && !this.address.is_empty())
}

/// Data that does not lie in memory in one piece, with the error that says so. A datagram that has to wait is copied
/// first.
#[cold]
fn scattered(this: This<'_, Datagram>, data: Borrowed<'_>, address: Borrowed<'_>) -> Result<(), Raised> {
    let exception = take_exception();
    check_address(this, address)?;
    if is_lost(this) {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    send_queued(this)?;
    if !this.base.life.is_closed() && !this.sending.queue().is_empty() {
        return sendto(this, data.to_bytes()?.borrow(), address);
    }
    raise(exception);
    Ok(broken(this)?)
}

/// Does a datagram that could be sent now wait for the end of the turn?
#[inline(always)]
fn waits_for_end_of_turn(this: This<'_, Datagram>, core: &Core) -> bool {
    core.is_running()
        && !this.base.life.is_closing()
        && this.sending.sent_in.get() == core.counters.turns.get()
}

/// After a datagram was put into the queue: decides when it leaves.
fn kept(this: This<'_, Datagram>, core: &Core) -> Result<(), Raised> {
    let sending = &this.sending;
    if sending.blocked.get() {
        return maybe_pause(this);
    }
    let size = sending.size.get();
    let early = size >= EARLY || size > this.base.marks.high.get() || sending.queue().len() >= BATCH;
    if !early && waits_for_end_of_turn(this, core) {
        if !sending.queued.replace(true) {
            core.flush_later(this.object().to_owned(), flush);
            core.wake_if_parked();
        }
        return Ok(());
    }
    send_queued(this)?;
    maybe_pause(this)
}

/// The address that a datagram goes to: the only one allowed, if there is one.
#[inline(always)]
fn check_address(this: This<'_, Datagram>, address: Borrowed<'_>) -> Result<Ref, Raised> {
    let Some(only) = this.address.get() else { return Ok(address.to_owned()) };
    if address.is_none() || address.equals(&only)? {
        return Ok(only);
    }
    let text = only.bind(only.py()).str()?;
    let text = format!("Invalid address: must be None or {}", text.to_string_lossy());
    Err(Exception::ValueError.raise(&text))
}

/// `error_received` from inside `sendto`: called in the sender's context, and what it raises is the sender's.
#[cold]
fn refused(this: This<'_, Datagram>, exception: &Ref) -> Result<(), Raised> {
    match this.protocol.get() {
        Some(protocol) => protocol.call_method(&imports().error_received, &[exception.borrow()]).map(drop),
        None => Ok(()),
    }
}

#[cold]
fn broken(this: This<'_, Datagram>) -> Result<(), Fatal> {
    fatal_error(this, Raised, "Fatal write error on datagram transport")
}

/// What a datagram counts in the write buffer.
fn size_of_one(this: This<'_, Datagram>, outgoing: &Outgoing) -> usize {
    outgoing.content().len() + this.rules.header
}

/// What an address means to the kernel.
#[inline(always)]
fn target(this: This<'_, Datagram>, address: &Ref) -> Target {
    if this.rules.connected {
        return Target::Peer;
    }
    if let Some(sender) = this.receiving.peers.sender_named(address) {
        return Target::Address(sender);
    }
    // SAFETY: loop thread only; the borrow ends before what leaves the cell is dropped.
    let last = unsafe { &mut *this.sending.last_target.get() };
    if let Some((known, target)) = last
        && known.is(address)
    {
        return Target::Address(*target);
    }
    match SockAddr::from_python(this.rules.family, address) {
        Some(target) => {
            // Tuples, strings and bytes of exactly these types: they cannot change, so their identity stands for their
            // meaning as long as this reference keeps them alive.
            let old = last.replace((address.clone_ref(), target));
            drop(old);
            Target::Address(target)
        }
        None => Target::Python(address.clone_ref()),
    }
}

/// One datagram, now.
#[inline(always)]
fn send_now(this: This<'_, Datagram>, data: &[u8], target: &Target) -> Sent {
    let fd = this.descriptor();
    let (address, length) = match target {
        Target::Peer => (std::ptr::null(), 0),
        Target::Address(address) => (address.as_ptr(), address.len()),
        Target::Python(address) => {
            return match bytes_from(data) {
                Ok(bytes) => send_by_python(this, &bytes, address),
                Err(Raised) => Sent::Broken,
            };
        }
    };
    // SAFETY: data and address are valid for their lengths.
    let sent = unsafe { libc::sendto(fd, data.as_ptr().cast(), data.len(), FLAGS, address, length) };
    if sent < 0 { Sent::from_last_error() } else { Sent::Some(1) }
}

/// `socket.sendto(bytes, address)`: looks names up, and says what is wrong with an address.
#[cold]
fn send_by_python(this: This<'_, Datagram>, bytes: &Ref, address: &Ref) -> Sent {
    let Some(socket) = this.base.owner.get() else { return Sent::Some(1) };
    let arguments = [bytes.borrow(), address.borrow()];
    let Err(Raised) = socket.call_method(&imports().sendto, &arguments) else { return Sent::Some(1) };
    if Exception::BlockingIOError.is_set() || Exception::InterruptedError.is_set() {
        clear_error();
        return Sent::Blocked;
    }
    if !Exception::OSError.is_set() {
        return Sent::Broken;
    }
    Sent::Refused(take_exception())
}

/// Sends from the head of the queue.
fn send_head(this: This<'_, Datagram>) -> Sent {
    let pending = this.sending.queue();
    let plain = pending.iter().take(BATCH).take_while(|it| !matches!(it.target, Target::Python(_))).count();
    match (plain, pending.front()) {
        (_, None) => Sent::Some(0),
        (0, Some(_)) => {
            let Some(head) = pending.pop_front() else { return Sent::Some(0) };
            send_apart(this, head)
        }
        (1, Some(head)) => send_now(this, head.content(), &head.target),
        (count, Some(_)) => send_many(this.descriptor(), pending.iter().take(count)),
    }
}

/// Sends one datagram by Python's socket. It is out of the queue meanwhile, which may change: Python runs.
#[cold]
fn send_apart(this: This<'_, Datagram>, head: Outgoing) -> Sent {
    let size = size_of_one(this, &head);
    this.sending.size.set(this.sending.size.get().saturating_sub(size));
    let Target::Python(address) = &head.target else { return Sent::Some(0) };
    match send_by_python(this, &head.bytes, address) {
        Sent::Blocked => {
            this.sending.size.set(this.sending.size.get() + size);
            this.sending.queue().push_front(head);
            Sent::Blocked
        }
        // It is gone from the queue already.
        Sent::Some(_) => Sent::Some(0),
        other => other,
    }
}

/// Several datagrams in one system call.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn send_many<'a>(fd: RawFd, datagrams: impl Iterator<Item = &'a Outgoing> + Clone) -> Sent {
    use std::mem::MaybeUninit;

    // Not as a whole: zeros for a full batch cost more than the few datagrams that most have.
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut filled = 0;
    for ((vector, header), datagram) in vectors.iter_mut().zip(&mut headers).zip(datagrams.clone()) {
        let data = datagram.content();
        // SAFETY: valid when zero.
        let header = header.write(unsafe { std::mem::zeroed() });
        header.msg_hdr.msg_iov =
            vector.write(libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() });
        header.msg_hdr.msg_iovlen = 1;
        if let Target::Address(address) = &datagram.target {
            header.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = address.len();
        }
        filled += 1;
    }
    // SAFETY: so many headers were filled, with pointers to what outlives the call; `sendmmsg` only reads
    // through them.
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr().cast(), filled, FLAGS as _) };
    if sent >= 0 {
        return Sent::Some(sent as usize);
    }
    match io::Error::last_os_error().raw_os_error() {
        // A sandbox may know the older calls only.
        Some(libc::ENOSYS) => send_each(fd, datagrams),
        _ => Sent::from_last_error(),
    }
}

/// Systems without `sendmmsg`.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
use send_each as send_many;

/// The same in as many system calls.
fn send_each<'a>(fd: RawFd, datagrams: impl Iterator<Item = &'a Outgoing>) -> Sent {
    let mut sent = 0;
    for datagram in datagrams {
        let (address, length) = match &datagram.target {
            Target::Address(address) => (address.as_ptr(), address.len()),
            _ => (std::ptr::null(), 0),
        };
        let data = datagram.content();
        // SAFETY: data and address are valid for their lengths.
        let result = unsafe { libc::sendto(fd, data.as_ptr().cast(), data.len(), FLAGS, address, length) };
        if result < 0 {
            return if sent > 0 { Sent::Some(sent) } else { Sent::from_last_error() };
        }
        sent += 1;
    }
    Sent::Some(sent)
}

/// Takes `count` datagrams from the head of the queue.
fn drop_head(this: This<'_, Datagram>, count: usize) {
    let mut gone = Vec::with_capacity(count);
    let mut size = 0;
    for outgoing in this.sending.queue().drain(..count.min(this.sending.queue().len())) {
        size += size_of_one(this, &outgoing);
        let Outgoing { bytes, target } = outgoing;
        gone.push(bytes);
        if let Target::Python(address) = target {
            gone.push(address);
        }
    }
    this.sending.size.set(this.sending.size.get().saturating_sub(size));
    drop(gone);
}

/// Sends until the queue is empty or the socket is full. `report` brings an exception to `error_received`.
fn send_all(
    this: This<'_, Datagram>,
    core: &Core,
    report: impl Fn(&Ref) -> Result<(), Raised>,
) -> Result<(), Raised> {
    core.note_io();
    this.sending.blocked.set(false);
    this.sending.sent_in.set(core.counters.turns.get());
    while let Some(head) = this.sending.queue().front() {
        let apart = matches!(head.target, Target::Python(_));
        match send_head(this) {
            Sent::Some(count) => drop_head(this, count),
            Sent::Blocked => {
                this.sending.blocked.set(true);
                break;
            }
            Sent::Refused(exception) => {
                if !apart {
                    drop_head(this, 1);
                }
                report(&exception)?;
            }
            Sent::Broken => broken(this).map_err(|Fatal| Raised)?,
        }
    }
    Ok(())
}

/// Sends what is only kept until the end of the turn, for a caller in Python that must not see the delay.
/// `error_received` is called as from `sendto`: the transport's context may be entered already.
pub(super) fn send_queued(this: This<'_, Datagram>) -> Result<(), Raised> {
    if this.sending.blocked.get() || this.sending.queue().is_empty() || this.base.life.is_closed() {
        return Ok(());
    }
    let core = this.base.core();
    let sent = send_all(this, core, |exception| refused(this, exception));
    if sent.is_err() && !this.sending.queue().is_empty() && !this.sending.queued.replace(true) {
        // error_received has raised, which is the caller's; the rest leaves at the end of the turn.
        core.flush_later(this.object().to_owned(), flush);
    }
    sent?;
    watch_or_lose(this, core).map_err(|Fatal| Raised)
}

/// At the end of a turn, or when the socket has room again.
pub(super) fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Datagram>() else { return Ok(()) };
    this.sending.queued.set(false);
    if this.base.life.is_closed() || this.sending.queue().is_empty() {
        return Ok(());
    }
    send_all(this, core, |exception| {
        error_received(this, core, Caller::Sending, exception).map_err(|Fatal| Raised)
    })
    // What error_received raises was reported, so only a fatal error comes out.
    .map_err(|Raised| Fatal)?;
    maybe_resume(this)?;
    if this.sending.queue().is_empty() {
        if this.base.life.is_closing() && !this.base.life.is_lost() {
            return finish(this, core);
        }
    } else {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        maybe_pause(this).or_else(|raised| core.unraisable(raised))?;
    }
    watch_or_lose(this, core)
}
