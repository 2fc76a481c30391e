//! The awaitable of a socket call.
//!
//! It behaves like a coroutine (see `capi::coroutine`). Each step makes the system call first. Only if that would
//! block, the step creates a future, registers it with the descriptor, and yields it to the awaiting task. A cancel
//! calls `throw`, which ends the wait.
//!
//! `_sock_send_file` makes many attempts before it is done. Its task is stepped only for the first one and for the
//! result. In between, the call itself waits for the descriptor and resumes.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::ffi;
use pyo3::prelude::*;

use super::attempt::{Attempt, SEND_FLAGS, accept, connected, file_descriptor, receive, sized, would_block};
use super::exchange::Exchange;
use super::file_transfer::{FileTransfer, Progress};
use crate::capi::buffer::Buffer;
use crate::capi::collector::Visitor;
use crate::capi::coroutine::{self, Step, already_awaited};
use crate::capi::error::{raise, raise_errno, take_unless_fatal};
use crate::capi::inspect::integer;
use crate::capi::native::native_class;
use crate::capi::pending::{AsyncCall, Pending, Stage};
use crate::capi::sockaddr::is_plain_socket;
use crate::capi::{Borrowed, Fatal, Native, Raised, Ref, Slot, This};
use crate::kernel::completion::{complete, is_done};
use crate::kernel::core::Core;
use crate::kernel::core::loop_ref::LoopRef;
use crate::kernel::core::watched_fd::Direction;
use crate::kernel::futures::new_future;
use crate::kernel::watch;
use crate::reactor::Readiness;
use crate::recorder::event::Kind;

/// What the call does.
#[derive(Debug)]
pub(crate) enum Action {
    Receive(usize),
    ReceiveInto(Slot),
    Send {
        data: Buffer,
        sent: Cell<usize>,
    },
    Accept,
    /// A call with an address. It is boxed because an address is much larger than the other variants.
    Exchange(Box<Exchange>),
    /// Wait until the socket is writable, after a connect was started. The first attempt always waits: reading
    /// `SO_ERROR` clears the error, and a caller that cancels at once must still be able to read it.
    Connect {
        waited: Cell<bool>,
    },
    /// Send a file.
    SendFile(Rc<FileTransfer>),
    /// Return this result of an attempt that was made without the task.
    Ended(Slot),
    /// Raise this exception. The arguments were wrong, or an attempt that was made without the task has failed.
    Fail(Slot),
    Done,
}

impl Action {
    /// The Python object that it holds besides the socket.
    fn held(&self) -> Option<&Slot> {
        match self {
            Action::ReceiveInto(held) | Action::Fail(held) | Action::Ended(held) => Some(held),
            Action::Exchange(exchange) => exchange.held(),
            _ => None,
        }
    }
}

/// An awaitable socket call. The socket is its target.
pub(crate) type SockCall = Pending<SockState>;

#[derive(Debug)]
pub(crate) struct SockState {
    event_loop: LoopRef,
    fd: Cell<RawFd>,
    action: RefCell<Action>,
}

// `make_type` builds the class. Only `create` makes instances.
native_class!(unsafe SockCall, freelist 64, guard |it| it.state.event_loop.object().as_ptr());

impl SockCall {
    pub(crate) fn create(
        core: &Core,
        name: &'static str,
        socket: Borrowed<'_>,
        action: Action,
    ) -> Result<Ref, Raised> {
        let may_form_cycle =
            !is_plain_socket(socket.as_ptr()) || action.held().is_some_and(|it| !is_buffer(it));
        let state =
            SockState { event_loop: core.loop_ref(), fd: Cell::new(-1), action: RefCell::new(action) };
        let object = SockCall::make(name, Some(socket.to_owned()), None, state)?;
        if may_form_cycle && let Some(call) = SockCall::from_object(&object) {
            call.track();
        }
        Ok(object)
    }

