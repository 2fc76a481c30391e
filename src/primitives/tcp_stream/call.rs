//! One awaitable call on a stream: a read of some kind, or a write.
//!
//! Both first try without waiting. If the item is not here yet, the read waits for a future that the receiving side
//! completes. If the data does not fit, the write waits for an operation that sends the rest.

use std::cell::UnsafeCell;
use std::io;

use pyo3::prelude::*;

use super::outcome::{ReadKind, conclude};
use super::stream::{Open, TcpStream};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::budget;
use crate::bridge::drop_on_loop::DropOnLoop;
use crate::bridge::io_error::raise_io;
use crate::bridge::loop_handle::LoopHandle;
use crate::capi::coroutine::{self, Step, already_awaited};
use crate::capi::native::native_class;
use crate::capi::pending::{AsyncCall, Pending, Stage};
use crate::capi::raised::clear_error;
use crate::capi::section::{AS_FREE_THREADED, FREE_THREADED};
use crate::capi::{Borrowed, Exception, Raised, Ref, This};
use crate::framing::ReadRequest;
use crate::primitives::data::{Data, Sendable};

/// What is to be done.
#[derive(Clone, Debug)]
pub(super) enum Action {
    Read(ReadRequest, ReadKind),
    Write(Data),
    /// Everything was sent at once. The task continues in the next turn of the loop.
    Sent,
    Done,
}

/// A call of a stream, which is the target, and whose lock guards the call. The object is what sends the rest of a
/// write.
pub(super) type TcpStreamCall = Pending<TcpStreamState>;

#[derive(Debug)]
pub(super) struct TcpStreamState {
    action: UnsafeCell<Action>,
}

// `make_type` builds the class, of which `create` makes every instance.
native_class!(unsafe TcpStreamCall, freelist 64, guard |it| it.target.as_ptr());

impl TcpStreamCall {
    pub(super) fn create(
        stream: This<'_, TcpStream>,
        name: &'static str,
        action: Action,
    ) -> Result<Ref, Raised> {
        let state = TcpStreamState { action: UnsafeCell::new(action) };
        TcpStreamCall::make(name, Some(stream.object().to_owned()), None, state)
    }

    fn read(
        this: This<'_, Self>,
        stream: &TcpStream,
        request: &ReadRequest,
        kind: ReadKind,
    ) -> Result<Step, Raised> {
        let waited = !this.future.is_empty();
        drop(stream.open(waited)?);
        if !waited && stream.reading.get() {
            return Err(already_read());
        }
        if !waited && budget::is_spent() {
            return Ok(Step::Yield);
        }
        let found = stream.look(request, !waited, waited)?;
        if let Some(step) = conclude(stream, found, request, kind)? {
            return Ok(step);
        }
        // This is a copy, because making the future may run Python code, which may end this call and drop its
        // request.
        let request = &request.clone();
        loop {
            budget::refill();
            // This comes first: to begin a wait may let another thread read, or run Python code that does.
            if !waited && stream.reading.replace(true) {
                return Err(already_read());
            }
            match stream.wait(this.py(), request, waited) {
                Ok(Some((future, now))) => return Ok(TcpStreamCall::wait_since(this, future, now)),
                other => {
                    stream.reading.set(waited);
                    drop(other?);
                }
            }
            let found = stream.look(request, false, waited)?;
            if let Some(step) = conclude(stream, found, request, kind)? {
                return Ok(step);
            }
        }
    }

    fn write(this: This<'_, Self>, stream: &TcpStream, data: &mut Data) -> Result<Step, Raised> {
        let py = this.py();
        if stream.eof.get() {
            return Err(Exception::RuntimeError.raise("Cannot write after write_eof()"));
        }
        if AS_FREE_THREADED {
            // The section of the loop may suspend that of the stream, so no borrow is held meanwhile.
            stream.note_io();
        }
        let turn = {
            let open = stream.open(false)?;
            // No other write waits to be sent.
            if open.turn.available() > 0 {
                if !AS_FREE_THREADED {
                    stream.note_io();
                }
                budget::spend_item(data.rest().len());
                match send(&open, data) {
                    Ok(true) if budget::is_spent() => return Ok(Step::Yield),
                    Ok(true) => return Ok(Step::Done(Ref::none())),
                    Ok(false) => {}
                    Err(error) => return Err(raise_io(&error)),
                }
            }
            open.turn.clone()
        };
        // The socket takes no more. The rest is sent without the GIL.
        let socket = stream.on_runtime()?;
        let rest = DropOnLoop::new(data.to_sendable(py), &LoopHandle::running(py)?);
        let sending = Operation::create(py, "send", async move {
            let turn = turn.acquire(1).await;
            let sent = socket.write_all(rest.get().map_or(&[], Sendable::as_slice)).await;
            drop(turn);
            sent.map_or_else(Outcome::Error, |()| Outcome::Nothing)
        });
        this.object.set(Some(sending?.into()));
        this.track();
        TcpStreamCall::send_on(this)
    }

