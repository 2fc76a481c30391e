//! Runs the event loops' own blocking calls on a pool of threads.
//!
//! This is not the runtime's pool. The runtime starts a thread per core and a poller, and a program that only looks up
//! a name needs neither. The pool is created on first use, and again in a forked child.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use super::awaitable::Make;
use super::io_error::NO_THREAD;
use super::loop_handle::{LoopHandle, report};
use super::panic::RuntimePanic;
use super::promise::Promise;
use crate::capi::Fallible;
use crate::capi::call::panic_text;
use crate::capi::error::exception;
use crate::fork::Owned;
use crate::poison::unpoisoned;
use crate::runtime::BlockingPool;

/// The maximum size of asyncio's default executor.
const THREADS: usize = 32;
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A forked child has the memory of its parent's pool, but not the threads, one of which may have held the pool's lock
/// at the fork.
static POOL: Mutex<Option<Owned<BlockingPool>>> = Mutex::new(None);

/// Lets `submit` pass a job to the pool, which is not retired meanwhile.
fn with_pool(submit: impl FnOnce(&BlockingPool)) {
    // The lock may be poisoned: no code under it can panic half-way through a change.
    let mut place = unpoisoned(POOL.lock());
    if let Some(pool) = place.as_ref().and_then(Owned::get) {
        return submit(pool);
    }
    let pool = BlockingPool::new(THREADS, KEEP_ALIVE);
    submit(&pool);
    *place = Some(Owned::new(pool));
}

/// Ends the idle threads of the pool, as a closed loop of asyncio ends those of its executor. A job of another loop
/// runs on. The next job makes a new pool.
#[pyfunction]
pub(crate) fn _end_idle_threads(py: Python<'_>) {
    /// A thread that is idle ends much sooner.
    const MOST: Duration = Duration::from_millis(20);
    let mut place = unpoisoned(POOL.lock());
    let retired = place.take();
    drop(place);
    if let Some(pool) = retired.and_then(Owned::into_inner) {
        py.detach(|| pool.retire(MOST));
    }
}

/// Runs `job` on the pool. Returns a future of `event_loop`. Cancelling the future does not stop the job.
pub(crate) fn run<'py>(
    event_loop: &Bound<'py, PyAny>,
    job: impl FnOnce() -> Make + Send + 'static,
) -> PyResult<Bound<'py, PyAny>> {
    let future = event_loop.call_method0(Fallible("create_future"))?;
    let (event_loop, promised) = (LoopHandle::of(event_loop)?, future.clone().unbind());
    let notify = move |outcome: Make| {
        event_loop.send(Box::new(move |py| deliver(py, promised.bind(py), outcome).or_else(report)));
    };
    let promise = Promise::new(notify, || Box::new(|_| Err(exception::<PyRuntimeError>(NO_THREAD))));
    let job = move || {
        catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|payload| {
            let text = panic_text(payload.as_ref());
            Box::new(move |_| Err(exception::<RuntimePanic>(text)))
        })
    };
    // The join handle is not needed: the promise reports the outcome.
    with_pool(|pool| drop(pool.spawn_and_notify(job, move |outcome| promise.complete(outcome))));
    Ok(future)
}

fn deliver(py: Python<'_>, future: &Bound<'_, PyAny>, outcome: Make) -> PyResult<()> {
    if future.call_method0(Fallible("done"))?.is_truthy()? {
        // It was cancelled in the meantime.
        return Ok(());
    }
    match outcome(py) {
        Ok(value) => future.call_method1(Fallible("set_result"), (value,))?,
        Err(error) => future.call_method1(Fallible("set_exception"), (error.into_value(py),))?,
    };
    Ok(())
}
