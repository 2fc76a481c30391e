//! The awaitable object of a socket call.
//!
//! It is stepped like a coroutine (see `capi::coroutine`). Each step makes the system call first. Only if it would block, a
//! future is made and put on the descriptor, and the awaiting task sees that future. A cancel arrives as `throw` and ends
//! the wait.
//!
//! `_sock_send_file` makes many attempts before it is done. Its task is stepped for the first one and for the result; in
//! between, the call itself waits for the descriptor and goes on from there.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::super::completion::{complete, is_done};
use super::super::core::Core;
use super::super::core::loop_ref::LoopRef;
use super::super::core::watched_fd::Direction;
use super::super::futures::new_future;
use super::super::watch;
use super::attempt::{Attempt, SEND_FLAGS, accept, connected, file_descriptor, receive, sized, would_block};
use super::exchange::Exchange;
use super::file_transfer::{FileTransfer, Progress};
use crate::capi::buffer::Buffer;
use crate::capi::collector::Visitor;
use crate::capi::coroutine::{self, AwaitState, Coroutine, Step, already_awaited};
use crate::capi::error::{raise, raise_errno, take_unless_fatal};
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::{self, native_class};
use crate::capi::sockaddr::is_plain_socket;
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
    /// Wait until the socket is writable; the connect itself has been started. The first attempt only waits:
    /// looking at the socket takes its error away, and a caller that cancels at once must still find it.
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

impl Action {
    /// What it holds beside the socket.
    fn held(&self) -> Option<&Slot> {
        match self {
            Action::ReceiveInto(held) | Action::Fail(held) | Action::Ended(held) => Some(held),
            Action::Exchange(exchange) => exchange.held(),
            _ => None,
        }
    }
}

/// One awaitable call.
#[derive(Debug)]
pub(crate) struct SockCall {
    name: &'static str,
    event_loop: LoopRef,
    /// The socket, until the call is over.
    socket: Slot,
    fd: Cell<RawFd>,
    waiter: Slot,
    awaited: AwaitState,
    action: RefCell<Action>,
}

// `make_type` builds the class, of which `create` makes every instance.
native_class!(unsafe SockCall, freelist 64);

impl SockCall {
    pub(crate) fn create(
        core: &Core,
        name: &'static str,
        socket: Borrowed<'_>,
        action: Action,
    ) -> Result<Ref, Raised> {
        let leads_on = !is_plain_socket(socket.as_ptr()) || action.held().is_some_and(|it| !is_buffer(it));
        let object = native::create(SockCall {
            name,
            event_loop: core.loop_ref(),
            socket: Slot::new(Some(socket.to_owned())),
            fd: Cell::new(-1),
            waiter: Slot::empty(),
            awaited: AwaitState::default(),
            action: RefCell::new(action),
        })?;
        if leads_on && let Some(call) = SockCall::from_object(&object) {
            call.track();
        }
        Ok(object)
    }

    /// The object, if it is a call of this kind. The class has no subclasses.
    #[inline(always)]
    pub(crate) fn from_object(object: &Ref) -> Option<This<'_, SockCall>> {
        // SAFETY: just tested; the reference keeps it alive.
        SockCall::class().is_exact_class_of(object).then(|| unsafe { This::from_ptr(object.as_ptr()) })
    }

    fn core(&self) -> &Core {
        self.event_loop.core()
    }

    /// Another action from now on. Does nothing while an attempt is made; `attempt` does it then.
    fn replace_action(&self, next: Action) {
        let old = self.action.try_borrow_mut().map(|mut action| std::mem::replace(&mut *action, next));
        // The old one is dropped outside of the borrow.
        drop(old);
    }

    fn attempt(&self) -> Result<Attempt, Raised> {
        let result = self.attempt_once();
        if self.socket.is_empty() {
            // Python code that the attempt has run closed the call.
            self.replace_action(Action::Done);
        }
        result
    }

    fn attempt_once(&self) -> Result<Attempt, Raised> {
        let fd = self.fd.get();
        self.core().note_io();
        match &*self.action.borrow() {
            Action::Receive(size) => receive(self.core(), fd, *size),
            Action::ReceiveInto(target) => {
                // Held: asking for the buffer may run Python code that closes this call.
                let target = target.get().unwrap_or_else(Ref::none);
                let buffer = Buffer::writable(&target, "recv_into")?;
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
            Action::Accept => accept(&self.socket.get().ok_or(Raised)?, fd),
            Action::Exchange(exchange) => {
                exchange.attempt(self.core(), fd, &self.socket.get().ok_or(Raised)?)
            }
            Action::Connect { waited } if !waited.replace(true) => Ok(Attempt::Blocked(Direction::Write)),
            Action::Connect { .. } => connected(fd),
            // `step` itself does the others.
            Action::SendFile(_) | Action::Ended(_) | Action::Fail(_) | Action::Done => Err(already_awaited()),
        }
    }

    /// Takes the future, or the call itself, off the descriptor, if it is still there.
    #[inline(always)]
    fn end_wait(&self) {
        if let Some(future) = self.waiter.take() {
            let (core, fd) = (self.core(), self.fd.get());
            for direction in [Direction::Read, Direction::Write] {
                watch::unwait(core, fd, direction, future.as_ptr());
            }
            // The call itself, which is only compared.
            let itself = std::ptr::from_ref(self).wrapping_byte_sub(SockCall::offset()).cast_mut().cast();
            watch::unwait(core, fd, Direction::Write, itself);
        }
    }

    /// Fails for what has no such method, such as the `TransportSocket` that a transport shows: asyncio would call it.
    fn ask_for_method(&self, socket: &Ref) -> Result<(), Raised> {
        if is_plain_socket(socket.as_ptr()) {
            return Ok(());
        }
        let names = imports();
        let name = match &*self.action.borrow() {
            Action::Receive(_) => &names.recv,
            Action::ReceiveInto(_) => &names.recv_into,
            Action::Send { .. } => &names.send,
            Action::Accept => &names.accept,
            _ => return Ok(()),
        };
        if std::ptr::eq(name, &names.accept) {
            file_descriptor(socket)?;
        }
        socket.getattr(name).map(drop)
    }

    /// The file, if it is one that is sent.
    fn transfer(&self) -> Option<Rc<FileTransfer>> {
        match &*self.action.borrow() {
            Action::SendFile(transfer) => Some(Rc::clone(transfer)),
            _ => None,
        }
    }
}

