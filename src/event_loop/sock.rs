//! Awaitable socket calls: `sock_recv`, `sock_recv_into`, `sock_sendall`, `sock_accept`, and the waiting
//! half of `sock_connect`.
//!
//! The object is stepped like a coroutine (see `capi::coroutine`). Each step tries the system call first; only
//! if it would block is a future made and put on the descriptor, and the future is what the awaiting task sees.
//! A cancel arrives as `throw` and ends the wait.
//!
//! `_sock_send_file` has many tries before it is done. Its task is stepped for the first and for the result; in
//! between, the call stands on the descriptor itself and goes on from there.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::io;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::calls::new_future;
use super::core::{Core, core_of};
use super::file_transfer::{FileTransfer, Progress};
use super::sock_datagram::Exchange;
use super::watch::{self, Direction};
use crate::capi::buffer::{Buffer, RawBytes, bytes_from};
use crate::capi::call::{getattr, guard, method};
use crate::capi::coroutine::{self, Named, Steps, warn_never_awaited};
use crate::capi::error::{raise, raise_errno, raise_io, raise_message, take_unless_fatal};
use crate::capi::imports::imports;
use crate::capi::object::integer;
use crate::capi::sockaddr::is_plain_socket;
use crate::capi::types::Method;
use crate::capi::{Args, Fallible, Fatal, Raised, Ref, Slot};
use crate::reactor::Readiness;

/// Up to here a message is received into a buffer of the loop and copied out; larger requests are received
/// straight into the bytes object that is handed out.
pub(crate) const COPIED: usize = 64 * 1024;

/// What is to be done.
#[derive(Debug)]
pub(crate) enum Action {
    Receive(usize),
    ReceiveInto(Slot),
    Send {
        data: Buffer,
        sent: Cell<usize>,
    },
    Accept,
    /// A call that knows addresses.
    Exchange(Exchange),
    /// Wait until the socket is writable; the connect itself has been started. The first step only waits:
    /// looking at the socket takes its error away, and a caller who cancels at once must still find it.
    Connect {
        waited: Cell<bool>,
    },
    /// Send a file.
    SendFile(Rc<FileTransfer>),
    /// What was tried without the task came to this result.
    Ended(Slot),
    /// The arguments were wrong in this way, or what was tried without the task failed.
    Fail(Slot),
    Done,
}

/// One awaitable call.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SockCall {
    base: ffi::PyObject,
    name: &'static str,
    event_loop: Slot,
    socket: Slot,
    fd: Cell<RawFd>,
    waiter: Slot,
    /// The collector knows the object.
    tracked: Cell<bool>,
    action: UnsafeCell<Action>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

/// What one try came to.
pub(crate) enum Step {
    Finished(Ref),
    Blocked(Direction),
    /// It is to be tried once more; a file when others have had their turn.
    Again,
}

/// Is `object` a call of this kind?
#[inline(always)]
pub(crate) fn is_sock_call(object: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object. Relaxed: stored once, at import; the type has no subclasses.
    unsafe { ffi::Py_TYPE(object) == TYPE.load(Ordering::Relaxed) }
}

impl SockCall {
    pub(crate) fn create(
        event_loop: *mut ffi::PyObject,
        socket: *mut ffi::PyObject,
        name: &'static str,
        action: Action,
    ) -> Result<Ref, Raised> {
        // SAFETY: fresh memory of the type's size; every field is written before the object is seen.
        unsafe {
            let object = ffi::PyObject_GC_New::<ffi::PyObject>(TYPE.load(Ordering::Relaxed));
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<SockCall>();
            (&raw mut (*call).name).write(name);
            (&raw mut (*call).event_loop).write(Slot::new(Some(Ref::from_borrowed(event_loop))));
            (&raw mut (*call).socket).write(Slot::new(Some(Ref::from_borrowed(socket))));
            (&raw mut (*call).fd).write(Cell::new(-1));
            (&raw mut (*call).waiter).write(Slot::empty());
            (&raw mut (*call).tracked).write(Cell::new(false));
            (&raw mut (*call).action).write(UnsafeCell::new(action));
            if !is_plain_socket(socket) || (*call).target().is_some_and(|target| !is_buffer(target)) {
                (*call).track();
            }
            Ok(owned)
        }
    }

