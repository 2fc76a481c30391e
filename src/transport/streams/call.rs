//! The awaitable that the reading methods and `drain` return. It behaves like a coroutine.
//!
//! It does the same as the coroutine of asyncio's method. Nothing happens before it is first awaited. Then it does as
//! much as it can without waiting. If it has to wait, it yields the future that is also the reader's `_waiter`, and
//! resumes when the future is done. If native code cannot handle the call, at the start or after a wait, asyncio's
//! coroutine is awaited instead.

use std::cell::{Cell, UnsafeCell};
use std::mem::offset_of;
use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::classes::{Classes, inherited, plain_reader};
use super::long_read::{self, with_native_transport};
use super::reader::Reader;
use super::reading::{check, join, not_empty, read_all, read_exactly, read_line, read_some, read_until};
use super::waiter::result_of;
use super::writing::is_drained;
use crate::capi::buffer::bytes_from;
use crate::capi::collector::Visitor;
use crate::capi::coroutine::{self, AwaitState, Coroutine, Step, Wait, already_awaited};
use crate::capi::fallible::tuple;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::{self, native_class};
use crate::capi::section::FREE_THREADED;
use crate::capi::{Arguments, Borrowed, Exception, Raised, Ref, Slot, This};
use crate::clock::monotonic_nanos;
use crate::kernel::core::Core;

