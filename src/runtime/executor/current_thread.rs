//! A runtime without threads: a thread in `block_on` runs its only worker.
//!
//! The first caller takes the worker and runs all tasks beside its own future. Other callers wait for their
//! futures, and one of them takes over when the worker becomes free.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use super::super::coop;
use super::super::shim::{AtomicBool, Mutex};
use super::super::testing::Simulation;
use super::park::Parker;
use super::shared::Shared;
use super::simulated::{self, Root};
use super::worker::Worker;
use crate::poison::unpoisoned;

/// The worker, while no caller runs it, and the callers that wait for it.
pub(in super::super) struct CurrentThread {
    state: Mutex<CurrentThreadState>,
}

struct CurrentThreadState {
    worker: Option<Worker>,
    waiting: Vec<Arc<Signal>>,
}

/// The waker of one `block_on`.
struct Signal {
    woken: AtomicBool,
    shared: Arc<Shared>,
    parker: Parker,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Ordering: Release passes what came before the wake to the poll; pairs with `take`.
        if !self.woken.swap(true, Release) {
            // We may be driving the worker, or waiting for a caller that does.
            self.shared.unpark(0);
            self.parker.unpark(None);
        }
    }
}

impl Signal {
    fn take(&self) -> bool {
        // Ordering: Acquire pairs with `wake_by_ref`.
        self.woken.swap(false, Acquire)
    }
}

impl CurrentThread {
    /// Creates the place of the runtime's only worker, which a thread in `block_on` runs.
    pub(in super::super) fn create(shared: &Arc<Shared>) -> Arc<CurrentThread> {
        let worker = Worker::first(shared);
        let state = CurrentThreadState { worker: Some(worker), waiting: Vec::new() };
        let place = Arc::new(CurrentThread { state: Mutex::new(state) });
        // The worker holds an `Arc` of the runtime, so the runtime must not hold one of the place.
        let weak: Weak<CurrentThread> = Arc::downgrade(&place);
        shared.current_thread.get_or_init(|| weak);
        place
    }

    /// The place of this runtime, if it is one without threads.
    pub(in super::super) fn of(shared: &Shared) -> Option<Arc<CurrentThread>> {
        shared.current_thread.get()?.upgrade()?.downcast().ok()
    }

    /// Runs `future`, and the tasks of the runtime with it.
    pub(in super::super) fn block_on<F: Future>(&self, shared: &Arc<Shared>, future: F) -> F::Output {
        let mut future = pin!(future);
        let signal = Arc::new(Signal {
            woken: AtomicBool::new(true),
            shared: shared.clone(),
            parker: Parker::current(),
        });
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        let _waiting = WaitingCaller { place: self, signal: &signal };
        loop {
            if let Some(driving) = self.take_worker(&signal) {
                if let Poll::Ready(output) = driving.drive(future.as_mut(), &mut context) {
                    return output;
                }
            } else if signal.take()
                && let Poll::Ready(output) = future.as_mut().poll(&mut context)
            {
                return output;
            } else {
                signal.parker.park();
            }
        }
    }

    /// Ends the worker, if no caller is driving it. Otherwise that caller ends it.
    pub(in super::super) fn close(&self) {
        let worker = unpoisoned(self.state.lock()).worker.take();
        if let Some(worker) = worker {
            worker.run();
        }
    }

    fn take_worker<'a>(&'a self, signal: &'a Arc<Signal>) -> Option<Driving<'a>> {
        let mut state = unpoisoned(self.state.lock());
        match state.worker.take() {
            Some(worker) => {
                state.waiting.retain(|other| !Arc::ptr_eq(other, signal));
                Some(Driving { place: self, signal, worker: Some(worker) })
            }
            None => {
                if !state.waiting.iter().any(|other| Arc::ptr_eq(other, signal)) {
                    state.waiting.push(signal.clone());
                }
                None
            }
        }
    }
}

/// A `block_on` that may be in the list of waiting callers. It leaves the list when dropped, also when a panic
/// unwinds.
struct WaitingCaller<'a> {
    place: &'a CurrentThread,
    signal: &'a Arc<Signal>,
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        let mut state = unpoisoned(self.place.state.lock());
        let before = state.waiting.len();
        state.waiting.retain(|other| !Arc::ptr_eq(other, self.signal));
        // This caller may have been notified that the worker is free, so it passes the notification on.
        if state.waiting.len() < before
            && state.worker.is_some()
            && let Some(next) = state.waiting.last()
        {
            next.parker.unpark(None);
        }
    }
}

/// The right to run the worker. Dropping it puts the worker back, also when a panic unwinds.
struct Driving<'a> {
    place: &'a CurrentThread,
    signal: &'a Arc<Signal>,
    worker: Option<Worker>,
}

impl Driving<'_> {
    /// Returns `Pending` if the runtime was closed.
    fn drive<F: Future>(mut self, mut future: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        {
            let Some(worker) = &self.worker else { return Poll::Pending };
            let _entered = worker.enter();
            let signal = self.signal;
            if let Some(simulation) = signal.shared.simulation() {
                let polled = self.simulate(worker, simulation, future.as_mut(), context);
                if polled.is_ready() {
                    return polled;
                }
            }
            // Relaxed: `take` follows with Acquire. A wake that this load misses ends the sleep.
            let mut interrupted = || signal.woken.load(Relaxed);
            while !signal.shared.is_closing() {
                if signal.take() {
                    let polled = worker.as_poll(|| coop::in_own_turn(|| future.as_mut().poll(context)));
                    if polled.is_ready() {
                        return polled;
                    }
                }
                worker.turn(&mut interrupted);
            }
        }
        if let Some(worker) = self.worker.take() {
            worker.run();
        }
        // From here on, `block_on` polls the future without the worker. The shutdown may have woken it.
        Poll::Pending
    }

    /// As `drive`, for a runtime whose order and clock a test controls.
    #[cold]
    fn simulate<F: Future>(
        &self,
        worker: &Worker,
        simulation: &Simulation,
        mut future: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        let signal = self.signal;
        let poll = || {
            signal.take();
            coop::in_own_turn(|| future.as_mut().poll(context))
        };
        // Relaxed: as in `drive`.
        let is_woken = || signal.woken.load(Relaxed);
        let others_wait = || !unpoisoned(self.place.state.lock()).waiting.is_empty();
        simulated::drive(worker, simulation, Root { poll, is_woken, others_wait })
    }
}

impl Drop for Driving<'_> {
    fn drop(&mut self) {
        let mut state = unpoisoned(self.place.state.lock());
        state.worker = self.worker.take();
        if let Some(next) = state.waiting.last() {
            next.parker.unpark(None);
        }
        drop(state);
        // A thread that closed the runtime meanwhile found no worker here, and waits for it to leave.
        if self.signal.shared.is_closing() {
            self.place.close();
        }
    }
}