    /// Nobody has awaited it, or closed it.
    fn is_new(&self) -> bool {
        // SAFETY: GIL held, and the borrow ends here.
        self.fd.get() < 0 && !matches!(unsafe { &*self.action.get() }, Action::Done)
    }

    /// # Safety
    /// `object` is a SockCall and outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a SockCall {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    fn core(&self) -> &Core {
        // SAFETY: `create` put one of our loops there, and it stays until dealloc.
        unsafe { core_of(self.event_loop.as_ptr()) }
    }

    fn attempt(&self) -> Result<Step, Raised> {
        let fd = self.fd.get();
        self.core().touched.set(true);
        // SAFETY: GIL held; nothing below replaces the action while it is borrowed, except `finish`, which
        // runs after this returned.
        match unsafe { &*self.action.get() } {
            Action::Receive(size) => receive(self.core(), fd, *size),
            Action::ReceiveInto(target) => {
                // Held: asking for the buffer may run Python code that closes this call.
                let target = target.get().unwrap_or_else(Ref::none);
                let buffer = Buffer::writable(target.as_ptr())?;
                if buffer.len() == 0 {
                    // The socket is not asked, as in Python.
                    return integer(0).map(Step::Finished);
                }
                // SAFETY: the view keeps the memory alive and writable.
                let count =
                    unsafe { libc::recv(fd, buffer.as_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
                sized(count, Direction::Read, |count| integer(count as i64))
            }
            Action::Send { data, sent } => loop {
                let rest = &data.as_slice()[sent.get()..];
                if rest.is_empty() {
                    return Ok(Step::Finished(Ref::none()));
                }
                // SAFETY: `rest` is valid for its length.
                let count = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), SEND_FLAGS) };
                if count < 0 {
                    return would_block(Direction::Write);
                }
                sent.set(sent.get() + count as usize);
            },
            Action::Accept => accept(self.socket.as_ptr(), fd),
            Action::Exchange(exchange) => {
                exchange.attempt(self.core(), fd, &self.socket.get().ok_or(Raised)?)
            }
            Action::Connect { waited } if !waited.replace(true) => Ok(Step::Blocked(Direction::Write)),
            Action::Connect { .. } => connected(fd),
            Action::SendFile(transfer) => {
                // Held, since the GIL is given up.
                let transfer = Rc::clone(transfer);
                progress(&transfer, transfer.go_on(fd))
            }
            Action::Ended(_) | Action::Fail(_) | Action::Done => {
                // SAFETY: reading a static of the interpreter.
                raise_message(unsafe { ffi::PyExc_RuntimeError }, "cannot reuse already awaited coroutine");
                Err(Raised)
            }
        }
    }

    /// What the action holds beside the socket.
    fn target(&self) -> Option<&Slot> {
        // SAFETY: GIL held, and nothing runs while the result is looked at.
        match unsafe { &*self.action.get() } {
            Action::ReceiveInto(held) | Action::Fail(held) | Action::Ended(held) => Some(held),
            Action::Exchange(exchange) => exchange.held(),
            _ => None,
        }
    }

    /// Shows the call to the collector, from its first wait on: the future leads to the task, and the task to
    /// us. A call that ends at once never costs that, unless it holds what may lead to us already: an exception,
    /// by its frames, or an object of the user's own class.
    fn track(&self) {
        if !self.tracked.replace(true) {
            // SAFETY: a live object with a collector's header that is not tracked yet; its fields are filled.
            unsafe { ffi::PyObject_GC_Track(std::ptr::from_ref(self).cast_mut().cast()) }
        }
    }

    /// Takes the future off the descriptor, if it is still there.
    fn end_wait(&self) {
        if let Some(future) = self.waiter.take() {
            let (core, fd) = (self.core(), self.fd.get());
            for direction in [Direction::Read, Direction::Write] {
                watch::unwait(core, fd, direction, future.as_ptr());
            }
            watch::unwait(core, fd, Direction::Write, self.object());
        }
    }

    /// The Python object, borrowed.
    fn object(&self) -> *mut ffi::PyObject {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Stays on the descriptor until there is room for more of the file.
    fn stay(&self, socket: &Ref, step: &Step) -> Result<(), Raised> {
        let (core, fd) = (self.core(), self.fd.get());
        // SAFETY: alive, as long as this borrow of its inside.
        watch::wait(core, fd, Direction::Write, socket, unsafe { Ref::from_borrowed(self.object()) })?;
        if matches!(step, Step::Again) {
            core.call_again(core.fds.token(fd), Readiness::WRITABLE);
        }
        Ok(())
    }

    /// Fails for what has no such method, such as the `TransportSocket` that a transport shows: asyncio would call it.
    fn ask_for_method(&self, socket: &Ref) -> Result<(), Raised> {
        if is_plain_socket(socket.as_ptr()) {
            return Ok(());
        }
        let names = imports();
        // SAFETY: GIL held; the borrow ends with the statement.
        let name = match unsafe { &*self.action.get() } {
            Action::Receive(_) => &names.recv,
            Action::ReceiveInto(_) => &names.recv_into,
            Action::Send { .. } => &names.send,
            Action::Accept => {
                file_descriptor(socket)?;
                &names.accept
            }
            _ => return Ok(()),
        };
        getattr(socket.as_ptr(), name.as_ptr()).map(drop)
    }

    /// The file, if it is one that is sent.
    fn transfer(&self) -> Option<Rc<FileTransfer>> {
        // SAFETY: GIL held; the borrow ends with the statement.
        match unsafe { &*self.action.get() } {
            Action::SendFile(transfer) => Some(Rc::clone(transfer)),
            _ => None,
        }
    }
}

