//! Asks Python: a thread of its own waits for the GIL, and the window's thread waits for it, for a second at most.

use std::sync::{Arc, Mutex};
use std::time::Duration;
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

/// Runs `body` in a new thread when that gets the GIL; never, if the interpreter ends.
pub(super) fn when_attached(body: impl FnOnce(Python<'_>) + Send + 'static) -> io::Result<()> {
    let _blocked = SignalsBlocked::new();
    let body = move || {
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
