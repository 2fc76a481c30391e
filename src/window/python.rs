//! Asks Python: a thread of its own waits for the GIL, and the window's thread waits for it, for a second at most.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{io, thread};

use pyo3::prelude::*;

use crate::capi::Fallible;
use crate::capi::threads::try_attach;
use crate::clock::monotonic_nanos;
use crate::poison::unpoisoned;
use crate::runtime::SignalsBlocked;
use crate::runtime::sync::oneshot;
use crate::runtime::time::{sleep, timeout};

/// How long to wait for Python. An answer is used again for as long.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// The interpreter is about to end: nobody asks any more. One that did then would be ended in the middle of native
/// code, which ends the process.
static ENDS: AtomicBool = AtomicBool::new(false);
/// The threads that ask.
static ASKING: AtomicUsize = AtomicUsize::new(0);
/// How long the end of the interpreter waits for them.
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// A thread that asks.
struct Asking;

impl Asking {
    /// `None` if the interpreter ends.
    fn begin() -> Option<Asking> {
        // Ordering: SeqCst, here and in `finish`: either this thread finds that the interpreter ends, or `finish` finds
        // this thread.
        ASKING.fetch_add(1, SeqCst);
        let asking = Asking;
        (!ENDS.load(SeqCst)).then_some(asking)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // Ordering: SeqCst, as in `begin`.
        ASKING.fetch_sub(1, SeqCst);
    }
}

/// Waits, before the interpreter ends, until nobody asks. Called without the GIL.
pub(super) fn finish() {
    // Ordering: SeqCst; see `Asking::begin`.
    ENDS.store(true, SeqCst);
    let end = Instant::now() + LONGEST_WAIT;
    while ASKING.load(SeqCst) != 0 && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

/// In a forked child: the parent's threads do not exist.
pub(super) fn forked() {
    // Relaxed: the child has one thread.
    ENDS.store(false, Relaxed);
    ASKING.store(0, Relaxed);
}

/// Runs `body` in a new thread when that gets the GIL; never, if the interpreter ends.
pub(super) fn when_attached(body: impl FnOnce(Python<'_>) + Send + 'static) -> io::Result<()> {
    let _blocked = SignalsBlocked::new();
    let body = move || {
        let Some(_asking) = Asking::begin() else { return };
        // Without the interpreter there is nobody to ask.
        let _ = try_attach(body);
    };
    thread::Builder::new().name("wakeloop-asks".to_owned()).spawn(body).map(drop)
}

/// Calls a function of `wakeloop._observe.admin`.
fn call<'py>(py: Python<'py>, function: &'static str) -> PyResult<Bound<'py, PyAny>> {
    // A fork waits for what is loaded so. A child that is forked during an import could not import the module.
    let load = py.import("wakeloop._lazy")?.getattr(Fallible("load"))?;
    load.call1((Fallible("_observe.admin"),))?.getattr(Fallible(function))?.call0()
}

/// The last answer of a question that is asked again and again.
#[derive(Clone, Debug, Default)]
pub(super) struct Question(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// A thread waits for the GIL, or asks.
    waits: bool,
    /// When the last answer came.
    at: u64,
    answer: String,
}

impl Question {
    /// The answer of the function, which may be up to a second old. `Err` if it does not answer, with the age of
    /// the last answer in nanoseconds.
    pub(super) async fn ask(&self, function: &'static str) -> Result<String, Option<u64>> {
        let patience = PATIENCE.as_nanos() as u64;
        let asked = monotonic_nanos();
        let is_new = |state: &State| state.at != 0 && state.at + patience >= asked;
        let begins = {
            let mut state = unpoisoned(self.0.lock());
            !is_new(&state) && !std::mem::replace(&mut state.waits, true)
        };
        if begins {
            let question = self.clone();
            let spawned = when_attached(move |py| {
                let found = call(py, function).and_then(|answer| answer.extract());
                let mut state = unpoisoned(question.0.lock());
                state.waits = false;
                if let Ok(answer) = found {
                    (state.at, state.answer) = (monotonic_nanos(), answer);
                }
            });
            if spawned.is_err() {
                unpoisoned(self.0.lock()).waits = false;
            }
        }
        while monotonic_nanos() < asked + patience {
            let answer = {
                let state = unpoisoned(self.0.lock());
                is_new(&state).then(|| state.answer.clone())
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
            sleep(LOOK).await;
        }
        let at = unpoisoned(self.0.lock()).at;
        Err((at != 0).then(|| monotonic_nanos().saturating_sub(at)))
    }
}

/// Calls a function that begins something, and makes of what it returns a value that ends it when it is dropped. `None`
/// if that takes longer than a second; what begins later ends at once.
pub(super) async fn begin<T: Send + 'static>(
    function: &'static str,
    make: impl FnOnce(PyResult<Bound<'_, PyAny>>) -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    let body = move |py: Python<'_>| {
        if !sender.is_closed() {
            drop(sender.send(make(call(py, function))));
        }
    };
    when_attached(body).ok()?;
    timeout(PATIENCE, receiver).await.ok()?.ok()
}
