//! From the protocol to a datagram socket.
//!
//! The first datagram of a turn is sent at once, as asyncio sends every one. From the second on they are
//! kept and leave at the end of the turn, up to [`BATCH`] per `sendmmsg`: an answer to one request costs no
//! detour, a burst costs a fraction of the system calls. What is kept is no write buffer in asyncio's
//! sense, only what asyncio would have sent already; so whoever asks for the buffer's size, closes or aborts
//! has it sent first, and it is sent early when it grows large or once the transport is closing.
//!
//! What the socket refuses stays in the same queue until there is room, and counts against the high-water
//! mark. An error of the socket belongs to the datagram at the head: that one is given up and
//! `error_received` is told, as in asyncio. (One kind of error is not seen: the kernel forgets an ICMP error
//! that comes in between two datagrams of one `sendmmsg`.)

use std::io;
use std::os::fd::RawFd;

use pyo3::ffi;
use pyo3::prelude::*;

use super::receive::error_received;
use super::transport::Datagram;
use crate::capi::buffer::{Buffer, bytes_from, bytes_slice, is_scattered};
use crate::capi::call::method;
use crate::capi::error::{raise, raise_io, raise_message, take_exception};
use crate::capi::imports::imports;
use crate::capi::sockaddr::SockAddr;
use crate::capi::{Fatal, Raised, Ref};
use crate::event_loop::core::Core;
use crate::transport::base::endpoint::{
    Caller, connection_lost, fatal_error, fields, maybe_pause, maybe_resume,
};
use crate::transport::base::watching::{watch_or_fail, watch_or_raise};

/// Datagrams per system call, and how many are kept at most until the end of a turn.
const BATCH: usize = 64;
/// From so many bytes on, what is kept is sent early.
const EARLY: usize = 64 * 1024;

#[cfg(any(target_os = "linux", target_os = "android"))]
const FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const FLAGS: i32 = libc::MSG_DONTWAIT;

/// Where a datagram goes.
#[derive(Debug)]
enum Target {
    /// To the socket's peer.
    Peer,
    Address(SockAddr),
    /// An address that only Python's own socket understands: a host name, a scope, something wrong.
    Python(Ref),
}

