//! The awaitable object of a socket call.
//!
//! It is stepped like a coroutine (see `capi::coroutine`). Each step makes the system call first. Only if it would block, a
//! future is made and put on the descriptor, and the awaiting task sees that future. A cancel arrives as `throw` and ends
//! the wait.
//!
//! `_sock_send_file` makes many attempts before it is done. Its task is stepped for the first one and for the result; in
//! between, the call itself waits for the descriptor and goes on from there.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::super::completion::{complete, is_done};
use super::super::core::watched_fd::Direction;
use super::super::core::{Core, core_of};
use super::super::futures::new_future;
use super::super::watch;
use super::attempt::{Attempt, SEND_FLAGS, accept, connected, file_descriptor, receive, sized, would_block};
use super::exchange::Exchange;
use super::file_transfer::{FileTransfer, Progress};
use crate::capi::buffer::Buffer;
use crate::capi::call::getattr;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::coroutine::{self, Coroutine, report_never_awaited};
use crate::capi::error::{raise, raise_errno, raise_message, take_unless_fatal};
use crate::capi::freelist::Freelist;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::{Class, Dead, Dealloc};
use crate::capi::sockaddr::is_plain_socket;
use crate::capi::stop::forget_value;
use crate::capi::{Borrowed, Fatal, Native, Raised, Ref, Slot, This};
use crate::reactor::Readiness;

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
    /// A call that knows addresses. Apart, because an address is longer than all the others have.
    Exchange(Box<Exchange>),
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
    /// Python code may step the object.
    by_hand: Cell<bool>,
    action: UnsafeCell<Action>,
}

static CLASS: Class = Class::new();

// SAFETY: `repr(C)`, and `base` comes first; `make_type` builds the class, of which `create` makes every instance.
unsafe impl Native for SockCall {
    fn class() -> &'static Class {
        &CLASS
    }

    fn offset() -> usize {
        0
    }
}

/// How many dead calls are kept for reuse.
const FREELIST: usize = 64;

static CALLS: Freelist<FREELIST> = Freelist::new();

/// Is `object` a call of this kind?
#[inline(always)]
pub(crate) fn is_sock_call(object: *mut ffi::PyObject) -> bool {
    // SAFETY: a live object. The class has no subclasses.
    unsafe { ffi::Py_TYPE(object) == CLASS.as_ptr() }
}