    /// The object, if it is a `SockCall`. The class has no subclasses.
    #[inline(always)]
    pub(crate) fn from_object(object: &Ref) -> Option<This<'_, SockCall>> {
        // SAFETY: the type is tested first. The reference keeps the object alive.
        SockCall::class().is_exact_class_of(object).then(|| unsafe { This::from_ptr(object.as_ptr()) })
    }

    fn core(&self) -> &Core {
        self.state.event_loop.core()
    }

    /// Replaces the action. Does nothing during an attempt; `attempt` then does it at its end.
    fn replace_action(&self, next: Action) {
        let old = self.state.action.try_borrow_mut().map(|mut action| std::mem::replace(&mut *action, next));
        // The old action is dropped after the borrow has ended.
        drop(old);
    }

    fn attempt(&self) -> Result<Attempt, Raised> {
        let result = self.attempt_once();
        if self.target.is_empty() {
            // The attempt has run Python code, which has closed the call.
            self.replace_action(Action::Done);
        }
        result
    }

    fn attempt_once(&self) -> Result<Attempt, Raised> {
        let fd = self.state.fd.get();
        self.core().note_io();
        match &*self.state.action.borrow() {
            Action::Receive(size) => receive(self.core(), fd, *size),
            Action::ReceiveInto(target) => {
                // An owned reference: to ask for the buffer may run Python code that closes this call.
                let target = target.get().unwrap_or_else(Ref::none);
                let buffer = Buffer::writable(&target, "recv_into() argument 1")?;
                if buffer.len() == 0 {
                    // As in Python, there is no system call.
                    return integer(0).map(Attempt::Finished);
                }
                // SAFETY: the view keeps the memory alive and writable.
                let count =
                    unsafe { libc::recv(fd, buffer.as_ptr().cast(), buffer.len(), libc::MSG_DONTWAIT) };
                self.core().note_received(fd, count);
                sized(count, Direction::Read, |count| integer(count as i64))
            }
            // Empty data is sent too: it may be a datagram, and the call reports a pending error of the socket.
            Action::Send { data, sent } => loop {
                let rest = &data.as_slice()[sent.get()..];
                self.core().probe.recorder.sends(Kind::Write, fd, || rest.len());
                // SAFETY: `rest` is valid for its length.
                let count = unsafe { libc::send(fd, rest.as_ptr().cast(), rest.len(), SEND_FLAGS) };
                self.core().probe.recorder.sent(fd, || rest.len() - count.max(0) as usize);
                if count < 0 {
                    let step = would_block(Direction::Write)?;
                    return Ok(if rest.is_empty() { Attempt::Finished(Ref::none()) } else { step });
                }
                if count as usize == rest.len() {
                    return Ok(Attempt::Finished(Ref::none()));
                }
                sent.set(sent.get() + count as usize);
            },
            Action::Accept => accept(&self.target.get().ok_or(Raised)?, fd),
            Action::Exchange(exchange) => {
                exchange.attempt(self.core(), fd, &self.target.get().ok_or(Raised)?)
            }
            Action::Connect { waited } if !waited.replace(true) => Ok(Attempt::Blocked(Direction::Write)),
            Action::Connect { .. } => connected(fd),
            // `step` handles the others.
            Action::SendFile(_) | Action::Ended(_) | Action::Fail(_) | Action::Done => Err(already_awaited()),
        }
    }

    /// Removes the future, or the call itself, from the waiters of the descriptor.
    #[inline(always)]
    fn end_wait(&self) {
        if let Some(future) = self.future.take() {
            let (core, fd) = (self.core(), self.state.fd.get());
            for direction in [Direction::Read, Direction::Write] {
                watch::cancel_wait(core, fd, direction, future.as_ptr());
            }
            // The address of the call's Python object. It is only compared.
            let itself = std::ptr::from_ref(self).wrapping_byte_sub(SockCall::offset()).cast_mut().cast();
            watch::cancel_wait(core, fd, Direction::Write, itself);
        }
    }

    /// The transfer of a call that sends a file.
    fn transfer(&self) -> Option<Rc<FileTransfer>> {
        match &*self.state.action.borrow() {
            Action::SendFile(transfer) => Some(Rc::clone(transfer)),
            _ => None,
        }
    }
}

/// Sends more of a file. Returns `None` if there is more to send; the call then waits for the descriptor.
fn send_file(this: This<'_, SockCall>, socket: &Ref, transfer: &FileTransfer) -> Result<Option<Ref>, Raised> {
    let (core, fd) = (this.core(), this.state.fd.get());
    let progress = transfer.send_more(fd);
    if let Progress::Ended(outcome) = progress {
        return transfer.result(outcome).map(Some);
    }
    watch::wait(core, fd, Direction::Write, socket, this.object().to_owned(), Some(resume))?;
    if matches!(progress, Progress::Again) {
        core.requeue(core.fds.token(fd), Readiness::WRITABLE);
    }
    Ok(None)
}

