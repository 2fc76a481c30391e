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

/// Calls a function of `wakeloop._observe.admin` in a new thread, when that gets the GIL, and then `done` with what it
/// returns. Neither is called if the interpreter ends.
fn call(
    function: &'static str,
    wanted: impl FnOnce() -> bool + Send + 'static,
    done: impl FnOnce(PyResult<String>) + Send + 'static,
) -> io::Result<()> {
    let _blocked = SignalsBlocked::new();
    let body = move || {
        // Without the interpreter there is nobody to ask.
        let _ = try_attach(|py| {
            if wanted() {
                let module = py.import("wakeloop._observe.admin");
                done(module.and_then(|module| module.getattr(Fallible(function))?.call0()?.extract()));
            }
        });
    };
    thread::Builder::new().name("wakeloop-asks".to_owned()).spawn(body).map(drop)
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
            let spawned = call(
                function,
                || true,
                move |found| {
                    let mut state = unpoisoned(question.0.lock());
                    state.waits = false;
                    if let Ok(answer) = found {
                        (state.at, state.answer) = (monotonic_nanos(), answer);
                    }
                },
            );
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

/// Calls a function that begins something. Whether it has returned within a second; if not, `undo` is called after it.
pub(super) async fn begin(function: &'static str, undo: &'static str) -> bool {
    let (sender, receiver) = oneshot::channel();
    let sender = Arc::new(Mutex::new(Some(sender)));
    let other = sender.clone();
    let wanted = move || unpoisoned(other.lock()).as_ref().is_some_and(|sender| !sender.is_closed());
    let spawned = call(function, wanted, move |done| {
        let refused =
            unpoisoned(sender.lock()).take().is_some_and(|sender| sender.send(done.is_ok()).is_err());
        if refused && done.is_ok() {
            end(undo);
        }
    });
    spawned.is_ok() && matches!(timeout(PATIENCE, receiver).await, Ok(Ok(true)))
}

/// Calls a function when the GIL can be had.
pub(super) fn end(function: &'static str) {
    // Without a thread, or without the interpreter, it is not called.
    let _ = call(function, || true, drop);
}