/// Sends more of a file. `None` if the call then waits on the descriptor for the rest.
fn send_file(this: This<'_, SockCall>, socket: &Ref, transfer: &FileTransfer) -> Result<Option<Ref>, Raised> {
    let (core, fd) = (this.core(), this.fd.get());
    let progress = transfer.go_on(fd);
    if let Progress::Ended(outcome) = progress {
        return transfer.result(outcome).map(Some);
    }
    watch::wait(core, fd, Direction::Write, socket, this.object().to_owned())?;
    if matches!(progress, Progress::Again) {
        core.requeue(core.fds.token(fd), Readiness::WRITABLE);
    }
    Ok(None)
}

impl Coroutine for SockCall {
    fn name(&self) -> &'static str {
        self.name
    }

    fn awaited(&self) -> &AwaitState {
        &self.awaited
    }

    /// Tries, and waits if the call would block.
    fn step(this: This<'_, SockCall>, _: Borrowed<'_>) -> Result<Step, Raised> {
        let resumed = !this.waiter.is_empty();
        this.end_wait();
        let transfer = match &*this.action.borrow() {
            // An earlier attempt without the task came to this.
            Action::Ended(result) => return result.take().map(Step::Done).ok_or(Raised),
            Action::Fail(exception) => {
                return Err(raise(exception.take().ok_or(Raised)?));
            }
            // Held, since sending gives the GIL up.
            Action::SendFile(transfer) => Some(Rc::clone(transfer)),
            _ => None,
        };
        let socket = this.socket.get().ok_or_else(already_awaited)?;
        if this.fd.get() < 0 {
            this.ask_for_method(&socket)?;
            this.fd.set(file_descriptor(&socket).or_else(|raised| {
                if !is_plain_socket(socket.as_ptr()) || transfer.is_some() {
                    return Err(raised);
                }
                drop(raised.take());
                // A number that no descriptor has. The system call refuses a closed socket by it, but first the arguments
                // are checked, as by the socket's own methods.
                Ok(RawFd::MAX)
            })?);
        } else if resumed && file_descriptor(&socket)? != this.fd.get() {
            // Closed while we waited; the number may be another connection's by now.
            return Err(raise_errno(libc::EBADF));
        }
        let new_future = || new_future(this.core());
        let future = if let Some(transfer) = transfer {
            let future = new_future()?;
            if let Some(result) = send_file(this, &socket, &transfer)? {
                return Ok(Step::Done(result));
            }
            future
        } else {
            let direction = loop {
                match this.attempt()? {
                    Attempt::Finished(result) => return Ok(Step::Done(result)),
                    Attempt::Blocked(direction) => break direction,
                    Attempt::Again => {}
                }
            };
            let future = new_future()?;
            watch::wait(this.core(), this.fd.get(), direction, &socket, future.clone_ref())?;
            future
        };
        this.waiter.set(Some(future.clone_ref()));
        // The future leads to the task, and the task to us. A call that ends at once is not tracked, unless it holds what
        // may lead to us already: an exception, by its frames, or an object of the user's own class.
        this.track();
        Ok(Step::Wait(future))
    }

    /// Nothing will be tried any more; what the call held is dropped.
    fn finish(&self) {
        self.end_wait();
        self.socket.clear();
        self.replace_action(Action::Done);
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.reference(self.event_loop.object());
        visitor.slots([&self.socket, &self.waiter]);
        visitor.slots(self.action.borrow().held());
    }
}

/// Is it a buffer that leads to nothing else?
fn is_buffer(target: &Slot) -> bool {
    let object = target.as_ptr();
    // SAFETY: null or an object that the slot holds.
    !object.is_null()
        && unsafe { ffi::PyByteArray_CheckExact(object) != 0 || ffi::PyMemoryView_Check(object) != 0 }
}

/// The descriptor that a call waits for is ready: more of its file goes out. The task is woken at the end.
pub(crate) fn go_on(core: &Core, call: This<'_, SockCall>) -> Result<(), Fatal> {
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
    let sent = match file_descriptor(&socket) {
        Ok(fd) if fd == call.fd.get() => send_file(call, &socket, &transfer),
        Ok(_) => transfer.result(Err(io::Error::from_raw_os_error(libc::EBADF))).map(Some),
        Err(Raised) => transfer.lost(Some(take_unless_fatal()?)).map(Some),
    };
    let next = match sent {
        Ok(None) => return Ok(()),
        Ok(result) => Action::Ended(Slot::new(result)),
        Err(Raised) => Action::Fail(Slot::new(Some(take_unless_fatal()?))),
    };
    call.replace_action(next);
    complete(core, &future)
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<SockCall>(c"wakeloop._core.SockCall").build(py).map(drop)
}
