//! The coroutine of a call that may have to wait.
//!
//! A [`Pending`] keeps what all such calls have: the name, the object that the call is of, the future that its task
//! waits for, and how far it is. What differs from call to call is in the trait [`AsyncCall`]: how it is attempted,
//! what it gives back when it ends, and what it waits for in the eyes of `wakeloop.tasks()`.

use std::cell::Cell;
use std::mem::offset_of;

use super::collector::Visitor;
use super::coroutine::{AwaitState, Coroutine, Step, Wait, already_awaited};
use super::error::Raised;
use super::imports::imports;
use super::native::{self, Native, This, WeakList};
use super::object::{Borrowed, Ref, Slot};
use crate::clock::monotonic_nanos;

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    New,
    /// A step runs.
    Running,
    /// It has yielded to the loop, or waits for something else than a future of its own.
    Begun,
    /// It waits for its future.
    Waiting,
    /// It has ended. It holds nothing, and never changes again.
    Over,
}

/// A call that may have to wait, as the state of a [`Pending`].
pub(crate) trait AsyncCall: Sized {
    /// Does the target stay as long as the object, because its lock guards the call?
    const KEEPS_TARGET: bool = false;

    /// Continues as far as it can. `None` if what the call waits for has not come yet.
    fn step(this: This<'_, Pending<Self>>, stage: Stage) -> Result<Option<Step>, Raised>;

    /// Drops what the state holds, and gives back what it has got. As [`Coroutine::finish`].
    fn finish(pending: &Pending<Self>, target: Option<&Ref>);

    /// As [`Wait::kind`].
    fn wait_kind(pending: &Pending<Self>) -> &'static str;

    /// As [`Coroutine::waits_for`].
    #[inline(always)]
    fn waits_for(pending: &Pending<Self>) -> Option<Ref> {
        pending.future.get()
    }

    /// The error of a step after the end.
    #[cold]
    fn already_awaited(_: &Pending<Self>) -> Raised {
        already_awaited()
    }

    /// Shows the collector the references that the state holds.
    fn visit(&self, _: &mut Visitor) {}

    /// As [`Coroutine::weaklist`].
    #[inline(always)]
    fn weaklist(&self) -> Option<&WeakList> {
        None
    }
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Pending<S> {
    pub(crate) name: &'static str,
    /// The object that the call is of, until the call is over.
    pub(crate) target: Slot,
    /// The future that the task waits for.
    pub(crate) future: Slot,
    /// Another object that the call uses.
    pub(crate) object: Slot,
    stage: Cell<Stage>,
    awaited: AwaitState,
    pub(crate) state: S,
}

impl<S: AsyncCall> Pending<S>
where
    Pending<S>: Native,
{
    #[inline(always)]
    pub(crate) fn make(
        name: &'static str,
        target: Option<Ref>,
        object: Option<Ref>,
        state: S,
    ) -> Result<Ref, Raised> {
        let has_object = object.is_some();
        let made = native::create_with(|| Pending {
            name,
            target: Slot::new(target),
            future: Slot::empty(),
            object: Slot::new(object),
            stage: Cell::new(Stage::New),
            awaited: AwaitState::default(),
            state,
        })?;
        if has_object && let Some(this) = made.downcast::<Pending<S>>() {
            this.track();
        }
        Ok(made)
    }

    /// The task waits for the future from now on.
    #[inline(always)]
    pub(crate) fn wait(this: This<'_, Self>, future: Ref) -> Step {
        Pending::wait_since(this, future, monotonic_nanos())
    }

    /// As [`Pending::wait`], with the time of [`AwaitState::begin_wait`].
    #[inline(always)]
    pub(crate) fn wait_since(this: This<'_, Self>, future: Ref, now: u64) -> Step {
        this.future.set(Some(future.clone_ref()));
        this.awaited.begin_wait(now);
        this.stage.set(Stage::Waiting);
        this.track();
        Step::Wait(future)
    }

    /// Other code has stepped the call, so it waits on. If the future is done, other code has cancelled it.
    #[cold]
    fn wait_on(&self) -> Result<Step, Raised> {
        self.stage.set(Stage::Waiting);
        let future = self.future.get().ok_or(Raised)?;
        if future.call_method(&imports().done, &[])?.is_true()? {
            future.call_method(&imports().result, &[])?;
        }
        Ok(Step::Wait(future))
    }
}

impl<S: AsyncCall> Coroutine for Pending<S>
where
    Pending<S>: Native,
{
    fn name(&self) -> &'static str {
        self.name
    }

    const AWAITED: usize = offset_of!(Pending<S>, awaited);

    fn awaited(&self) -> &AwaitState {
        &self.awaited
    }

    fn waits_for(&self) -> Option<Ref> {
        S::waits_for(self)
    }

    fn wait(&self) -> Wait {
        Wait { kind: S::wait_kind(self), target: self.target.get() }
    }

    fn is_over(&self) -> bool {
        self.stage.get() == Stage::Over
    }

    #[inline(always)]
    fn is_running(&self) -> bool {
        self.stage.get() == Stage::Running
    }

    fn over_error(&self) -> Raised {
        S::already_awaited(self)
    }

    #[inline(always)]
    fn step(this: This<'_, Self>, _: Borrowed<'_>) -> Result<Step, Raised> {
        let stage = this.stage.get();
        if stage == Stage::Over {
            return Err(S::already_awaited(&this));
        }
        this.stage.set(Stage::Running);
        match S::step(this, stage)? {
            Some(step) => {
                if this.stage.get() == Stage::Running {
                    this.stage.set(Stage::Begun);
                }
                Ok(step)
            }
            None => this.wait_on(),
        }
    }

    #[inline(always)]
    fn finish(&self) {
        if self.stage.replace(Stage::Over) == Stage::Over {
            return;
        }
        let target = if S::KEEPS_TARGET { self.target.get() } else { self.target.take() };
        S::finish(self, target.as_ref());
        self.future.clear();
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.slots([&self.target, &self.future, &self.object]);
        self.state.visit(visitor);
    }

    #[inline(always)]
    fn weaklist(&self) -> Option<&WeakList> {
        self.state.weaklist()
    }
}