/// A datagram that was not sent yet: immutable bytes, kept by reference.
#[derive(Debug)]
pub(crate) struct Outgoing {
    bytes: Ref,
    target: Target,
}

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
    fn of(data: *mut ffi::PyObject) -> Result<Data, Raised> {
        // SAFETY: a borrowed argument of the running call.
        unsafe {
            if ffi::PyBytes_Check(data) != 0 {
                return Ok(Data::Bytes(Ref::from_borrowed(data)));
            }
        }
        check_kind(data)?;
        Buffer::readable(data).map(Data::View)
    }

    /// The content. Not kept across anything that may run Python code, which could change it.
    #[inline(always)]
    fn as_slice(&self) -> &[u8] {
        match self {
            // SAFETY: a bytes object that is held.
            Data::Bytes(bytes) => unsafe { bytes_slice(bytes.as_ptr()) },
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
fn check_kind(data: *mut ffi::PyObject) -> Result<(), Raised> {
    // SAFETY: live objects throughout.
    unsafe {
        if ffi::PyByteArray_Check(data) != 0 || ffi::PyMemoryView_Check(data) != 0 {
            return Ok(());
        }
        let kind =
            Ref::from_owned(ffi::PyObject_GetAttrString(ffi::Py_TYPE(data).cast(), c"__name__".as_ptr()));
        let name = kind.ok_or(Raised)?.bind(Python::assume_attached()).repr();
        let name = name.map_err(|error| crate::capi::error::restore(Python::assume_attached(), error))?;
        let text = format!("data argument must be a bytes-like object, not {name}");
        raise_message(ffi::PyExc_TypeError, &text);
    }
    Err(Raised)
}

/// `transport.sendto(data, addr)`.
#[inline(always)]
pub(crate) fn sendto(
    object: &Ref,
    datagram: &Datagram,
    data: *mut ffi::PyObject,
    address: *mut ffi::PyObject,
) -> Result<(), Raised> {
    let data = match Data::of(data) {
        Ok(data) => data,
        Err(_) if is_scattered() => return scattered(object, datagram, data, address),
        Err(raised) => return Err(raised),
    };
    if !datagram.sends_empty && data.as_slice().is_empty() {
        return Ok(());
    }
    let endpoint = &datagram.endpoint;
    let address = check_address(datagram, address)?;
    if endpoint.fd.get() < 0 || (endpoint.conn_lost.get() > 0 && !datagram.address.is_empty()) {
        return endpoint.write_to_lost("write_after_lost");
    }
    let target = datagram.target(&address);
    let core = endpoint.core();
    core.note_io();
    let apart = matches!(target, Target::Python(_));
    if apart && !datagram.pending().is_empty() {
        // It may be wrong, which is told at once and in its turn.
        send_queued(object, datagram)?;
        if endpoint.fd.get() < 0 {
            return endpoint.write_to_lost("write_after_lost");
        }
    }
    if datagram.pending().is_empty() && !datagram.blocked.get() && (apart || !later(datagram, core)) {
        datagram.sent_in.set(core.counters.turns.get());
        match send_now(datagram, data.as_slice(), &target) {
            Sent::Some(_) => return Ok(()),
            Sent::Blocked => {
                datagram.blocked.set(true);
                watch_or_raise(object, datagram, core).inspect_err(|_| datagram.blocked.set(false))?;
            }
            Sent::Refused(exception) => return refused(datagram, &exception),
            Sent::Broken => return broken(object, datagram).map_err(|Fatal| Raised),
        }
    }
    let outgoing = Outgoing { bytes: data.keep()?, target };
    datagram.pending_size.set(datagram.pending_size.get() + datagram.size(&outgoing));
    datagram.pending().push_back(outgoing);
    kept(object, datagram, core)
}

/// What cannot be sent as it lies in memory, with the error that says so. One that has to wait is copied first.
#[cold]
fn scattered(
    object: &Ref,
    datagram: &Datagram,
    data: *mut ffi::PyObject,
    address: *mut ffi::PyObject,
) -> Result<(), Raised> {
    let exception = take_exception();
    let endpoint = &datagram.endpoint;
    check_address(datagram, address)?;
    if endpoint.fd.get() < 0 || (endpoint.conn_lost.get() > 0 && !datagram.address.is_empty()) {
        return endpoint.write_to_lost("write_after_lost");
    }
    send_queued(object, datagram)?;
    if endpoint.fd.get() >= 0 && !datagram.pending().is_empty() {
        // SAFETY: a borrowed argument of the running call; an owned reference or null with an error.
        let copy = unsafe { Ref::from_owned(ffi::PyBytes_FromObject(data)) }.ok_or(Raised)?;
        return sendto(object, datagram, copy.as_ptr(), address);
    }
    raise(exception);
    broken(object, datagram).map_err(|Fatal| Raised)
}

/// Does a datagram that could be sent now wait for the end of the turn?
#[inline(always)]
fn later(datagram: &Datagram, core: &Core) -> bool {
    core.is_running()
        && !datagram.endpoint.closing.get()
        && datagram.sent_in.get() == core.counters.turns.get()
}

/// After a datagram was put into the queue: when does it leave?
fn kept(object: &Ref, datagram: &Datagram, core: &Core) -> Result<(), Raised> {
    if datagram.blocked.get() {
        return maybe_pause(object, datagram);
    }
    let size = datagram.pending_size.get();
    let early =
        size >= EARLY || size > datagram.endpoint.marks.high.get() || datagram.pending().len() >= BATCH;
    if !early && later(datagram, core) {
        if !datagram.queued.replace(true) {
            core.flush_later(object.clone_ref(), flush);
            core.wake_if_parked();
        }
        return Ok(());
    }
    send_queued(object, datagram)?;
    maybe_pause(object, datagram)
}

/// The address that a datagram goes to: the only one allowed, if there is one.
#[inline(always)]
fn check_address(datagram: &Datagram, address: *mut ffi::PyObject) -> Result<Ref, Raised> {
    // SAFETY: a borrowed argument of the running call.
    let given = unsafe { Ref::from_borrowed(address) };
    let Some(only) = datagram.address.get() else { return Ok(given) };
    // SAFETY: live objects; -1 with an error set means failure.
    let same = unsafe {
        address == ffi::Py_None()
            || match ffi::PyObject_RichCompareBool(address, only.as_ptr(), ffi::Py_EQ) {
                -1 => return Err(Raised),
                same => same == 1,
            }
    };
    if same {
        return Ok(only);
    }
    // SAFETY: the GIL is held.
    let py = unsafe { Python::assume_attached() };
    let text = only.bind(py).str().map_err(|error| crate::capi::error::restore(py, error))?;
    raise_message(
        // SAFETY: reading a static of the interpreter.
        unsafe { ffi::PyExc_ValueError },
        &format!("Invalid address: must be None or {}", text.to_string_lossy()),
    );
    Err(Raised)
}

/// `error_received` from inside `sendto`: called in the sender's context, and what it raises is the sender's.
#[cold]
fn refused(datagram: &Datagram, exception: &Ref) -> Result<(), Raised> {
    match datagram.endpoint.protocol.get() {
        Some(protocol) => {
            method(&protocol, imports().error_received.as_ptr(), &[exception.as_ptr()]).map(drop)
        }
        None => Ok(()),
    }
}

#[cold]
fn broken(object: &Ref, datagram: &Datagram) -> Result<(), Fatal> {
    fatal_error(object, datagram, Raised, "Fatal write error on datagram transport")
}

impl Datagram {
    /// What a datagram counts in the write buffer.
    fn size(&self, outgoing: &Outgoing) -> usize {
        // SAFETY: a bytes object.
        unsafe { bytes_slice(outgoing.bytes.as_ptr()) }.len() + self.header
    }

    /// What an address means to the kernel.
    #[inline(always)]
    fn target(&self, address: &Ref) -> Target {
        if self.connected {
            return Target::Peer;
        }
        if let Some(sender) = self.sender_named(address) {
            return Target::Address(sender);
        }
        // SAFETY: GIL held; the borrow ends before what leaves the cell is dropped.
        let last = unsafe { &mut *self.last_target.get() };
        if let Some((known, target)) = last
            && known.as_ptr() == address.as_ptr()
        {
            return Target::Address(*target);
        }
        match SockAddr::from_python(self.family, address.as_ptr()) {
            Some(target) => {
                // Tuples, strings and bytes of exactly these types: they cannot change, so their identity
                // stands for their meaning as long as this reference keeps them alive.
                let old = last.replace((address.clone_ref(), target));
                drop(old);
                Target::Address(target)
            }
            None => Target::Python(address.clone_ref()),
        }
    }
}

/// One datagram, now.
#[inline(always)]
fn send_now(datagram: &Datagram, data: &[u8], target: &Target) -> Sent {
    let fd = datagram.descriptor();
    let (address, length) = match target {
        Target::Peer => (std::ptr::null(), 0),
        Target::Address(address) => (address.as_ptr(), address.len()),
        Target::Python(address) => {
            return match bytes_from(data) {
                Ok(bytes) => send_by_python(datagram, &bytes, address),
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
fn send_by_python(datagram: &Datagram, bytes: &Ref, address: &Ref) -> Sent {
    let Some(socket) = datagram.endpoint.owner.get() else { return Sent::Some(1) };
    let Err(Raised) = method(&socket, imports().sendto.as_ptr(), &[bytes.as_ptr(), address.as_ptr()]) else {
        return Sent::Some(1);
    };
    // SAFETY: an error is set; the classes are statics of the interpreter.
    unsafe {
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_BlockingIOError) != 0
            || ffi::PyErr_ExceptionMatches(ffi::PyExc_InterruptedError) != 0
        {
            ffi::PyErr_Clear();
            return Sent::Blocked;
        }
        if ffi::PyErr_ExceptionMatches(ffi::PyExc_OSError) == 0 {
            return Sent::Broken;
        }
    }
    Sent::Refused(take_exception())
}

/// Sends from the head of the queue.
fn send_head(datagram: &Datagram) -> Sent {
    let pending = datagram.pending();
    let plain = pending.iter().take(BATCH).take_while(|it| !matches!(it.target, Target::Python(_))).count();
    match (plain, pending.front()) {
        (_, None) => Sent::Some(0),
        (0, Some(_)) => {
            let Some(head) = pending.pop_front() else { return Sent::Some(0) };
            send_apart(datagram, head)
        }
        (1, Some(head)) => {
            // SAFETY: a bytes object that the queue keeps alive.
            send_now(datagram, unsafe { bytes_slice(head.bytes.as_ptr()) }, &head.target)
        }
        (count, Some(_)) => send_many(datagram.descriptor(), pending.iter().take(count)),
    }
}

/// Sends one datagram by Python's socket. It is out of the queue meanwhile, which may change: Python runs.
#[cold]
fn send_apart(datagram: &Datagram, head: Outgoing) -> Sent {
    let size = datagram.size(&head);
    datagram.pending_size.set(datagram.pending_size.get().saturating_sub(size));
    let Target::Python(address) = &head.target else { return Sent::Some(0) };
    match send_by_python(datagram, &head.bytes, address) {
        Sent::Blocked => {
            datagram.pending_size.set(datagram.pending_size.get() + size);
            datagram.pending().push_front(head);
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
        // SAFETY: a bytes object that the queue keeps alive.
        let data = unsafe { bytes_slice(datagram.bytes.as_ptr()) };
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
        // SAFETY: a bytes object that the queue keeps alive, and an address valid for its length.
        let result = unsafe {
            let data = bytes_slice(datagram.bytes.as_ptr());
            libc::sendto(fd, data.as_ptr().cast(), data.len(), FLAGS, address, length)
        };
        if result < 0 {
            return if sent > 0 { Sent::Some(sent) } else { Sent::from_last_error() };
        }
        sent += 1;
    }
    Sent::Some(sent)
}

/// Takes `count` datagrams from the head of the queue.
fn drop_head(datagram: &Datagram, count: usize) {
    let mut gone = Vec::with_capacity(count);
    let mut size = 0;
    for outgoing in datagram.pending().drain(..count.min(datagram.pending().len())) {
        size += datagram.size(&outgoing);
        let Outgoing { bytes, target } = outgoing;
        gone.push(bytes);
        if let Target::Python(address) = target {
            gone.push(address);
        }
    }
    datagram.pending_size.set(datagram.pending_size.get().saturating_sub(size));
    drop(gone);
}

/// Sends until the queue is empty or the socket is full. `tell` brings an exception to `error_received`.
fn send_all(
    object: &Ref,
    datagram: &Datagram,
    core: &Core,
    tell: impl Fn(&Ref) -> Result<(), Raised>,
) -> Result<(), Raised> {
    core.note_io();
    datagram.blocked.set(false);
    datagram.sent_in.set(core.counters.turns.get());
    while let Some(head) = datagram.pending().front() {
        let apart = matches!(head.target, Target::Python(_));
        match send_head(datagram) {
            Sent::Some(count) => drop_head(datagram, count),
            Sent::Blocked => {
                datagram.blocked.set(true);
                break;
            }
            Sent::Refused(exception) => {
                if !apart {
                    drop_head(datagram, 1);
                }
                tell(&exception)?;
            }
            Sent::Broken => broken(object, datagram).map_err(|Fatal| Raised)?,
        }
    }
    Ok(())
}

/// Sends what is only kept until the end of the turn, for a caller in Python who must not see the delay.
/// `error_received` is called as from `sendto`: the transport's context may be entered already.
pub(crate) fn send_queued(object: &Ref, datagram: &Datagram) -> Result<(), Raised> {
    if datagram.blocked.get() || datagram.pending().is_empty() || datagram.endpoint.fd.get() < 0 {
        return Ok(());
    }
    let core = datagram.endpoint.core();
    let sent = send_all(object, datagram, core, |exception| refused(datagram, exception));
    if sent.is_err() && !datagram.pending().is_empty() && !datagram.queued.replace(true) {
        // error_received has raised, which is the caller's; the rest leaves at the end of the turn.
        core.flush_later(object.clone_ref(), flush);
    }
    sent?;
    watch_or_fail(object, datagram, core).map_err(|Fatal| Raised)
}

/// At the end of a turn, or when the socket has room again.
pub(crate) fn flush(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: flushes are queued for datagram transports only.
    let datagram = unsafe { fields::<Datagram>(object.as_ptr()) };
    datagram.queued.set(false);
    let endpoint = &datagram.endpoint;
    if endpoint.fd.get() < 0 || datagram.pending().is_empty() {
        return Ok(());
    }
    send_all(object, datagram, core, |exception| {
        error_received(datagram, core, Caller::Sending, exception).map_err(|Fatal| Raised)
    })
    // What error_received raises was reported, so only a fatal error comes out.
    .map_err(|Raised| Fatal)?;
    maybe_resume(object, datagram)?;
    if datagram.pending().is_empty() {
        if endpoint.closing.get() && !endpoint.ending.replace(true) {
            endpoint.conn_lost.set(1);
            return connection_lost::<Datagram>(object, core);
        }
    } else {
        // Not all went out, or resume_writing wrote more: the protocol may have to pause.
        maybe_pause(object, datagram).or_else(|raised| core.unraisable(raised))?;
    }
    watch_or_fail(object, datagram, core)
}
