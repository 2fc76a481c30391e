//! Sends datagrams.
//!
//! A datagram is sent before `sendto` returns, unless the next one is due (`transport/base/write_habit.rs`): it is then
//! queued, and the queue is sent by one `sendmmsg` for up to [`BATCH`] datagrams. asyncio would have sent the queued
//! datagrams already. Therefore they are sent at the end of the step, before another transport sends, before the size of
//! the write buffer is read, before `close` and `abort`, and when the queue grows large.
//!
//! Datagrams that the socket does not accept stay in the same queue until it has room, and count against the high-water
//! mark. An error of the socket belongs to the first datagram of the queue: as in asyncio, that datagram is dropped and
//! `error_received` is called. One kind of error is never reported: the kernel drops an ICMP error that arrives between
//! two datagrams of one `sendmmsg`.

use std::ffi::CStr;
use std::io;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::receive::error_received;
use super::state::{Datagram, Outgoing, Target};
use crate::capi::audit::has_hook;
use crate::capi::buffer::{Content, bytes_from, is_scattered};
use crate::capi::error::{exception_about, handling, no_memory, raise, raise_os_error, take_exception};
use crate::capi::fallible::tuple;
use crate::capi::imports::imports;
use crate::capi::inspect::clear_error;
use crate::capi::sockaddr;
use crate::capi::socket::{SEND_FLAGS, with_socket};
use crate::capi::{Borrowed, Exception, Fallible, Fatal, Raised, Ref, This};
use crate::clock::ticks;
use crate::compat::sockets::{self, Use};
use crate::kernel::core::Core;
use crate::recorder::event::Kind;
use crate::transport::base::closing::{fatal_error, watch_or_lose, watch_or_raise};
use crate::transport::base::flow_control::{after_send, maybe_pause};
use crate::transport::base::reporting::Caller;
use crate::transport::base::transport::TransportKind;
use crate::transport::base::write_habit::Departure;

const WRITE_AFTER_LOST: &str = "write_after_lost";
/// The most datagrams per system call, and in the queue while another one is due.
const BATCH: usize = 64;
/// If this many bytes are queued, they are sent at once.
const EARLY: usize = 64 * 1024;

/// The outcome of an attempt to send one or more datagrams.
enum Sent {
    /// The kernel has accepted this many datagrams from the front of the queue.
    Some(usize),
    /// The socket is full.
    Blocked,
    /// The first datagram cannot be sent. The exception is for `error_received`.
    Refused(Ref),
    /// The transport has to be closed: an error is set that is not an OSError. Only a [`Target::Python`] causes this.
    Broken,
}

impl Sent {
    #[cold]
    fn failed(error: &io::Error) -> Sent {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Sent::Blocked,
            _ => Sent::Refused(raise_os_error(error).take()),
        }
    }
}

/// asyncio's TypeError for data that is not bytes-like.
#[cold]
fn refuse(data: Borrowed<'_>) -> Raised {
    const MESSAGE: &CStr = c"data argument must be a bytes-like object, not %R";
    let name = data.bind(data.py()).get_type().name();
    name.map_or_else(|error| error, |name| exception_about::<PyTypeError>(MESSAGE, name.as_any())).into()
}

/// `transport.sendto(data, addr)`.
#[inline(always)]
pub(super) fn sendto(
    this: This<'_, Datagram>,
    data: Borrowed<'_>,
    address: Borrowed<'_>,
) -> Result<(), Raised> {
    let content = match Content::of(data) {
        Ok(Some(content)) => content,
        Ok(None) => return Err(refuse(data)),
        Err(_) if is_scattered() => return scattered(this, data, address),
        Err(raised) => return Err(raised),
    };
    if !this.rules.sends_empty && content.as_slice().is_empty() {
        return Ok(());
    }
    let address = check_address(this, address)?;
    if is_lost(this) {
        return this.write_to_lost(WRITE_AFTER_LOST);
    }
    let target = if is_observed() { observed(this, &address) } else { target(this, &address) };
    let core = this.base.core();
    core.note_io();
    let sending = &this.sending;
    core.send_others(sending.queued.get()).map_err(|Fatal| Raised)?;
    let departure = departure(this, core);
    let by_python = matches!(target, Target::Python(_));
    if by_python && !sending.queue().is_empty() {
        // The address may be wrong, which is an error at once. So the queued datagrams are sent first.
        send_queued(this)?;
        if this.base.life.is_closed() {
            return this.write_to_lost(WRITE_AFTER_LOST);
        }
    }
    if sending.queue().is_empty() && !sending.blocked.get() && (by_python || departure == Departure::Now) {
        match send_now(this, content.as_slice(), &target) {
            Sent::Some(_) => return Ok(()),
            Sent::Blocked => {
                sending.blocked.set(true);
                watch_or_raise(this, core).inspect_err(|_| sending.blocked.set(false))?;
            }
            Sent::Refused(exception) => return refused(this, &exception),
            Sent::Broken => return Ok(broken(this)?),
        }
    }
    let outgoing = Outgoing { bytes: content.keep(0)?.0, target };
    sending.queue().try_reserve(1).map_err(|_| no_memory())?;
    sending.size.set(sending.size.get() + size_of_one(this, &outgoing));
    sending.queue().push_back(outgoing);
    after_queueing(this, core, departure)
}