impl AsyncCall for SockState {
    /// Makes an attempt, and waits if it would block.
    #[inline(always)]
    fn step(this: This<'_, SockCall>, _: Stage) -> Result<Option<Step>, Raised> {
        let resumed = !this.future.is_empty();
        this.end_wait();
        let transfer = match &*this.state.action.borrow() {
            // An attempt without the task has ended with this.
            Action::Ended(result) => {
                return result.take().map(|result| Some(Step::Done(result))).ok_or(Raised);
            }
            Action::Fail(exception) => {
                return Err(raise(exception.take().ok_or(Raised)?));
            }
            // An owned reference, because sending releases the GIL.
            Action::SendFile(transfer) => Some(Rc::clone(transfer)),
            _ => None,
        };
        // What transports have written in this step leaves first, as in asyncio. That may run Python code, which may
        // close the socket.
        this.core().flush_all().map_err(|Fatal| Raised)?;
        let socket = this.target.get().ok_or_else(already_awaited)?;
        if this.state.fd.get() < 0 {
            this.state.fd.set(file_descriptor(&socket).or_else(|raised| {
                if !is_plain_socket(socket.as_ptr()) || transfer.is_some() {
                    return Err(raised);
                }
                drop(raised.take());
                // A number that no descriptor has. So the system call of a closed socket fails, but only after the
                // arguments were checked, as in the socket's own methods.
                Ok(RawFd::MAX)
            })?);
        } else if resumed && file_descriptor(&socket)? != this.state.fd.get() {
            // The socket was closed during the wait. Its number may belong to another connection by now.
            return Err(raise_errno(libc::EBADF));
        }
        let new_future = || new_future(this.core());
        let future = if let Some(transfer) = transfer {
            let future = new_future()?;
            if let Some(result) = send_file(this, &socket, &transfer)? {
                return Ok(Some(Step::Done(result)));
            }
            future
        } else {
            let direction = loop {
                match this.attempt()? {
                    Attempt::Finished(result) => return Ok(Some(Step::Done(result))),
                    Attempt::Blocked(direction) => break direction,
                    Attempt::Again => {}
                }
            };
            let future = new_future()?;
            watch::wait(this.core(), this.state.fd.get(), direction, &socket, future.clone_ref(), None)?;
            future
        };
        // From now on there is a reference cycle: the future refers to the task, and the task to this call. A call that
        // ends at once needs no tracking, unless `create` has found an object in it that may be part of a cycle.
        Ok(Some(SockCall::wait_since(this, future, this.core().polls.last_poll())))
    }

    #[inline(always)]
    fn finish(call: &SockCall, _: Option<&Ref>) {
        call.end_wait();
        call.replace_action(Action::Done);
    }

    fn wait_kind(call: &SockCall) -> &'static str {
        match &*call.state.action.borrow() {
            Action::Receive(_) | Action::ReceiveInto(_) => "socket read",
            Action::Exchange(exchange) => exchange.wait_kind(),
            Action::Accept => "accept",
            Action::Connect { .. } => "connect",
            _ => "socket write",
        }
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.reference(self.event_loop.object());
        visitor.slots(self.action.borrow().held());
    }
}

/// Is it a buffer object that cannot be part of a reference cycle?
fn is_buffer(target: &Slot) -> bool {
    let object = target.as_ptr();
    // SAFETY: null is excluded first; the slot owns the object.
    !object.is_null()
        && unsafe { ffi::PyByteArray_CheckExact(object) != 0 || ffi::PyMemoryView_Check(object) != 0 }
}

/// The descriptor is ready for a call that sends a file. Sends more, and wakes the task at the end of the file.
fn resume(call: &Ref, core: &Core) -> Result<(), Fatal> {
    let Some(call) = SockCall::from_object(call) else { return Ok(()) };
    let (Some(future), Some(socket), Some(transfer)) =
        (call.future.get(), call.target.get(), call.transfer())
    else {
        return Ok(());
    };
    if is_done(core, &future)? {
        // The future was cancelled. The task will be stepped because of that.
        return Ok(());
    }
    core.note_io();
    let sent = match file_descriptor(&socket) {
        Ok(fd) if fd == call.state.fd.get() => send_file(call, &socket, &transfer),
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
