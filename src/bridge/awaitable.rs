//! `Operation`: the Python awaitable of a Rust future.
//!
//! An operation behaves like a coroutine (see `capi::coroutine`): it starts when it is first awaited. The first poll
//! happens at once, on the loop's thread. So an operation that is ready costs no thread switch, no asyncio future and
//! no turn of the loop. One that is pending becomes a task of the runtime, whose workers never hold the GIL. The
//! awaiting task waits for an asyncio future of its own loop, which a [`Waiter`] completes.
//!
//! A task whose operations are always ready yields to the loop now and then (see [`budget`]).
//!
//! Cancelling the awaiting task calls `throw`, which aborts the Rust future. An outcome that the task has not taken is
//! dropped; if it holds something that must not be lost, its `Drop` returns that. A Rust error becomes the `OSError`
//! subclass that Python would raise, and a panic becomes `wakeloop.RuntimePanic`.

use std::any::Any;
use std::cell::Cell;
use std::ffi::CStr;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pyo3::prelude::*;

use super::drop_on_loop::drop_attached;
use super::io_error::raise_io;
use super::loop_handle::running_loop;
use super::panic::RuntimePanic;
use super::waiter::{Waiter, WakeOnce};
use super::{budget, runtime};
use crate::capi::call::panic_text;
use crate::capi::class::field;
use crate::capi::coroutine::{self, Step};
use crate::capi::error::exception;
use crate::capi::fallible::reserve_operation;
use crate::capi::imports::imports;
use crate::capi::methods::{Attribute, Method};
use crate::capi::native::{WeakList, native_class};
use crate::capi::pending::{AsyncCall, Pending, Stage};
use crate::capi::{Arguments, Exception, Fallible, Raised, Ref, This};
use crate::fork::Owned;
use crate::runtime::sync::oneshot::{self, Receiver, RecvError};
use crate::runtime::{AbortHandle, NoThread};

/// Creates the Python result of an operation or of a job. Runs on the loop's thread.
pub(super) type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The outcome of an operation, which the runtime sends to the loop.
pub(crate) enum Outcome {
    /// The result that the operation was created with, most often `None`.
    Nothing,
    Value(Make),
    Error(io::Error),
    Panic(Box<dyn Any + Send>),
}

impl Outcome {
    /// The value that `make` returns, or the exception that it raises.
    pub(crate) fn value(make: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) -> Outcome {
        Outcome::Value(Box::new(make))
    }

    /// The outcome of a job for which no thread could be started.
    fn never_ran(_: RecvError) -> Outcome {
        Outcome::Error(NoThread.into())
    }
}

/// The future of an operation.
type Work = Pin<Box<dyn Future<Output = Outcome> + Send>>;