/// Can the program see which methods of the socket are called?
#[inline(always)]
fn is_observed() -> bool {
    has_hook() || !sockets::are_unpatched(Use::Datagrams)
}

#[cold]
fn observed(this: This<'_, Datagram>, address: &Ref) -> Target {
    Target::Python((!this.rules.connected).then(|| address.clone_ref()))
}

/// asyncio's `_buffer`, as a copy: the datagrams that wait for the socket, each with its address.
pub(super) fn buffer(this: This<'_, Datagram>) -> Result<Ref, Raised> {
    send_queued(this)?;
    let py = this.py();
    let deque = py.import(Fallible("collections"))?.getattr(Fallible("deque"))?.call0()?;
    for outgoing in this.sending.queue().iter() {
        let address = match (this.address.get(), &outgoing.target) {
            (None, Target::Address(address)) => sockaddr::to_python(address)?,
            (None, Target::Python(Some(address))) => address.clone_ref(),
            (only, _) => only.unwrap_or_else(Ref::none),
        };
        let pair = tuple([outgoing.bytes.clone_ref(), address])?;
        deque.call_method1(Fallible("append"), (pair.bind(py),))?;
    }
    Ok(deque.into())
}

/// Is a datagram that is sent now dropped? As in asyncio, a transport without a fixed address sends until it is closed.
fn is_lost(this: This<'_, Datagram>) -> bool {
    this.base.life.is_closed() || (this.base.life.is_lost() && !this.address.is_empty())
}

/// Handles a non-contiguous buffer, for which an error is set: sends the queued datagrams first, and then fails as
/// asyncio does. Only a datagram that has to wait is copied.
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
    let Raised = raise(exception);
    Ok(broken(this)?)
}

/// Decides when a datagram leaves that is sent now.
#[inline(always)]
fn departure(this: This<'_, Datagram>, core: &Core) -> Departure {
    if this.sending.blocked.get() {
        return Departure::WithNext;
    }
    let (habit, step, now) = (&this.sending.habit, core.writes.step(), ticks());
    let departure = match this.sending.batch.get() {
        None => habit.next(step, now),
        Some(more) => habit.next_in_batch(step, now, more),
    };
    if core.is_in_step() && !this.base.life.is_closing() { departure } else { Departure::Now }
}

/// Called after a datagram was queued. Decides when it is sent.
fn after_queueing(this: This<'_, Datagram>, core: &Core, departure: Departure) -> Result<(), Raised> {
    let sending = &this.sending;
    if sending.blocked.get() {
        return maybe_pause(this);
    }
    let size = sending.size.get();
    let early = size >= EARLY || size > this.base.marks.high.get() || sending.queue().len() >= BATCH;
    if !early && departure == Departure::WithNext {
        if !sending.queued.replace(true) {
            core.flush_later(this.object().to_owned(), flush);
        }
        return Ok(());
    }
    send_all_queued(this, core)?;
    maybe_pause(this)
}

/// The address for a datagram. Raises if the transport has a fixed address and this is another one.
#[inline(always)]
fn check_address(this: This<'_, Datagram>, address: Borrowed<'_>) -> Result<Ref, Raised> {
    let Some(only) = this.address.get() else { return Ok(address.to_owned()) };
    if address.is_none() || address.equals(&only)? {
        return Ok(only);
    }
    let message = c"Invalid address: must be None or %S";
    Err(exception_about::<PyValueError>(message, &only.bind(only.py())).into())
}

/// Calls `error_received` inside of `sendto`: in the current context, and an exception is raised to the caller.
#[cold]
fn refused(this: This<'_, Datagram>, exception: &Ref) -> Result<(), Raised> {
    this.sending.send_next_at_once();
    match this.protocol.get() {
        Some(protocol) => handling(exception, || {
            protocol.call_method(&imports().error_received, &[exception.borrow()]).map(drop)
        }),
        None => Ok(()),
    }
}

#[cold]
fn broken(this: This<'_, Datagram>) -> Result<(), Fatal> {
    fatal_error(this, Raised, "Fatal write error on datagram transport")
}