    /// One step of the operation that sends the rest.
    fn send_on(this: This<'_, Self>) -> Result<Step, Raised> {
        let sending = this.object.get().ok_or(Raised)?;
        let advance = |operation: This<'_, Operation>| coroutine::advance(operation, Borrowed::none());
        let step = sending.with_native(advance).ok_or(Raised)?;
        if step.is_err()
            && Exception::OSError.is_set()
            && let Some(stream) = this.target.get()
            && let Some(stream) = stream.downcast::<TcpStream>()
            && stream.is_closed()
        {
            // close() shuts the socket down. To the system, that is as if the peer had ended the connection.
            clear_error();
            drop(stream.open(true)?);
        }
        step
    }

    fn replace(&self, action: Action) -> Action {
        // SAFETY: no borrow of the action is used any more: see `step`.
        unsafe { std::mem::replace(&mut *self.state.action.get(), action) }
    }
}

impl AsyncCall for TcpStreamState {
    const KEEPS_TARGET: bool = FREE_THREADED;

    #[inline(always)]
    fn step(this: This<'_, TcpStreamCall>, _: Stage) -> Result<Option<Step>, Raised> {
        if !this.object.is_empty() {
            return TcpStreamCall::send_on(this).map(Some);
        }
        let stream = this.target.get().ok_or_else(already_awaited)?;
        let Some(stream) = stream.downcast::<TcpStream>() else { return Err(Raised) };
        // SAFETY: nothing else borrows the action during a step, as one task steps a coroutine. `finish` may replace it
        // once Python code runs; before that `read` clones its request, and `write` takes a reference to its data.
        let mut action = unsafe { &mut *this.state.action.get() };
        let mut copy;
        if AS_FREE_THREADED {
            // Other threads may end the call as soon as a section of the loop suspends that of the stream. The copy is
            // enough: what `write` has sent is known to the operation that sends the rest.
            copy = action.clone();
            action = &mut copy;
        }
        let step = match action {
            Action::Read(request, kind) => TcpStreamCall::read(this, &stream, request, *kind),
            Action::Write(data) => {
                let step = TcpStreamCall::write(this, &stream, data)?;
                if matches!(step, Step::Yield) && this.object.is_empty() {
                    drop(this.replace(Action::Sent));
                }
                Ok(step)
            }
            Action::Sent => Ok(Step::Done(Ref::none())),
            Action::Done => Err(already_awaited()),
        };
        step.map(Some)
    }

    #[inline(always)]
    fn finish(call: &TcpStreamCall, stream: Option<&Ref>) {
        if call.future.take().is_some()
            && let Some(stream) = stream.and_then(|stream| stream.downcast::<TcpStream>())
        {
            stream.end_read();
        }
        call.object.clear();
        drop(call.replace(Action::Done));
    }

    fn wait_kind(call: &TcpStreamCall) -> &'static str {
        if call.object.is_empty() { "socket read" } else { "socket write" }
    }

    fn waits_for(call: &TcpStreamCall) -> Option<Ref> {
        call.future.get().or_else(|| call.object.get())
    }
}

#[cold]
fn already_read() -> Raised {
    Exception::RuntimeError.raise("another task is already reading from this stream")
}

/// Sends what fits. Returns true if that was all.
fn send(open: &Open, data: &mut Data) -> io::Result<bool> {
    loop {
        let rest = data.rest();
        if rest.is_empty() {
            return Ok(true);
        }
        match open.try_write(rest) {
            Ok(count) => data.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<TcpStreamCall>(c"wakeloop._core.TcpStreamCall").build(py).map(drop)
}