/// Prepares a job for the blocking pool, when the operation is first awaited.
type Prepare = Box<dyn FnOnce(Python<'_>) -> Result<Job, Raised> + Send>;
type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// An operation, which Python can await once. It has no target.
///
/// The object is the result of [`Outcome::Nothing`]. In an `async with` it is what was opened, until `__aexit__` takes
/// it. The garbage collector does not clear that, because it has to be closed.
pub(crate) type Operation = Pending<OperationState>;

pub(crate) struct OperationState {
    weaklist: WeakList,
    scope: Cell<Scope>,
    /// The seconds of a sleep, for tools that inspect it; NaN for any other operation.
    delay: f32,
    phase: Cell<Phase>,
}

/// May the operation be used with `async with`?
#[derive(Clone, Copy, PartialEq)]
enum Scope {
    /// No: there is nothing to close afterwards.
    None,
    /// Yes. Its result is an object whose `__aenter__` returns the object itself, and whose `__aexit__` closes it.
    Opens,
    /// Its `__aenter__` was called, so it keeps its result for `__aexit__`.
    Entered,
}

enum Phase {
    New(Work),
    NewJob(Prepare),
    /// New, without work. It is done in the next turn of the loop.
    NewNextTurn,
    /// The outcome is known, and the task gets it in the next turn of the loop.
    Ready(Outcome),
    /// In a forked child no thread completes the operations of the parent.
    Started(Owned<Started>),
    Over,
}

struct Started {
    outcome: Receiver<Outcome>,
    waker: Arc<WakeOnce>,
    task: AbortHandle,
}

// `make_type` builds the class. Only `in_phase` makes instances.
native_class!(unsafe Operation);

impl Operation {
    /// Creates an operation that runs `work`.
    pub(crate) fn create<'py>(
        py: Python<'py>,
        name: &'static str,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        Operation::with_result(py, name, work, None)
    }

    /// Creates an operation that opens something that has to be closed. `async with` takes it too.
    pub(crate) fn opening<'py>(
        py: Python<'py>,
        name: &'static str,
        work: impl Future<Output = Outcome> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        Operation::in_phase(py, name, Phase::New(Box::pin(work)), Scope::Opens, None, f32::NAN)
    }

    /// Creates an operation that runs `work`. Its result is `result` if `work` ends with [`Outcome::Nothing`].
    pub(crate) fn with_result<'py>(
        py: Python<'py>,
        name: &'static str,
        work: impl Future<Output = Outcome> + Send + 'static,
        result: Option<Ref>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Operation::in_phase(py, name, Phase::New(Box::pin(work)), Scope::None, result, f32::NAN)
    }

    /// As [`Operation::with_result`], for work that sleeps for so many seconds.
    pub(crate) fn sleeping<'py>(
        py: Python<'py>,
        delay: f64,
        work: impl Future<Output = Outcome> + Send + 'static,
        result: Option<Ref>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Operation::in_phase(py, "sleep", Phase::New(Box::pin(work)), Scope::None, result, delay as f32)
    }

    /// Creates an operation on the blocking pool. When it is first awaited, `prepare` makes the job, with the GIL held.
    pub(crate) fn blocking<'py, J: FnOnce() -> Outcome + Send + 'static>(
        py: Python<'py>,
        name: &'static str,
        prepare: impl FnOnce(Python<'_>) -> Result<J, Raised> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let prepare = |py: Python<'_>| prepare(py).map(|job| Box::new(job) as Job);
        Operation::in_phase(py, name, Phase::NewJob(Box::new(prepare)), Scope::None, None, f32::NAN)
    }

    /// Creates an operation that returns `result` in the next turn of the loop.
    pub(crate) fn next_turn<'py>(
        py: Python<'py>,
        name: &'static str,
        result: Option<Ref>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Operation::in_phase(py, name, Phase::NewNextTurn, Scope::None, result, f32::NAN)
    }

    fn in_phase<'py>(
        py: Python<'py>,
        name: &'static str,
        phase: Phase,
        scope: Scope,
        result: Option<Ref>,
        delay: f32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (weaklist, scope, phase) = (WeakList::new(), Cell::new(scope), Cell::new(phase));
        Ok(Operation::make(name, None, result, OperationState { weaklist, scope, delay, phase })?.bind(py))
    }

    /// Starts the work. Returns its result if it is ready at once, or else a future for the task to wait for.
    fn start(this: This<'_, Operation>, py: Python<'_>, work: Work) -> Result<Step, Raised> {
        // Before anything starts: without a running loop there is nothing to notify of the outcome.
        running_loop()?;
        reserve_operation()?;
        let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
        let (sender, mut receiver) = oneshot::channel();
        let task = runtime.spawn_here(async move {
            let outcome = Caught(work).await;
            // If the operation was cancelled, this drops the outcome.
            drop(sender.send(outcome));
        });
        if let Some(outcome) = received(&mut receiver) {
            budget::spend_operation();
            if budget::is_spent() {
                this.state.phase.set(Phase::Ready(outcome));
                return Ok(Step::Yield);
            }
            return this.conclude(py, outcome);
        }
        Operation::wait_for(this, receiver, task.abort_handle())
    }

    /// Sends the job to the pool. The pool's thread notifies the loop itself, without waking a worker of the runtime.
    fn start_job(this: This<'_, Operation>, py: Python<'_>, prepare: Prepare) -> Result<Step, Raised> {
        running_loop()?;
        reserve_operation()?;
        let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
        let job = prepare(py)?;
        let (sender, receiver) = oneshot::channel();
        let task = runtime.spawn_blocking_and_notify(
            move || catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(Outcome::Panic),
            move |outcome| drop(sender.send(outcome)),
        );
        Operation::wait_for(this, receiver, task.abort_handle())
    }

    fn wait_for(
        this: This<'_, Operation>,
        mut outcome: Receiver<Outcome>,
        task: AbortHandle,
    ) -> Result<Step, Raised> {
        let (waiter, future) = match Waiter::new(this.py()) {
            Ok(made) => made,
            Err(Raised) => {
                drop_attached(outcome);
                task.abort();
                return Err(Raised);
            }
        };
        let waker = WakeOnce::new(waiter);
        let registered = Waker::from(waker.clone());
        if let Poll::Ready(outcome) = Pin::new(&mut outcome).poll(&mut Context::from_waker(&registered)) {
            return this.conclude(this.py(), outcome.unwrap_or_else(Outcome::never_ran));
        }
        this.state.phase.set(Phase::Started(Owned::new(Started { outcome, waker, task })));
        budget::refill();
        Ok(Operation::wait(this, future))
    }

    fn conclude(&self, py: Python<'_>, outcome: Outcome) -> Result<Step, Raised> {
        let result = match outcome {
            Outcome::Nothing => Ok(self.object.take().unwrap_or_else(Ref::none)),
            Outcome::Value(make) => {
                let value = Ref::from(make(py)?.into_bound(py));
                if self.state.scope.get() == Scope::Entered {
                    self.object.set(Some(value.clone_ref()));
                }
                Ok(value)
            }
            Outcome::Error(error) => Err(raise_io(&error)),
            Outcome::Panic(payload) => Err(exception::<RuntimePanic>(panic_text(payload.as_ref())).into()),
        };
        result.map(Step::Done)
    }
}