/// The size of a datagram in the write buffer.
fn size_of_one(this: This<'_, Datagram>, outgoing: &Outgoing) -> usize {
    outgoing.content().len() + this.rules.header
}

/// The kernel's form of an address.
#[inline(always)]
fn target(this: This<'_, Datagram>, address: &Ref) -> Target {
    if this.rules.connected {
        return Target::Peer;
    }
    if let Some(sender) = this.receiving.peers.sender_named(address) {
        return Target::Address(sender);
    }
    // SAFETY: only the loop's thread uses the cell, and the borrow ends before the old value is dropped.
    let last = unsafe { &mut *this.sending.last_target.get() };
    if let Some((known, target)) = last
        && known.is(address)
    {
        return Target::Address(target.clone());
    }
    match sockaddr::from_python(this.rules.family, address) {
        Some(target) => {
            // `from_python` accepts only immutable objects. So as long as this reference keeps the object alive, the
            // same object means the same address.
            drop(last.replace((address.clone_ref(), target.clone())));
            Target::Address(target)
        }
        None => Target::Python(Some(address.clone_ref())),
    }
}

/// Sends one datagram.
#[inline(always)]
fn send_now(this: This<'_, Datagram>, data: &[u8], target: &Target) -> Sent {
    let (fd, recorder) = (this.descriptor(), &this.base.core().probe.recorder);
    recorder.sends(Kind::Write, fd, || data.len());
    let sent = match target {
        Target::Peer => with_socket(fd, |socket| socket.send_with_flags(data, SEND_FLAGS)),
        Target::Address(peer) => with_socket(fd, |socket| socket.send_to_with_flags(data, peer, SEND_FLAGS)),
        Target::Python(address) => {
            let sent =
                bytes_from(data).map_or(Sent::Broken, |bytes| send_by_python(this, &bytes, address.as_ref()));
            recorder.sent(fd, || if matches!(sent, Sent::Some(_)) { 0 } else { data.len() });
            return sent;
        }
    };
    recorder.sent(fd, || data.len() - sent.as_ref().unwrap_or(&0));
    sent.map_or_else(|error| Sent::failed(&error), |_| Sent::Some(1))
}

/// Calls `socket.sendto(bytes, address)`, which looks up names, and raises the right error for a wrong address. Without
/// an address calls `socket.send(bytes)`.
#[cold]
fn send_by_python(this: This<'_, Datagram>, bytes: &Ref, address: Option<&Ref>) -> Sent {
    let Some(socket) = this.base.owner.get() else { return Sent::Some(1) };
    let sent = match address {
        Some(address) => socket.call_method(&imports().sendto, &[bytes.borrow(), address.borrow()]),
        None => socket.call_method(&imports().send, &[bytes.borrow()]),
    };
    let Err(Raised) = sent else { return Sent::Some(1) };
    if Exception::BlockingIOError.is_set() || Exception::InterruptedError.is_set() {
        clear_error();
        return Sent::Blocked;
    }
    if !Exception::OSError.is_set() {
        return Sent::Broken;
    }
    Sent::Refused(take_exception())
}

/// Sends one or more datagrams from the front of the queue.
fn send_head(this: This<'_, Datagram>) -> Sent {
    let Some(head) = this.sending.queue().front() else { return Sent::Some(0) };
    if matches!(head.target, Target::Python(_)) {
        return send_head_by_python(this);
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if this.sending.queue().get(1).is_some_and(|next| !matches!(next.target, Target::Python(_))) {
        return send_many(this);
    }
    send_now(this, head.content(), &head.target)
}

/// Sends the first datagram by Python's socket. It is removed from the queue first, because Python code may change the
/// queue.
#[cold]
fn send_head_by_python(this: This<'_, Datagram>) -> Sent {
    let Some(head) = this.sending.queue().pop_front() else { return Sent::Some(0) };
    let size = size_of_one(this, &head);
    this.sending.size.set(this.sending.size.get().saturating_sub(size));
    let Target::Python(address) = &head.target else { return Sent::Some(0) };
    match send_by_python(this, &head.bytes, address.as_ref()) {
        Sent::Blocked => {
            this.sending.size.set(this.sending.size.get() + size);
            this.sending.queue().push_front(head);
            Sent::Blocked
        }
        // The datagram was removed from the queue before.
        Sent::Some(_) => Sent::Some(0),
        other => other,
    }
}

/// Sends several datagrams with one system call; only the first one if a sandbox does not support `sendmmsg`.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn send_many(this: This<'_, Datagram>) -> Sent {
    use std::mem::MaybeUninit;

    let pending = this.sending.queue();
    // Not zeroed as a whole: for a few datagrams, zeroing the arrays would cost more than sending.
    let mut vectors = [const { MaybeUninit::<libc::iovec>::uninit() }; BATCH];
    let mut headers = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; BATCH];
    let mut filled = 0;
    for ((vector, header), datagram) in vectors.iter_mut().zip(&mut headers).zip(&*pending) {
        // SAFETY: a zeroed `mmsghdr` is valid.
        let header = header.write(unsafe { std::mem::zeroed() });
        match &datagram.target {
            Target::Peer => {}
            Target::Address(address) => {
                header.msg_hdr.msg_name = address.as_ptr().cast_mut().cast();
                header.msg_hdr.msg_namelen = address.len();
            }
            Target::Python(_) => break,
        }
        let data = datagram.content();
        header.msg_hdr.msg_iov =
            vector.write(libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() });
        header.msg_hdr.msg_iovlen = 1;
        filled += 1;
    }
    let (fd, recorder) = (this.descriptor(), &this.base.core().probe.recorder);
    let bytes_after = |count| pending.iter().skip(count).map(|it| it.content().len()).sum();
    recorder.sends(Kind::Write, fd, || bytes_after(0));
    // SAFETY: `filled` headers were written, with pointers to memory that outlives the call. `sendmmsg` only reads from
    // it.
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr().cast(), filled, SEND_FLAGS as _) };
    recorder.sent(fd, || bytes_after(sent.max(0) as usize));
    if sent >= 0 {
        return Sent::Some(sent as usize);
    }
    let error = io::Error::last_os_error();
    match pending.front() {
        Some(head) if error.raw_os_error() == Some(libc::ENOSYS) => {
            send_now(this, head.content(), &head.target)
        }
        _ => Sent::failed(&error),
    }
}