// SAFETY: `repr(C)`, and `base` comes first.
unsafe impl Steps for SockCall {
    /// Tries, and waits if the call would block.
    fn step(&self) -> Result<coroutine::Step, Raised> {
        let resumed = !self.waiter.is_empty();
        self.end_wait();
        // SAFETY: GIL held; the borrows end before anything else runs.
        match unsafe { &*self.action.get() } {
            Action::Fail(exception) => {
                if let Some(exception) = exception.take() {
                    raise(exception);
                    return Err(Raised);
                }
            }
            Action::Ended(result) => {
                if let Some(result) = result.take() {
                    self.finish();
                    return Ok(coroutine::Step::Done(result));
                }
            }
            _ => {}
        }
        let socket = self.socket.get().ok_or(Raised)?;
        if self.fd.get() < 0 {
            self.ask_for_method(&socket)?;
            self.fd.set(file_descriptor(&socket)?);
        } else if resumed && file_descriptor(&socket)? != self.fd.get() {
            // Closed while we waited; the number may be another connection's by now.
            return Err(raise_errno(libc::EBADF));
        }
        let step = loop {
            match self.attempt()? {
                Step::Again if self.transfer().is_none() => {}
                step => break step,
            }
        };
        match step {
            Step::Finished(result) => {
                self.finish();
                Ok(coroutine::Step::Done(result))
            }
            step => {
                let future = new_future(self.event_loop.as_ptr())?;
                if self.transfer().is_some() {
                    self.stay(&socket, &step)?;
                } else if let Step::Blocked(direction) = step {
                    watch::wait(self.core(), self.fd.get(), direction, &socket, future.clone_ref())?;
                }
                self.waiter.set(Some(future.clone_ref()));
                self.track();
                Ok(coroutine::Step::Wait(future))
            }
        }
    }

    /// Nothing will be tried any more; what the action held is let go.
    fn finish(&self) {
        self.end_wait();
        // SAFETY: GIL held, no borrow of the action is alive; the old one is dropped outside.
        drop(unsafe { std::mem::replace(&mut *self.action.get(), Action::Done) });
    }

    fn held(&self) -> impl Iterator<Item = &Slot> {
        [&self.event_loop, &self.socket, &self.waiter].into_iter().chain(self.target())
    }

    fn clear(&self) {
        self.finish();
        self.socket.clear();
    }
}