impl SockCall {
    pub(crate) fn create(
        event_loop: *mut ffi::PyObject,
        socket: *mut ffi::PyObject,
        name: &'static str,
        action: Action,
    ) -> Result<Ref, Raised> {
        // SAFETY: a dead object of this type, or fresh memory for one; every field is written before the object is seen.
        unsafe {
            let object = CALLS.new_gc(CLASS.as_ptr());
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<SockCall>();
            (&raw mut (*call).name).write(name);
            (&raw mut (*call).event_loop).write(Slot::new(Some(Ref::from_borrowed(event_loop))));
            (&raw mut (*call).socket).write(Slot::new(Some(Ref::from_borrowed(socket))));
            (&raw mut (*call).fd).write(Cell::new(-1));
            (&raw mut (*call).waiter).write(Slot::empty());
            (&raw mut (*call).by_hand).write(Cell::new(false));
            (&raw mut (*call).action).write(UnsafeCell::new(action));
            if !is_plain_socket(socket) || (*call).target().is_some_and(|target| !is_buffer(target)) {
                This::<SockCall>::from_ptr(object).track();
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

    fn attempt(&self) -> Result<Attempt, Raised> {
        let fd = self.fd.get();
        self.core().note_io();
        // SAFETY: GIL held; nothing below replaces the action while it is borrowed, except `finish`, which
        // runs after this returned.
        match unsafe { &*self.action.get() } {
            Action::Receive(size) => receive(self.core(), fd, *size),
            Action::ReceiveInto(target) => {
                // Held: asking for the buffer may run Python code that closes this call.
                let target = target.get().unwrap_or_else(Ref::none);
                let buffer = Buffer::writable(target.as_ptr(), "recv_into")?;
                if buffer.len() == 0 {
                    // The socket is not asked, as in Python.
                    return integer(0).map(Attempt::Finished);
                }
                // SAFETY: the view keeps the memory alive and writable.
                let count =
                    unsafe { libc::recv(fd, buffer.as_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
                sized(count, Direction::Read, |count| integer(count as i64))
            }
            // Nothing is sent too: it is a datagram, and finds the errors that the socket has.
            Action::Send { data, sent } => loop {
                let rest = &data.as_slice()[sent.get()..];
                // SAFETY: `rest` is valid for its length.
                let count = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), SEND_FLAGS) };
                if count < 0 {
                    let step = would_block(Direction::Write)?;
                    return Ok(if rest.is_empty() { Attempt::Finished(Ref::none()) } else { step });
                }
                if count as usize == rest.len() {
                    return Ok(Attempt::Finished(Ref::none()));
                }
                sent.set(sent.get() + count as usize);
            },
            Action::Accept => accept(self.socket.as_ptr(), fd),
            Action::Exchange(exchange) => {
                exchange.attempt(self.core(), fd, &self.socket.get().ok_or(Raised)?)
            }
            Action::Connect { waited } if !waited.replace(true) => Ok(Attempt::Blocked(Direction::Write)),
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

    /// Takes the future off the descriptor, if it is still there.
    #[inline(always)]
    fn end_wait(&self) {
        if let Some(future) = self.waiter.take() {
            self.take_off(&future);
        }
    }

    fn take_off(&self, future: &Ref) {
        let (core, fd) = (self.core(), self.fd.get());
        for direction in [Direction::Read, Direction::Write] {
            watch::unwait(core, fd, direction, future.as_ptr());
        }
        watch::unwait(core, fd, Direction::Write, self.object());
    }

    /// The Python object, borrowed.
    fn object(&self) -> *mut ffi::PyObject {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Stays on the descriptor until there is room for more of the file.
    fn stay(&self, socket: &Ref, step: &Attempt) -> Result<(), Raised> {
        let (core, fd) = (self.core(), self.fd.get());
        // SAFETY: alive, as long as this borrow of its inside.
        watch::wait(core, fd, Direction::Write, socket, unsafe { Ref::from_borrowed(self.object()) })?;
        if matches!(step, Attempt::Again) {
            core.requeue(core.fds.token(fd), Readiness::WRITABLE);
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

    /// The socket's descriptor. In the place of a closed one's a number that nobody has: the system call refuses it,
    /// but first the arguments are looked at, as by the socket's own methods.
    fn number(&self, socket: &Ref) -> Result<RawFd, Raised> {
        file_descriptor(socket).or_else(|raised| {
            if !is_plain_socket(socket.as_ptr()) || self.transfer().is_some() {
                return Err(raised);
            }
            drop(raised.take());
            Ok(RawFd::MAX)
        })
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

impl Coroutine for SockCall {
    fn name(&self) -> &'static str {
        self.name
    }

    fn by_hand(&self) -> &Cell<bool> {
        &self.by_hand
    }

    /// Tries, and waits if the call would block.
    fn step(this: This<'_, SockCall>, _: Borrowed<'_>) -> Result<coroutine::Step, Raised> {
        let resumed = !this.waiter.is_empty();
        this.end_wait();
        // SAFETY: GIL held; the borrows end before anything else runs.
        match unsafe { &*this.action.get() } {
            Action::Fail(exception) => {
                if let Some(exception) = exception.take() {
                    raise(exception);
                    return Err(Raised);
                }
            }
            Action::Ended(result) => {
                if let Some(result) = result.take() {
                    this.finish();
                    return Ok(coroutine::Step::Done(result));
                }
            }
            _ => {}
        }
        let socket = this.socket.get().ok_or(Raised)?;
        if this.fd.get() < 0 {
            this.ask_for_method(&socket)?;
            this.fd.set(this.number(&socket)?);
        } else if resumed && file_descriptor(&socket)? != this.fd.get() {
            // Closed while we waited; the number may be another connection's by now.
            return Err(raise_errno(libc::EBADF));
        }
        let step = loop {
            match this.attempt()? {
                Attempt::Again if this.transfer().is_none() => {}
                step => break step,
            }
        };
        match step {
            Attempt::Finished(result) => {
                this.finish();
                Ok(coroutine::Step::Done(result))
            }
            step => {
                let future = new_future(this.event_loop.as_ptr())?;
                if this.transfer().is_some() {
                    this.stay(&socket, &step)?;
                } else if let Attempt::Blocked(direction) = step {
                    watch::wait(this.core(), this.fd.get(), direction, &socket, future.clone_ref())?;
                }
                this.waiter.set(Some(future.clone_ref()));
                // The future leads to the task, and the task to us. A call that ends at once is not tracked, unless it
                // holds what may lead to us already: an exception, by its frames, or an object of the user's own class.
                this.track();
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
}

impl Traverse for SockCall {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([&self.event_loop, &self.socket, &self.waiter].into_iter().chain(self.target()));
    }

    fn clear(&self) {
        self.finish();
        self.socket.clear();
    }
}

impl Dealloc for SockCall {
    fn dealloc(dead: Dead<Self>) {
        if dead.is_new() {
            report_never_awaited(&dead);
        }
        forget_value();
        dead.finish();
        dead.socket.clear();
        dead.event_loop.clear();
        // SAFETY: without references, not tracked, and emptied. Its memory came from this list.
        unsafe { CALLS.free_gc(dead.into_ptr()) };
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
fn progress(transfer: &FileTransfer, progress: Progress) -> Result<Attempt, Raised> {
    match progress {
        Progress::Blocked => Ok(Attempt::Blocked(Direction::Write)),
        Progress::Again => Ok(Attempt::Again),
        Progress::Ended(outcome) => transfer.result(outcome).map(Attempt::Finished),
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
    if is_done(core, &future)? {
        // Cancelled: the task is stepped anyway.
        return Ok(());
    }
    core.note_io();
    let step = match file_descriptor(&socket) {
        Ok(fd) if fd == call.fd.get() => progress(&transfer, transfer.go_on(fd)),
        Ok(_) => transfer.result(Err(io::Error::from_raw_os_error(libc::EBADF))).map(Attempt::Finished),
        Err(Raised) => transfer.lost(Some(take_unless_fatal()?)).map(Attempt::Finished),
    };
    let outcome = match step {
        Ok(Attempt::Finished(result)) => Ok(result),
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
    complete(core, &future)
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<SockCall>(c"wakeloop._core.SockCall").build(py).map(drop)
}
