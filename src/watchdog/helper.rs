//! The helper: a thread that takes the GIL and reads what a report says.
//!
//! 1. The monitor leaves a [`Question`], and starts a helper unless one is still waiting for the GIL.
//! 2. The helper takes the GIL, takes the question, leaves the [`Answer`] and ends.
//! 3. If the answer does not come in time, the monitor takes the question back. A helper that gets the GIL later finds
//!    none, and ends; or it finds the question of the next report.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use pyo3::ffi;
use pyo3::prelude::*;

use super::attached;
use super::detached::Thread;
use super::stack::Stack;
use crate::capi::Ref;
use crate::fork::Owner;
use crate::kernel::core::probe::heartbeat::{Beat, Heartbeat};
use crate::poison::unpoisoned;
use crate::runtime::SignalsBlocked;

/// How long `stop` waits for the threads to end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// What the monitor wants to know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Question {
    pub(super) heartbeat: &'static Heartbeat,
    /// The beat that the report is about. When there is another one, the turn has ended.
    pub(super) beat: Beat,
    /// The thread that held the GIL, if it is not the loop's.
    pub(super) holder: Option<Thread>,
}

impl Question {
    pub(super) fn is_current(&self) -> bool {
        self.heartbeat.beat() == self.beat
    }
}

/// What the helper has found.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub(super) task: Option<String>,
    pub(super) thread: Option<String>,
    pub(super) stack: Stack,
    /// The name and the stack of the thread that held the GIL.
    pub(super) holder: Option<(Option<String>, Stack)>,
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The process that has the threads. In a child of it nothing here may be touched: a thread of the parent may have
    /// held the lock.
    owner: Owner,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    /// How many threads there are: the monitor, and the helper.
    threads: usize,
    /// Does a helper wait for the GIL?
    helps: bool,
    question: Option<Question>,
    answer: Option<Answer>,
}

impl Shared {
    pub(super) fn new() -> Shared {
        Shared { state: Mutex::default(), changed: Condvar::new(), owner: Owner::this_process() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock may be poisoned: no code under it leaves a change half done.
        unpoisoned(self.state.lock())
    }

    /// Starts a thread that blocks all signals and is waited for by [`stop`](Shared::stop).
    pub(super) fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce(&Arc<Shared>) + Send + 'static,
    ) -> io::Result<()> {
        /// A thread of the watchdog. Its end is recorded even after a panic.
        struct Running(Arc<Shared>);

        impl Drop for Running {
            fn drop(&mut self) {
                self.0.lock().threads -= 1;
                self.0.changed.notify_all();
            }
        }

        self.lock().threads += 1;
        let running = Running(self.clone());
        let _blocked = SignalsBlocked::new();
        thread::Builder::new().name(name.to_owned()).spawn(move || body(&running.0)).map(drop)
    }

    /// Waits so long. Returns false if the watchdog was stopped.
    pub(super) fn wait(&self, time: Duration) -> bool {
        let wait = self.changed.wait_timeout_while(self.lock(), time, |state| !state.stopped);
        !unpoisoned(wait).0.stopped
    }

    /// Has this process the threads, and were they not stopped?
    pub(super) fn is_running(&self) -> bool {
        self.owner.is_this_process() && !self.lock().stopped
    }

    /// Ends the threads, and waits for them; a second at most, if one is held up by its file. Must not be called with
    /// the GIL held.
    pub(super) fn stop(&self) {
        if !self.owner.is_this_process() {
            return;
        }
        let mut state = self.lock();
        state.stopped = true;
        state.question = None;
        self.changed.notify_all();
        drop(self.changed.wait_timeout_while(state, LAST_WAIT, |state| state.threads > 0));
    }

    /// Asks a helper. Returns `None` if no answer comes in time, or if the turn has ended.
    pub(super) fn ask(self: &Arc<Self>, question: Question, patience: Duration) -> Option<Answer> {
        let mut state = self.lock();
        state.answer = None;
        state.question = (!state.stopped).then_some(question);
        if !state.helps {
            state.helps = true;
            drop(state);
            let spawned = self.spawn("wakeloop-helper", Shared::help);
            state = self.lock();
            if spawned.is_err() {
                state.helps = false;
                state.question = None;
            }
        }
        let waits = |state: &mut State| state.question.is_some();
        let wait = self.changed.wait_timeout_while(state, patience, waits);
        let mut state = unpoisoned(wait).0;
        state.question = None;
        state.answer.take()
    }

    fn help(self: &Arc<Self>) {
        // The GIL can be waited for in vain: while native code keeps it, and when the interpreter ends.
        let answered = Python::try_attach(|py| {
            let mut state = self.lock();
            state.helps = false;
            // The question stays, so that the monitor waits for the answer.
            let question = state.question;
            drop(state);
            let answer = question.and_then(|question| answer(py, &question));
            let mut state = self.lock();
            if state.question.map(|it| it.beat) == question.map(|it| it.beat) {
                state.answer = answer;
                state.question = None;
            }
        });
        if answered.is_none() {
            let mut state = self.lock();
            state.helps = false;
            state.question = None;
        }
        self.changed.notify_all();
    }
}

fn answer(py: Python<'_>, question: &Question) -> Option<Answer> {
    let heartbeat = question.heartbeat;
    if !question.is_current() {
        return None;
    }
    // SAFETY: the GIL is held, and is not released before the collector is on again.
    let collects = unsafe { ffi::PyGC_Disable() };
    // SAFETY: the GIL is held, and the turn goes on, so the loop's thread waits for the GIL in it. The thread state and
    // the loop live. The holder's state was looked for.
    let answer = unsafe {
        let holder = question.holder.filter(|holder| attached::is_alive(py, holder.state));
        Answer {
            stack: attached::stack(py, heartbeat.thread_state()),
            holder: holder.map(|holder| {
                let thread = std::ptr::with_exposed_provenance_mut(holder.state);
                (attached::thread_name(py, holder.ident), attached::stack(py, thread))
            }),
            thread: attached::thread_name(py, heartbeat.ident()),
            task: attached::task_name(&Ref::from_borrowed(heartbeat.event_loop()).bind(py)),
        }
    };
    if collects == 1 {
        // SAFETY: the GIL is held.
        unsafe { ffi::PyGC_Enable() };
    }
    Some(answer)
}