// SAFETY: as above.
unsafe impl Named for SockCall {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Is it a buffer that leads to nothing else?
fn is_buffer(target: &Slot) -> bool {
    let object = target.as_ptr();
    // SAFETY: null or an object that the slot holds.
    !object.is_null()
        && unsafe { ffi::PyByteArray_CheckExact(object) != 0 || ffi::PyMemoryView_Check(object) != 0 }
}

/// What a go of the transfer means for the call.
fn progress(transfer: &FileTransfer, progress: Progress) -> Result<Step, Raised> {
    match progress {
        Progress::Blocked => Ok(Step::Blocked(Direction::Write)),
        Progress::Again => Ok(Step::Again),
        Progress::Ended(outcome) => transfer.result(outcome).map(Step::Finished),
    }
}

/// The descriptor on which a call stands is ready: more of its file goes out. The task is woken at the end.
pub(crate) fn go_on(core: &Core, object: &Ref) -> Result<(), Fatal> {
    // SAFETY: the caller has looked at the type.
    let call = unsafe { SockCall::of(object.as_ptr()) };
    let (Some(future), Some(socket), Some(transfer)) =
        (call.waiter.get(), call.socket.get(), call.transfer())
    else {
        return Ok(());
    };
    if watch::is_done(core, &future)? {
        // Cancelled; the task will tell.
        return Ok(());
    }
    core.touched.set(true);
    let step = match file_descriptor(&socket) {
        Ok(fd) if fd == call.fd.get() => progress(&transfer, transfer.go_on(fd)),
        Ok(_) => transfer.result(Err(io::Error::from_raw_os_error(libc::EBADF))).map(Step::Finished),
        Err(Raised) => transfer.lost(Some(take_unless_fatal()?)).map(Step::Finished),
    };
    let outcome = match step {
        Ok(Step::Finished(result)) => Ok(result),
        Ok(step) => match call.stay(&socket, &step) {
            Ok(()) => return Ok(()),
            Err(raised) => Err(raised),
        },
        Err(raised) => Err(raised),
    };
    let next = match outcome {
        Ok(result) => Action::Ended(Slot::new(Some(result))),
        Err(Raised) => Action::Fail(Slot::new(Some(take_unless_fatal()?))),
    };
    // SAFETY: GIL held, no borrow of the action is alive; the old one is dropped outside.
    drop(unsafe { std::mem::replace(&mut *call.action.get(), next) });
    watch::complete(core, &future)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
pub(crate) const SEND_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(crate) const SEND_FLAGS: i32 = libc::MSG_DONTWAIT;

pub(crate) fn sized(
    count: isize,
    direction: Direction,
    result: impl FnOnce(usize) -> Result<Ref, Raised>,
) -> Result<Step, Raised> {
    if count < 0 { would_block(direction) } else { result(count as usize).map(Step::Finished) }
}

/// The meaning of -1: wait, try again, or a real error.
fn would_block(direction: Direction) -> Result<Step, Raised> {
    let error = io::Error::last_os_error();
    match error.kind() {
        io::ErrorKind::WouldBlock => Ok(Step::Blocked(direction)),
        // What is there already brings no edge.
        io::ErrorKind::Interrupted => Ok(Step::Again),
        _ => Err(raise_io(&error)),
    }
}

fn receive(core: &Core, fd: RawFd, size: usize) -> Result<Step, Raised> {
    if size == 0 {
        // The socket is not asked, as in Python.
        return bytes_from(&[]).map(Step::Finished);
    }
    if size <= COPIED {
        let buffer = &mut core.receive_buffer()[..size];
        // SAFETY: the buffer is valid for its length, and nothing else runs before it is copied.
        let count = unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), size, libc::MSG_DONTWAIT) };
        return sized(count, Direction::Read, |count| bytes_from(&buffer[..count]));
    }
    let mut bytes = RawBytes::with_capacity(size)?;
    // SAFETY: the object has room for `size` bytes and is seen by nobody else.
    let count = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), size, libc::MSG_DONTWAIT) };
    // SAFETY: `recv` has written `count` bytes.
    sized(count, Direction::Read, |count| unsafe { bytes.finish(count) })
}