/// Removes `count` datagrams from the front of the queue.
fn drop_head(this: This<'_, Datagram>, count: usize) {
    let (size, pending) = (&this.sending.size, this.sending.queue());
    let gone: Vec<_> = pending.drain(..count.min(pending.len())).collect();
    size.set(gone.iter().fold(size.get(), |size, it| size.saturating_sub(size_of_one(this, it))));
}

/// Sends until the queue is empty or the socket is full. `report` passes an exception to `error_received`.
fn send_all(
    this: This<'_, Datagram>,
    core: &Core,
    report: impl Fn(&Ref) -> Result<(), Raised>,
) -> Result<(), Raised> {
    core.note_io();
    this.sending.blocked.set(false);
    while let Some(head) = this.sending.queue().front() {
        let by_python = matches!(head.target, Target::Python(_));
        match send_head(this) {
            Sent::Some(count) => drop_head(this, count),
            Sent::Blocked => {
                this.sending.blocked.set(true);
                break;
            }
            Sent::Refused(exception) => {
                if !by_python {
                    drop_head(this, 1);
                }
                report(&exception)?;
            }
            Sent::Broken => broken(this).map_err(|Fatal| Raised)?,
        }
    }
    Ok(())
}

/// Sends the datagrams that are held, for a caller that must not notice the delay.
pub(super) fn send_queued(this: This<'_, Datagram>) -> Result<(), Raised> {
    if this.sending.blocked.get() || this.sending.queue().is_empty() || this.base.life.is_closed() {
        return Ok(());
    }
    this.sending.habit.forget();
    send_all_queued(this, this.base.core())
}

/// Sends the queue inside of `sendto` or another method. `error_received` is called as in `sendto`, in the current
/// context, because the transport's context may be entered already.
fn send_all_queued(this: This<'_, Datagram>, core: &Core) -> Result<(), Raised> {
    let sent = send_all(this, core, |exception| refused(this, exception));
    if sent.is_err() && !this.sending.queue().is_empty() && !this.sending.queued.replace(true) {
        // `error_received` has raised, and the caller gets that exception. The rest is sent at the end of the step.
        core.flush_later(this.object().to_owned(), flush);
    }
    sent?;
    watch_or_lose(this, core).map_err(|Fatal| Raised)
}

/// Sends the queue at the end of a step.
fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(this) = object.downcast::<Datagram>() else { return Ok(()) };
    this.sending.queued.set(false);
    if this.sending.queue().is_empty() || this.sending.blocked.get() {
        return Ok(());
    }
    this.sending.habit.forget();
    send_waiting(this, core)
}

/// Sends the queue when the socket has room again.
pub(super) fn send_waiting(this: This<'_, Datagram>, core: &Core) -> Result<(), Fatal> {
    if this.base.life.is_closed() || this.sending.queue().is_empty() {
        return Ok(());
    }
    send_all(this, core, |exception| {
        error_received(this, core, Caller::Sending, exception).map_err(|Fatal| Raised)
    })
    // Errors of `error_received` were reported, so only a fatal error is left.
    .map_err(|Raised| Fatal)?;
    after_send(this, core)
}