/// What the call does.
#[derive(Debug)]
pub(super) enum CallKind {
    Read(usize),
    /// Read until the end of the stream. The vector has the blocks that were read so far.
    ReadAll(Vec<Ref>),
    Exactly(isize),
    Line,
    Next,
    /// Read up to one of the separators, of which the shortest is the first. Without any, read up to a newline.
    Until(Vec<Ref>),
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallPhase {
    Fresh,
    /// A step is running.
    Running,
    /// The call waits for the future in `waiter`.
    Waiting,
    /// The call awaits asyncio's coroutine in `waiter`.
    PassedOn,
    Done,
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Call {
    kind: UnsafeCell<CallKind>,
    /// The reader; for `drain` the writer. Its lock guards the call. On a free-threaded build it stays as long as the call.
    owner: Slot,
    waiter: Slot,
    awaited: AwaitState,
    /// The offset in the data at which the search for a separator continues, at most.
    offset: Cell<u32>,
    phase: Cell<CallPhase>,
}

// `make_type` builds the class. Only `create` makes instances.
native_class!(unsafe Call, freelist 64, guard |it| it.owner.as_ptr());

impl Call {
    #[inline(always)]
    pub(super) fn create(owner: &Ref, kind: CallKind) -> Result<Ref, Raised> {
        native::create_with(|| Call {
            kind: UnsafeCell::new(kind),
            owner: Slot::new(Some(owner.clone_ref())),
            waiter: Slot::empty(),
            awaited: AwaitState::default(),
            offset: Cell::new(0),
            phase: Cell::new(CallPhase::Fresh),
        })
    }

    #[allow(clippy::mut_from_ref, reason = "a guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    fn kind(&self) -> &mut CallKind {
        // SAFETY: this thread is in the owner's section, and every caller ends the borrow before Python code runs.
        unsafe { &mut *self.kind.get() }
    }

    #[inline(always)]
    fn begin(this: This<'_, Self>) -> Result<Step, Raised> {
        let Some(owner) = this.owner.get() else { return Err(already_awaited()) };
        if let CallKind::Drain = this.kind() {
            return if is_drained(&owner)? {
                Ok(Step::Done(Ref::none()))
            } else {
                Call::pass_on(this, &owner)
            };
        }
        let Some(reader) = plain_reader(&owner) else { return Call::pass_on(this, &owner) };
        if let CallKind::Exactly(size) = *this.kind()
            && size < 0
        {
            return Err(Exception::ValueError.raise("readexactly size can not be less than zero"));
        }
        if this.may_handle_exception(reader) {
            return Call::pass_on(this, &owner);
        }
        check(reader)?;
        if let CallKind::Exactly(0) | CallKind::Read(0) = this.kind() {
            return bytes_from(&[]).map(Step::Done);
        }
        Call::try_read(this, reader, false)
    }

    /// Resumes after the future is done.
    fn resume(this: This<'_, Self>) -> Result<Step, Raised> {
        let (Some(owner), Some(waiter)) = (this.owner.get(), this.waiter.get()) else {
            return Err(already_awaited());
        };
        let Some(reader) = owner.downcast::<Reader>() else { return Err(already_awaited()) };
        let result = result_of(&waiter);
        this.stop_waiting(&reader);
        if let Err(raised) = result {
            if !this.may_handle_exception(&reader) {
                return Err(raised);
            }
            drop(raised.take());
            return Call::pass_on(this, &owner);
        }
        match plain_reader(&owner) {
            Some(reader) => Call::try_read(this, reader, true),
            None => Call::pass_on(this, &owner),
        }
    }

    /// Tries to read from the data that is there, and waits if it is not enough.
    #[inline(always)]
    fn try_read(this: This<'_, Self>, reader: &Reader, resumed: bool) -> Result<Step, Raised> {
        let found = match this.kind() {
            CallKind::Exactly(size) => read_exactly(reader, *size as usize),
            CallKind::Read(size) => read_some(reader, *size, resumed),
            CallKind::ReadAll(blocks) => {
                // Moved out, because resuming the transport may run Python code that steps this call.
                let mut own = std::mem::take(blocks);
                let found = read_all(reader, &mut own, resumed);
                if let CallKind::ReadAll(blocks) = this.kind() {
                    drop(std::mem::replace(blocks, own));
                }
                found
            }
            CallKind::Line => read_line(reader, &this.offset),
            CallKind::Next => match read_line(reader, &this.offset)? {
                Some(line) => not_empty(line).map(Some),
                None => Ok(None),
            },
            CallKind::Until(separators) => read_until(reader, separators, &this.offset),
            CallKind::Drain => Ok(Some(Ref::none())),
        };
        match found? {
            Some(data) => Ok(Step::Done(data)),
            None => Call::wait(this, reader),
        }
    }

    /// asyncio's `_wait_for_data`.
    fn wait(this: This<'_, Self>, reader: &Reader) -> Result<Step, Raised> {
        if !reader.waiter.is_empty() {
            // In asyncio, `readline` calls `readuntil`, which waits.
            let name = if let CallKind::Line | CallKind::Next = this.kind() {
                "readuntil"
            } else {
                this.method_name()
            };
            return Err(Exception::RuntimeError.raise(&format!(
                "{name}() called while another coroutine is already waiting for incoming data"
            )));
        }
        if reader.paused.get() {
            // Without this, a paused transport would never deliver the data.
            reader.resume()?;
        }
        let event_loop = reader.event_loop.get().unwrap_or_else(Ref::none);
        let future = event_loop.call_method(&imports().create_future, &[])?;
        this.awaited.begin_wait(time_of_poll(reader, &event_loop));
        reader.waiter.set(Some(future.clone_ref()));
        let wanted = if let CallKind::Exactly(size) = this.kind() { *size as usize } else { 0 };
        long_read::begin(reader, wanted);
        this.waiter.set(Some(future.clone_ref()));
        this.phase.set(CallPhase::Waiting);
        this.track();
        Ok(Step::Wait(future))
    }

    /// The `finally` block of asyncio's `_wait_for_data`.
    fn stop_waiting(&self, reader: &Reader) {
        self.waiter.clear();
        long_read::end(reader);
        reader.waiter.clear();
    }

    /// Ends the wait for a future.
    #[cold]
    fn give_up(&self) {
        if let Some(owner) = self.owner.get()
            && let Some(reader) = owner.downcast::<Reader>()
        {
            self.stop_waiting(&reader);
        }
        self.waiter.clear();
    }

    /// Has the reader an exception that `readline` may handle? asyncio's `readline` catches some of them.
    fn may_handle_exception(&self, reader: &Reader) -> bool {
        matches!(self.kind(), CallKind::Line | CallKind::Next) && !reader.exception.is_empty()
    }

    /// Creates asyncio's coroutine for this call, and makes its first step.
    #[cold]
    fn pass_on(this: This<'_, Self>, owner: &Ref) -> Result<Step, Raised> {
        let argument = match this.kind() {
            CallKind::Drain | CallKind::Line | CallKind::Next => None,
            CallKind::Read(size) => Some(integer(*size as i64)?),
            CallKind::ReadAll(_) => Some(integer(-1)?),
            CallKind::Exactly(size) => Some(integer(*size as i64)?),
            CallKind::Until(separators) => match &separators[..] {
                [] => None,
                [only] => Some(only.clone_ref()),
                many => Some(tuple(many.iter().map(Ref::clone_ref))?),
            },
        };
        let class = |classes: &'static Classes| match this.kind() {
            CallKind::Drain => &classes.asyncio_writer,
            _ => &classes.asyncio_reader,
        };
        let argument = argument.as_ref().map(Ref::borrow);
        let coroutine =
            inherited(class, this.method_name(), owner, Arguments::positional(argument.as_slice()))?;
        this.waiter.set(Some(coroutine));
        this.phase.set(CallPhase::PassedOn);
        this.awaited.begin_wait(0);
        this.track();
        this.send_on(Borrowed::none())
    }