/// `socket.accept()` itself: it knows every address family. The listening socket does not block, so
/// `BlockingIOError` is the sign to wait.
fn accept(socket: *mut ffi::PyObject, fd: RawFd) -> Result<Step, Raised> {
    let mut ready = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid pollfd, no waiting.
    if unsafe { libc::poll(&mut ready, 1, 0) } == 0 && is_listening(fd) {
        return Ok(Step::Blocked(Direction::Read));
    }
    // SAFETY: every caller holds the GIL; the socket is held by the call object.
    let (py, socket) = unsafe { (Python::assume_attached(), Ref::from_borrowed(socket)) };
    let outcome = socket.bind(py).call_method0(Fallible("accept")).and_then(|pair| {
        pair.get_item(0)?.call_method1(Fallible("setblocking"), (false,))?;
        Ok(pair)
    });
    match outcome {
        Ok(pair) => Ok(Step::Finished(pair.into())),
        Err(error)
            if error.is_instance_of::<pyo3::exceptions::PyBlockingIOError>(py)
                || error.is_instance_of::<pyo3::exceptions::PyInterruptedError>(py) =>
        {
            Ok(Step::Blocked(Direction::Read))
        }
        Err(error) => Err(crate::capi::error::restore(py, error)),
    }
}

/// One that is not would be waited for in vain: `accept` has to say so.
fn is_listening(fd: RawFd) -> bool {
    let mut listening: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: a place of the right size.
    let known = unsafe {
        let place = (&raw mut listening).cast::<c_void>();
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, place, &mut size)
    };
    known < 0 || listening != 0
}

/// Has the connect that was started come to an end? `SO_ERROR` as an int, 0 for success.
fn connected(fd: RawFd) -> Result<Step, Raised> {
    let mut ready = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
    // SAFETY: one valid pollfd, no waiting.
    if unsafe { libc::poll(&mut ready, 1, 0) } == 0 {
        return Ok(Step::Blocked(Direction::Write));
    }
    let mut error: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: a place of the right size.
    let done = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast::<c_void>(), &mut size)
    };
    if done < 0 {
        return Err(raise_io(&io::Error::last_os_error()));
    }
    integer(error).map(Step::Finished)
}

fn file_descriptor(socket: &Ref) -> Result<RawFd, Raised> {
    let number = method(socket, imports().fileno.as_ptr(), &[])?;
    // SAFETY: a live object; -1 with an error set means failure, and without one a closed socket.
    let fd = unsafe { ffi::PyLong_AsLong(number.as_ptr()) };
    // SAFETY: asks for the indicator only.
    if fd < 0 && !unsafe { ffi::PyErr_Occurred() }.is_null() {
        return Err(Raised);
    }
    if fd < 0 {
        return Err(crate::capi::error::raise_errno(libc::EBADF));
    }
    Ok(fd as RawFd)
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a SockCall without references.
    unsafe {
        let call = SockCall::of(object);
        if call.tracked.get() {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        if call.is_new() {
            warn_never_awaited(object, call.name);
        }
        call.finish();
        call.socket.clear();
        call.event_loop.clear();
        let kind = ffi::Py_TYPE(object);
        ffi::PyObject_GC_Del(object.cast());
        ffi::Py_DECREF(kind.cast());
    }
}

/// A method that makes an awaitable: binds the arguments and makes asyncio's checks.
///
/// # Safety
/// `object` is one of our loops, and the rest are the arguments of the running call.
unsafe fn sock_call(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
    make: fn(*mut ffi::PyObject) -> Result<Action, Raised>,
    (name, function): (&'static str, &str),
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the arguments of the running call.
        let arguments = unsafe { Args::new(values, count, names) };
        let parameters = match function {
            "sock_recv" => ["sock", "n"],
            "sock_recv_into" => ["sock", "buf"],
            "sock_sendall" => ["sock", "data"],
            _ => ["sock", ""],
        };
        let required = if parameters[1].is_empty() { 1 } else { 2 };
        let bound = match arguments.bind(function, parameters, required) {
            Ok(bound) => bound,
            Err(Raised) => return null_mut(),
        };
        // SAFETY: the method sits on our loop class.
        let core = unsafe { core_of(object) };
        // A wrong argument is raised where the call is awaited, as a coroutine would.
        let action = check_socket(core, bound[0])
            .and_then(|()| make(bound[1]))
            .unwrap_or_else(|raised| Action::Fail(Slot::new(Some(raised.take()))));
        SockCall::create(object, bound[0], name, action).map_or(null_mut(), Ref::into_ptr)
    })
}

