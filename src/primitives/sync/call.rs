//! The coroutine of an operation on a queue or an event that may have to wait.
//!
//! One that can be done at once costs no future and no turn of the loop. Otherwise the task waits for a future of its own
//! loop, and tries again when it is woken. A task whose operations can always be done yields to the loop now and then, and
//! does so before it takes or puts anything: so a task that is cancelled has neither taken nor put.

use std::cell::Cell;
use std::mem::offset_of;

use pyo3::prelude::*;

use super::classes::{EventObject, QueueObject};
use super::queue::Side;
use super::sleeper::Sleeper;
use super::wait::{Seat, Tried, Wanted};
use crate::bridge::budget;
use crate::capi::collector::Visitor;
use crate::capi::coroutine::{self, AwaitState, Coroutine, Step, Wait, already_awaited};
use crate::capi::imports::imports;
use crate::capi::methods::Method;
use crate::capi::native::{self, native_class};
use crate::capi::{Borrowed, Raised, Ref, Slot, This};
use crate::clock::monotonic_nanos;
use crate::wait_queue::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    /// It has yielded to the loop before its first attempt.
    Yielded,
    Waiting,
    Over,
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Call {
    name: &'static str,
    /// The queue or the event, until the call is over.
    object: Slot,
    /// What the task waits for.
    future: Slot,
    /// What is to be put.
    item: Slot,
    side: Cell<Side>,
    phase: Cell<Phase>,
    awaited: AwaitState,
    place: Cell<Option<Place>>,
}

// `make_type` builds the class, of which `create` makes every instance.
native_class!(unsafe Call, freelist 64);

/// What the call of this object waits for. `side` counts for a queue only.
fn wanted(object: &Ref, side: Side) -> Option<Wanted<'_>> {
    if let Some(queue) = object.downcast_sync::<QueueObject>() {
        return Some(Wanted::Queue(&queue.fields().queue, side));
    }
    object.downcast_sync::<EventObject>().map(|event| Wanted::Event(&event.fields().event))
}

impl Call {
    /// A call of `object`, which is a queue or an event.
    pub(super) fn create(
        object: Borrowed<'_>,
        name: &'static str,
        side: Side,
        item: Option<Ref>,
    ) -> Result<Ref, Raised> {
        let has_item = item.is_some();
        let call = native::create(Call {
            name,
            object: Slot::new(Some(object.to_owned())),
            future: Slot::empty(),
            item: Slot::new(item),
            side: Cell::new(side),
            phase: Cell::new(Phase::New),
            awaited: AwaitState::default(),
            place: Cell::new(None),
        })?;
        if has_item && let Some(this) = call.downcast::<Call>() {
            this.track();
        }
        Ok(call)
    }

    fn attempt(this: This<'_, Self>, wanted: Wanted<'_>) -> Result<Step, Raised> {
        let py = this.py();
        let mut seat = Seat { place: this.place.get(), sleeper: None };
        let mut tried = wanted.attempt(py, &this.item, &mut seat)?;
        if matches!(tried, Tried::Refused) {
            let (sleeper, future) = Sleeper::task(py)?;
            seat.sleeper = Some(sleeper);
            this.future.set(Some(future));
            tried = wanted.attempt(py, &this.item, &mut seat)?;
        }
        match tried {
            Tried::Done(result) => {
                this.place.set(None);
                this.future.clear();
                budget::spend_item(0);
                Ok(Step::Done(result))
            }
            Tried::Waits(place) => {
                this.place.set(Some(place));
                this.awaited.begin_wait(monotonic_nanos());
                this.phase.set(Phase::Waiting);
                this.track();
                budget::refill();
                this.future.get().map(Step::Wait).ok_or(Raised)
            }
            // The garbage collector has taken what was to be put.
            Tried::Refused => Err(already_awaited()),
        }
    }
}

impl Coroutine for Call {
    fn name(&self) -> &'static str {
        self.name
    }

    const AWAITED: usize = offset_of!(Call, awaited);

    fn awaited(&self) -> &AwaitState {
        &self.awaited
    }

    fn waits_for(&self) -> Option<Ref> {
        self.future.get()
    }

    fn wait(&self) -> Wait {
        let target = self.object.get();
        let is_event = target.as_ref().is_some_and(|object| object.downcast_sync::<EventObject>().is_some());
        Wait { kind: if is_event { "event" } else { "queue" }, target }
    }

    fn is_over(&self) -> bool {
        self.phase.get() == Phase::Over
    }

    fn step(this: This<'_, Self>, _: Borrowed<'_>) -> Result<Step, Raised> {
        let Some(object) = this.object.get() else { return Err(already_awaited()) };
        let Some(wanted) = wanted(&object, this.side.get()) else { return Err(already_awaited()) };
        match (this.phase.get(), this.place.get()) {
            (Phase::Over, _) => return Err(already_awaited()),
            (Phase::New, _) if budget::is_spent() => {
                this.phase.set(Phase::Yielded);
                return Ok(Step::Yield);
            }
            (Phase::Waiting, Some(place)) => {
                if wanted.is_waiting(place) {
                    return Call::wait_on(this);
                }
                if let Some(result) = wanted.when_served() {
                    return Ok(Step::Done(result));
                }
            }
            _ => {}
        }
        Call::attempt(this, wanted)
    }

    /// Ends the call, and passes on what it was notified of.
    fn finish(&self) {
        self.phase.set(Phase::Over);
        let (object, place) = (self.object.take(), self.place.take());
        if let (Some(object), Some(place)) = (&object, place)
            && let Some(wanted) = wanted(object, self.side.get())
        {
            wanted.leave(object.py(), place);
        }
        self.future.clear();
        self.item.clear();
    }

    fn visit(&self, visitor: &mut Visitor) {
        visitor.slots([&self.object, &self.future, &self.item]);
    }
}

impl Call {
    /// Other code has stepped the call, so it waits on. If the future is done, other code has cancelled it.
    #[cold]
    fn wait_on(this: This<'_, Self>) -> Result<Step, Raised> {
        let future = this.future.get().ok_or(Raised)?;
        if future.call_method(&imports().done, &[])?.is_true()? {
            future.call_method(&imports().result, &[])?;
        }
        Ok(Step::Wait(future))
    }
}

fn is_shared(this: This<'_, Call>, run: Borrowed<'_>) -> Result<bool, Raised> {
    let run = run.to_index()?;
    let object = this.object.get();
    let wanted = object.as_ref().and_then(|object| wanted(object, this.side.get()));
    Ok(wanted.is_some_and(|wanted| wanted.is_shared(run as u32)))
}

/// Makes the class. Called once, by the module's initialisation.
pub(super) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<Call>(c"wakeloop._core.SyncCall")
        .methods(&[Method::one_arg(
            c"_is_shared",
            is_shared,
            c"_is_shared(run, /)\n\nWhether other threads may end the wait, as far as that can be seen. `run` is the number of a testing loop's run.",
        )])
        .build(py)
        .map(drop)
}
