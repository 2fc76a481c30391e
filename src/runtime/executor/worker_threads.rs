//! The threads of the workers: how they start, and how the last of them leaves.
//!
//! The first worker starts with the runtime. Each further worker starts when there is work and all running ones
//! are awake. The second starts at the latest when the driver is opened, so that sockets and timers are served
//! while the first is in a long poll. So a runtime for one task costs one thread, and a runtime of 64 workers
//! with little to do has few.
//!
//! `state` is locked while a thread is started. So a thread that joins the workers finds all of them, and a
//! worker that starts finds itself counted.

use std::io;
use std::time::{Duration, Instant};

use super::super::condition::wait_until;
use super::super::shim::{Condvar, Mutex, thread};
use super::super::thread_options::ThreadOptions;
use super::queue::Local;
use crate::poison::unpoisoned;

/// How long to wait after the system refused a thread.
const RETRY: Duration = Duration::from_secs(1);

pub(in super::super) struct WorkerThreads {
    options: ThreadOptions,
    state: Mutex<ThreadsState>,
    left: Condvar,
}

struct ThreadsState {
    /// Indexed by worker, until it starts.
    queues: Vec<Option<Local>>,
    /// How many of the started workers have not left.
    present: usize,
    /// How many threads wait for the workers to leave. Without one, notifying the condvar would be a wasted
    /// system call.
    awaiting: usize,
    threads: Vec<thread::JoinHandle<()>>,
    refused: Option<Instant>,
    closed: bool,
}

impl WorkerThreads {
    pub(super) fn new(options: ThreadOptions, queues: Vec<Local>) -> WorkerThreads {
        let queues = queues.into_iter().map(Some).collect();
        let state = ThreadsState {
            queues,
            present: 0,
            awaiting: 0,
            threads: Vec::new(),
            refused: None,
            closed: false,
        };
        WorkerThreads { options, state: Mutex::new(state), left: Condvar::new() }
    }

    /// Starts the thread of a worker, which calls `arrive` and then `run`. Does nothing on a closed runtime.
    ///
    /// # Errors
    /// The system's error when it has no thread left. For a second after that, the error comes without asking
    /// the system.
    pub(super) fn start<W: 'static>(
        &self,
        worker: usize,
        arrive: impl FnOnce() -> W + Send + 'static,
        run: impl FnOnce(W) + Send + 'static,
    ) -> io::Result<()> {
        let mut state = unpoisoned(self.state.lock());
        if state.closed {
            return Ok(());
        }
        if state.refused.is_some_and(|at| at.elapsed() < RETRY) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        match self.options.spawn(&worker.to_string(), arrive, run) {
            Ok(thread) => {
                state.threads.push(thread);
                state.present += 1;
                Ok(())
            }
            Err(error) => {
                state.refused = Some(Instant::now());
                Err(error)
            }
        }
    }

    /// Counts a worker that runs on a thread of the caller.
    pub(super) fn enlist(&self) {
        unpoisoned(self.state.lock()).present += 1;
    }

    /// Returns the queue of a worker that starts. Call it once per worker.
    pub(super) fn queue(&self, worker: usize) -> Local {
        let queue = unpoisoned(self.state.lock()).queues[worker].take();
        queue.expect("a worker starts once")
    }

    /// Prevents further workers from starting. Returns false if an earlier call did.
    pub(super) fn close(&self) -> bool {
        !std::mem::replace(&mut unpoisoned(self.state.lock()).closed, true)
    }

    /// Notes that a worker leaves. The last worker calls `last` before it leaves.
    pub(super) fn leave(&self, last: impl FnOnce()) {
        let mut state = unpoisoned(self.state.lock());
        if state.present == 1 {
            drop(state);
            last();
            state = unpoisoned(self.state.lock());
        }
        state.present -= 1;
        let awaited = state.awaiting > 0;
        drop(state);
        if awaited {
            self.left.notify_all();
        }
    }

    /// Waits until all workers have left. Returns false if the deadline came first.
    pub(in super::super) fn wait_left(&self, deadline: Option<Instant>) -> bool {
        let mut state = unpoisoned(self.state.lock());
        state.awaiting += 1;
        let mut state = wait_until(&self.left, state, deadline, |state| state.present == 0);
        state.awaiting -= 1;
        state.present == 0
    }

    /// Takes the handles of the threads, to join them. After `close` there are no new ones.
    pub(in super::super) fn take_handles(&self) -> Vec<thread::JoinHandle<()>> {
        std::mem::take(&mut unpoisoned(self.state.lock()).threads)
    }
}