/// An ordinary socket passes at once; anything else is asked what asyncio asks.
pub(crate) fn check_socket(core: &Core, socket: *mut ffi::PyObject) -> Result<(), Raised> {
    if is_plain_socket(socket) && !core.debug.get() {
        return Ok(());
    }
    // SAFETY: every caller holds the GIL.
    let py = unsafe { Python::assume_attached() };
    let check = crate::capi::imports::support(py, "check_socket")
        .map_err(|error| crate::capi::error::restore(py, error))?;
    crate::capi::call::call(&Ref::from(check), &[core.object(), socket]).map(drop)
}

fn receive_action(size: *mut ffi::PyObject) -> Result<Action, Raised> {
    // SAFETY: a live object; -1 with an error set means failure.
    let size = unsafe { ffi::PyNumber_AsSsize_t(size, ffi::PyExc_OverflowError) };
    if size == -1 {
        // SAFETY: asks for the indicator only.
        if !unsafe { ffi::PyErr_Occurred() }.is_null() {
            return Err(Raised);
        }
    }
    if size < 0 {
        // SAFETY: reading a static of the interpreter.
        raise_message(unsafe { ffi::PyExc_ValueError }, "negative buffersize in recv");
        return Err(Raised);
    }
    Ok(Action::Receive(size as usize))
}

fn receive_into_action(target: *mut ffi::PyObject) -> Result<Action, Raised> {
    // SAFETY: a borrowed argument.
    Ok(Action::ReceiveInto(Slot::new(Some(unsafe { Ref::from_borrowed(target) }))))
}

fn send_action(data: *mut ffi::PyObject) -> Result<Action, Raised> {
    Ok(Action::Send { data: Buffer::readable(data)?, sent: Cell::new(0) })
}

macro_rules! sock_method {
    ($name:ident, $make:expr) => {
        unsafe extern "C" fn $name(
            object: *mut ffi::PyObject,
            values: *const *mut ffi::PyObject,
            count: ffi::Py_ssize_t,
            names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            let called = (concat!("EventLoop.", stringify!($name)), stringify!($name));
            // SAFETY: the method sits on our loop class; the arguments are those of this call.
            unsafe { sock_call(object, values, count, names, $make, called) }
        }
    };
}

sock_method!(sock_recv, receive_action);
sock_method!(sock_recv_into, receive_into_action);
sock_method!(sock_sendall, send_action);
sock_method!(sock_accept, |_| Ok(Action::Accept));
sock_method!(_sock_connected, |_| Ok(Action::Connect { waited: Cell::new(false) }));

/// What is put on the loop class.
pub(crate) const METHODS: &[Method] = &[
    Method::Fast(
        c"sock_recv",
        sock_recv,
        c"sock_recv(sock, n)\n\nReceive up to n bytes from a non-blocking socket. Awaitable.",
    ),
    Method::Fast(
        c"sock_recv_into",
        sock_recv_into,
        c"sock_recv_into(sock, buf)\n\nReceive into a writable buffer. Awaitable; gives the count.",
    ),
    Method::Fast(c"sock_sendall", sock_sendall, c"sock_sendall(sock, data)\n\nSend all the data. Awaitable."),
    Method::Fast(
        c"sock_accept",
        sock_accept,
        c"sock_accept(sock)\n\nAccept a connection. Awaitable; gives (socket, address).",
    ),
    Method::Fast(
        c"_sock_connected",
        _sock_connected,
        c"_sock_connected(sock)\n\nWait for a connect that was started. Awaitable; gives SO_ERROR.",
    ),
];

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let name = c"wakeloop._core.SockCall";
    let names = coroutine::names::<SockCall>();
    let kind = coroutine::make_type::<SockCall>(py, name, dealloc, None, &names, &[])?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    Ok(())
}