impl AsyncCall for OperationState {
    fn step(this: This<'_, Operation>, _: Stage) -> Result<Option<Step>, Raised> {
        let py = this.py();
        let step = match this.state.phase.replace(Phase::Over) {
            Phase::New(work) => Operation::start(this, py, work),
            Phase::NewJob(prepare) => Operation::start_job(this, py, prepare),
            Phase::NewNextTurn => {
                this.state.phase.set(Phase::Ready(Outcome::Nothing));
                budget::refill();
                Ok(Step::Yield)
            }
            Phase::Ready(outcome) => this.conclude(py, outcome),
            Phase::Started(mut started) => {
                let Some(outcome) = started.get_mut().and_then(|started| received(&mut started.outcome))
                else {
                    this.state.phase.set(Phase::Started(started));
                    return Ok(None);
                };
                this.future.clear();
                this.conclude(py, outcome)
            }
            Phase::Over => Err(OperationState::already_awaited(&this)),
        };
        step.map(Some)
    }

    /// Aborts work that is still running.
    fn finish(operation: &Operation, _: Option<&Ref>) {
        let phase = operation.state.phase.replace(Phase::Over);
        if operation.state.scope.get() != Scope::Entered {
            operation.object.clear();
        }
        match phase {
            Phase::Started(started) => {
                if let Some(Started { outcome, waker, task }) = started.into_inner() {
                    // Dropped here, because a worker that dropped the waiter would not be attached. Dropping the
                    // outcome may need Python too: it may return what it holds.
                    drop_attached((waker.take(), outcome));
                    task.abort();
                }
            }
            Phase::New(work) => drop(work),
            Phase::NewJob(prepare) => drop(prepare),
            Phase::Ready(outcome) => drop(outcome),
            Phase::NewNextTurn | Phase::Over => {}
        }
    }