    fn send_on(&self, value: Borrowed<'_>) -> Result<Step, Raised> {
        let coroutine = self.waiter.get().ok_or(Raised)?;
        let mut result = null_mut();
        // SAFETY: a coroutine and a live value. The call stores an owned result, or null with an error.
        let (outcome, result) = unsafe {
            let outcome = ffi::PyIter_Send(coroutine.as_ptr(), value.as_ptr(), &mut result);
            (outcome, Ref::from_owned(result).ok_or(Raised)?)
        };
        match outcome {
            ffi::PySendResult::PYGEN_RETURN => self.joined(result).map(Step::Done),
            _ => Ok(Step::PassOn(result)),
        }
    }

    /// Joins the result of asyncio's `read()` with the blocks that this call has read before it.
    fn joined(&self, rest: Ref) -> Result<Ref, Raised> {
        match self.kind() {
            CallKind::ReadAll(blocks) if !blocks.is_empty() => {
                // Moved out, because the blocks are dropped.
                let mut own = std::mem::take(blocks);
                own.push(rest);
                join(&mut own)
            }
            _ => Ok(rest),
        }
    }
}

/// The time of the last poll of a reader's loop; 0 if the loop is not ours.
#[inline(always)]
fn time_of_poll(reader: &Reader, event_loop: &Ref) -> u64 {
    if FREE_THREADED {
        // The loop has another lock than the reader.
        return monotonic_nanos();
    }
    // The transport leads to the loop with fewer instructions than a look at the loop's class.
    if let Some(time) = with_native_transport(reader, |stream| stream.base.core().polls.last_poll()) {
        return time;
    }
    event_loop.with_native(|core: This<'_, Core>| core.polls.last_poll()).unwrap_or(0)
}

impl Coroutine for Call {
    fn name(&self) -> &'static str {
        match self.kind() {
            CallKind::Read(_) | CallKind::ReadAll(_) => "StreamReader.read",
            CallKind::Exactly(_) => "StreamReader.readexactly",
            CallKind::Line => "StreamReader.readline",
            CallKind::Next => "StreamReader.__anext__",
            CallKind::Until(_) => "StreamReader.readuntil",
            CallKind::Drain => "StreamWriter.drain",
        }
    }

    #[inline(always)]
    fn step(this: This<'_, Self>, sent: Borrowed<'_>) -> Result<Step, Raised> {
        // An owned reference, because the code that a step runs may drop the caller's.
        let _held = this.object().to_owned();
        match this.phase.replace(CallPhase::Running) {
            CallPhase::Fresh => Call::begin(this),
            CallPhase::Running => Err(Exception::ValueError.raise("coroutine already executing")),
            CallPhase::Waiting => Call::resume(this),
            CallPhase::PassedOn => {
                this.phase.set(CallPhase::PassedOn);
                this.send_on(sent)
            }
            CallPhase::Done => Err(already_awaited()),
        }
    }

    const AWAITED: usize = offset_of!(Call, awaited);

    fn awaited(&self) -> &AwaitState {
        &self.awaited
    }

    fn waits_for(&self) -> Option<Ref> {
        self.waiter.get()
    }

    fn wait(&self) -> Wait {
        let kind = if let CallKind::Drain = self.kind() { "socket write" } else { "socket read" };
        Wait { kind, target: self.owner.get() }
    }

    fn is_over(&self) -> bool {
        self.phase.get() == CallPhase::Done
    }

    #[inline(always)]
    fn finish(&self) {
        match self.phase.replace(CallPhase::Done) {
            CallPhase::Fresh | CallPhase::Running => {}
            CallPhase::Waiting => self.give_up(),
            CallPhase::PassedOn => self.waiter.clear(),
            CallPhase::Done => return,
        }
        if !FREE_THREADED {
            self.owner.clear();
        }
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.slots([&self.owner, &self.waiter]);
    }

    /// asyncio's `readline` catches some exceptions. A task throws what `set_exception` has given to the future.
    fn handle(this: This<'_, Self>, exception: &Ref) -> Option<Result<Step, Raised>> {
        if !matches!(this.kind(), CallKind::Line | CallKind::Next) || this.phase.get() != CallPhase::Waiting {
            return None;
        }
        let caught = [&imports().incomplete_read, &imports().limit_overrun];
        if !caught.into_iter().any(|class| exception.is_instance_of(class)) {
            return None;
        }
        let owner = this.owner.get()?;
        let reader = owner.downcast::<Reader>()?;
        this.phase.set(CallPhase::Running);
        this.stop_waiting(&reader);
        // asyncio's coroutine raises the reader's exception in the same place, in its first step.
        let kept = reader.exception.take();
        reader.exception.set(Some(exception.clone_ref()));
        let step = Call::pass_on(this, &owner);
        reader.exception.set(kept);
        Some(step)
    }

    fn delegate(&self) -> Option<Ref> {
        if self.phase.get() == CallPhase::PassedOn { self.waiter.get() } else { None }
    }
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<Call>(c"wakeloop._core.StreamCall").build(py).map(drop)
}
