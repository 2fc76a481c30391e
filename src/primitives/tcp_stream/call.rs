//! One awaitable call on a stream: a read of some kind, or a write.
//!
//! Both try at once. Only what is not here yet, or does not fit, waits: a read for a future that the receiving side
//! completes, a write for an operation that sends the rest.

use std::cell::{Cell, UnsafeCell};
use std::io;

use pyo3::prelude::*;

use super::outcome::{ReadKind, conclude};
use super::{Open, TcpStream};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::budget;
use crate::bridge::drop_on_loop::DropOnLoop;
use crate::bridge::loop_handle::LoopHandle;
use crate::capi::collector::{Traverse, Visitor};
use crate::capi::coroutine::{self, Coroutine, Step};
use crate::capi::error::raise_io;
use crate::capi::native::{self, Class, Dead, Dealloc};
use crate::capi::recycle::freelist::Freelist;
use crate::capi::recycle::stop_iteration::forget_value;
use crate::capi::{Borrowed, Exception, Native, Raised, Ref, Slot, This};
use crate::framing::ReadRequest;
use crate::primitives::data::{Data, Sendable};

/// What is to be done.
#[derive(Debug)]
pub(super) enum Action {
    Read(ReadRequest, ReadKind),
    Write(Data),
    /// Everything was sent at once; the task goes on in the next turn of the loop.
    Sent,
    Done,
}

#[derive(Debug)]
pub(super) struct TcpStreamCall {
    name: &'static str,
    /// A first step was taken.
    begun: Cell<bool>,
    /// The stream, until the call is over.
    stream: Slot,
    action: UnsafeCell<Action>,
    /// What a read waits for.
    future: Slot,
    /// What sends the rest of a write.
    sending: Slot,
    /// Python code may step the object.
    by_hand: Cell<bool>,
}

static CLASS: Class = Class::new();

// SAFETY: `make_type` builds the class, of which `create` makes every instance.
unsafe impl Native for TcpStreamCall {
    fn class() -> &'static Class {
        &CLASS
    }

    #[inline(always)]
    fn freelist() -> Option<&'static Freelist> {
        Some(&FREE)
    }
}

/// The memory of dead calls.
static FREE: Freelist = Freelist::new(64);

impl TcpStreamCall {
    pub(super) fn create(
        stream: This<'_, TcpStream>,
        name: &'static str,
        action: Action,
    ) -> Result<Ref, Raised> {
        native::create(TcpStreamCall {
            name,
            begun: Cell::new(false),
            stream: Slot::new(Some(stream.object().to_owned())),
            action: UnsafeCell::new(action),
            future: Slot::empty(),
            sending: Slot::empty(),
            by_hand: Cell::new(false),
        })
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
            return Err(Exception::RuntimeError.raise("another task is already reading from this stream"));
        }
        if !waited && budget::is_spent() {
            return Ok(Step::Yield);
        }
        let found = stream.look(request, !waited, waited)?;
        if let Some(step) = conclude(stream, found, request, kind)? {
            return Ok(step);
        }
        // A copy: making the future may run Python code, which may end this call and drop its request.
        let request = &request.clone();
        loop {
            budget::refill();
            if let Some(future) = stream.wait(this.py(), request, waited)? {
                stream.reading.set(true);
                this.future.set(Some(future.clone_ref()));
                this.track();
                return Ok(Step::Wait(future));
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
        let turn = {
            let open = stream.open(false)?;
            // No other write waits to be sent.
            if open.turn.available() > 0 {
                stream.touch();
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
        // The socket takes no more: the rest is sent without the GIL.
        let socket = stream.on_runtime()?;
        let rest = DropOnLoop::new(std::mem::take(data).into_sendable(py), &LoopHandle::running(py)?);
        let sending = Operation::create(py, "TcpStream.write_all", async move {
            let turn = turn.acquire(1).await;
            let sent = socket.write_all(rest.get().map_or(&[], Sendable::as_slice)).await;
            drop(turn);
            match sent {
                Ok(()) => Outcome::Nothing,
                Err(error) => Outcome::Error(error),
            }
        });
        this.sending.set(Some(sending?.into()));
        this.track();
        TcpStreamCall::send_on(this)
    }

    /// One step of the operation that sends the rest.
    fn send_on(this: This<'_, Self>) -> Result<Step, Raised> {
        let sending = this.sending.get().ok_or(Raised)?;
        let operation = sending.downcast::<Operation>().ok_or(Raised)?;
        Operation::step(operation, Borrowed::none())
    }

    fn go_on(this: This<'_, Self>) -> Result<Step, Raised> {
        if !this.sending.is_empty() {
            return TcpStreamCall::send_on(this);
        }
        let Some(stream) = this.stream.get() else {
            return Err(Exception::RuntimeError.raise("cannot reuse already awaited coroutine"));
        };
        let Some(stream) = stream.downcast::<TcpStream>() else { return Err(Raised) };
        // SAFETY: nothing else borrows the action during a step, as one task steps a coroutine. `finish` may replace it
        // once Python code runs; before that `read` clones its request, and `write` takes its data.
        match unsafe { &mut *this.action.get() } {
            Action::Read(request, kind) => TcpStreamCall::read(this, &stream, request, *kind),
            Action::Write(data) => {
                let step = TcpStreamCall::write(this, &stream, data)?;
                if matches!(step, Step::Yield) && this.sending.is_empty() {
                    drop(this.replace(Action::Sent));
                }
                Ok(step)
            }
            Action::Sent => Ok(Step::Done(Ref::none())),
            Action::Done => Err(Raised),
        }
    }

    fn replace(&self, action: Action) -> Action {
        // SAFETY: no borrow of the action is alive: see `go_on`.
        unsafe { std::mem::replace(&mut *self.action.get(), action) }
    }
}

impl Coroutine for TcpStreamCall {
    fn name(&self) -> &'static str {
        self.name
    }

    fn by_hand(&self) -> &Cell<bool> {
        &self.by_hand
    }

    fn step(this: This<'_, Self>, _: Borrowed<'_>) -> Result<Step, Raised> {
        this.begun.set(true);
        let step = TcpStreamCall::go_on(this)?;
        if matches!(step, Step::Done(_)) {
            this.finish();
        }
        Ok(step)
    }

    fn finish(&self) {
        self.begun.set(true);
        let stream = self.stream.take();
        if !self.future.is_empty() {
            self.future.clear();
            if let Some(stream) = stream.as_ref().and_then(|stream| stream.downcast::<TcpStream>()) {
                stream.end_read();
            }
        }
        self.sending.clear();
        drop(self.replace(Action::Done));
    }
}

impl Traverse for TcpStreamCall {
    fn traverse(&self, visitor: &mut Visitor) {
        visitor.slots([&self.stream, &self.future, &self.sending]);
    }

    fn clear(&self) {
        self.finish();
    }
}

impl Dealloc for TcpStreamCall {
    fn dealloc(dead: Dead<Self>) {
        if !dead.begun.get() {
            coroutine::report_never_awaited(&dead);
        }
        forget_value();
        // Before the fields are dropped: it notifies the stream.
        dead.finish();
    }
}

/// Sends what fits; true if that was all.
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