    fn wait_kind(operation: &Operation) -> &'static str {
        match operation.name {
            "sleep" => "timer",
            "spawn_blocking" => "executor job",
            "TcpStream.connect" | "UdpSocket.connect" => "connect",
            "TcpListener.accept" | "TcpListener.__anext__" => "accept",
            name if name.ends_with("wait_closed") => "close",
            "UdpSocket.recv" | "UdpSocket.recv_from" => "socket read",
            "UdpSocket.send" | "UdpSocket.send_to" | "send" => "socket write",
            _ => "runtime operation",
        }
    }

    #[cold]
    fn already_awaited(operation: &Operation) -> Raised {
        Exception::RuntimeError.raise(&format!("cannot reuse already awaited {}", operation.name))
    }

    fn weaklist(&self) -> Option<&WeakList> {
        Some(&self.weaklist)
    }
}

/// `__aenter__()`: returns the operation itself, so `async with` awaits it and binds its result.
fn enter(this: This<'_, Operation>) -> Result<Ref, Raised> {
    if this.state.scope.get() == Scope::None {
        let text = format!("{}() opens nothing that 'async with' could close: await it", this.name);
        return Err(Exception::TypeError.raise(&text));
    }
    this.state.scope.set(Scope::Entered);
    this.track();
    Ok(this.object().to_owned())
}

/// `__aexit__(type, value, traceback)`: calls the result's `__aexit__`.
fn leave(this: This<'_, Operation>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    match this.object.take() {
        Some(opened) => opened.call_method(&imports().__aexit__, arguments.rest(0)),
        None => Err(Exception::RuntimeError.raise(&format!("{}() has opened nothing", this.name))),
    }
}

/// The outcome, if it has arrived.
fn received(outcome: &mut Receiver<Outcome>) -> Option<Outcome> {
    outcome.try_recv().unwrap_or_else(|error| Some(Outcome::never_ran(error)))
}

/// A future that turns a panic into an outcome.
struct Caught(Work);

impl Future for Caught {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let work = self.0.as_mut();
        match catch_unwind(AssertUnwindSafe(|| work.poll(context))) {
            Ok(poll) => poll,
            Err(payload) => Poll::Ready(Outcome::Panic(payload)),
        }
    }
}

const DOC: &CStr = c"An operation on the Rust runtime. sleep(), TcpStream.connect() and spawn_blocking() return one.

It behaves like a coroutine: a task of any asyncio loop can await it once, and it starts only then. Cancelling the task
drops the Rust future; the documentation of each function says what may have happened by then. An operation is not
thread-safe: use it only on the thread of the loop that awaits it. In annotations, write Operation[T], where T is the
type of the result.

An operation that opens a stream, a socket or a server can be given to 'async with' without an await. It is closed at
the end of the block.";

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let class = coroutine::class::<Operation>(c"wakeloop.Operation")
        .doc(DOC)
        .weaklist(field!(Operation, state.weaklist))
        .methods(&[
            Method::no_args(
                c"__aenter__",
                enter,
                c"__aenter__()\n\nThe operation itself, if it opens what has to be closed. Awaitable.",
            )
            .coroutine(),
            Method::fast(c"__aexit__", leave, c"__aexit__(*_exception)\n\nClose what was opened. Awaitable.")
                .coroutine(),
        ])
        .attributes(&[Attribute::read_only(c"_delay", |this: This<'_, Operation>| {
            Some(f64::from(this.state.delay)).filter(|delay| !delay.is_nan())
        })
        .doc(c"The seconds of a sleep; None for any other operation.")])
        .build(py)?;
    // For annotations such as `Operation[T]`.
    let generic = py.import(Fallible("types"))?.getattr(Fallible("GenericAlias"))?;
    let method = py.import(Fallible("builtins"))?.getattr(Fallible("classmethod"))?.call1((generic,))?;
    class.setattr(Fallible("__class_getitem__"), method)?;
    Ok(class)
}
