//! One worker: its queue, its LIFO slot, and the loop that polls, searches and parks.
//!
//! One thread at a time owns and runs a `Worker`. Wakers find the worker of the current thread through a
//! thread-local pointer, which is set exactly while the worker runs.

use std::cell::Cell;
use std::collections::VecDeque;
use std::ptr;
use std::sync::Arc;

use super::super::metrics::Counters;
use super::super::sampler::Sampler;
use super::super::shim::thread_cell;
use super::super::task::{Runnable, Sample};
use super::super::trace::TraceEvent;
use super::super::{clock, coop, entered};
use super::queue::Local;
use super::shared::Shared;
use super::watch::PERIOD;
use crate::reactor::Wait;
use crate::recorder::event::Kind;
use crate::recorder::worker::WorkerRecorder;

/// How often, in nanoseconds, a worker with tasks to poll looks at the driver and the injector. The period is
/// short enough to serve sockets, timers and other threads within a fraction of a millisecond, and long enough
/// for the system call not to matter.
const LOOK_PERIOD: u64 = 100_000;
/// The most turns between two such looks. Reading the clock each turn would cost more than a short poll, so a
/// worker counts turns, and adjusts their number to how long they take.
const MAX_LOOK_INTERVAL: u32 = 127;
/// A worker reads the clock every so many turns, in case short turns become long ones.
const CLOCK_INTERVAL: u32 = 16;
/// Up to this many tasks from the driver do not count as a backlog.
const FEW: usize = 16;
/// How much work, in nanoseconds, is worth waking another worker. A wake costs both workers some microseconds.
const WORTH_A_WAKE: u64 = 50_000;
/// How many polls in a row may come from the LIFO slot before its task is queued like the others.
const MAX_LIFO_STREAK: u32 = 3;

thread_cell! {
    static CURRENT: *const Worker = ptr::null();
}

/// The private half of a worker; the shared half is its `Member`.
pub(in super::super) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    local: Local,
    /// The task that the current task woke last. The two often exchange data, which is still in the cache.
    lifo: Cell<Option<Runnable>>,
    /// The current number of turns between two looks outside.
    look_interval: Cell<u32>,
    /// Turns until the next look.
    look_in: Cell<u32>,
    /// The time of the last look, or of the end of the last sleep.
    looked: Cell<u64>,
    /// How many tasks wait in the queue up to the last one of a large batch from the driver.
    backlog: Cell<usize>,
    /// How long recent turns took, in nanoseconds per turn.
    pace: Cell<u64>,
    random: Cell<u64>,
    /// A poll is under way, as opposed to a turn of the driver.
    polling: Cell<bool>,
    /// The idle word counts this worker as searching.
    searching: Cell<bool>,
    /// Work was posted that others could take, and no worker was seen asleep at that moment.
    posted: Cell<bool>,
    recorder: WorkerRecorder,
    /// Chooses the wakes on this thread whose delay is measured.
    pub(super) sampler: Sampler,
}

impl Worker {
    /// The worker counts as searching.
    pub(super) fn new(shared: Arc<Shared>, index: usize, local: Local) -> Worker {
        let now = clock::nanos();
        shared.counters(index).presence.begins(now);
        Worker {
            shared,
            index,
            local,
            lifo: Cell::new(None),
            look_interval: Cell::new(MAX_LOOK_INTERVAL),
            look_in: Cell::new(MAX_LOOK_INTERVAL),
            looked: Cell::new(now),
            backlog: Cell::new(0),
            pace: Cell::new(u64::MAX),
            random: Cell::new(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(index as u64 + 1)),
            polling: Cell::new(false),
            searching: Cell::new(true),
            posted: Cell::new(false),
            recorder: WorkerRecorder::default(),
            sampler: Sampler::new(),
        }
    }

    /// Creates the worker of a thread that begins. It counts as searching.
    pub(in super::super) fn arrive(shared: Arc<Shared>, index: usize) -> Box<dyn FnOnce()> {
        let worker = Worker::of(shared, index);
        Box::new(|| worker.run())
    }

    /// Returns the first worker, for the caller to run.
    pub(super) fn first(shared: &Arc<Shared>) -> Worker {
        shared.threads.enlist();
        Worker::of(shared.clone(), 0)
    }

    fn of(shared: Arc<Shared>, index: usize) -> Worker {
        let queue = shared.threads.queue(index);
        Worker::new(shared, index, queue)
    }

    pub(in super::super) fn index(&self) -> usize {
        self.index
    }

    pub(in super::super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Polls tasks until the runtime closes, then leaves (see `Drop`).
    pub(in super::super) fn run(self) {
        self.shared.parker(self.index).adopt();
        let _entered = EnteredWorker::new(&self);
        while !self.shared.is_closing() {
            self.turn(&mut || false);
        }
    }

    /// Polls one task, or finds one elsewhere, or sleeps. `interrupted` ends the sleep.
    pub(super) fn turn(&self, interrupted: &mut dyn FnMut() -> bool) {
        if let Some(task) = self.next() {
            self.poll(task);
        } else if let Some(task) = self.search() {
            self.poll(task);
        } else {
            self.park(interrupted);
        }
    }

    /// Drops every task in the queue, including those that the drops wake.
    pub(super) fn drain(&self) {
        while let Some(task) = self.lifo.take().or_else(|| self.local.pop()) {
            drop(task);
        }
    }

    /// Makes `self` the worker of the current thread for as long as the guard lives.
    pub(super) fn enter(&self) -> EnteredWorker<'_> {
        EnteredWorker::new(self)
    }

    fn counters(&self) -> &Counters {
        self.shared.counters(self.index)
    }

    // ---- adding tasks

    /// Queues a task that was spawned or woken on this thread.
    pub(super) fn post(&self, task: Runnable) {
        let task = self.sampler.count(task);
        if !self.polling.get() {
            // This is a turn of the driver. Other workers are notified once, at its end.
            self.local.push(task);
            return;
        }
        if let Some(older) = self.lifo.replace(Some(task)) {
            self.local.push(older);
            self.notify_others();
        }
    }

    /// Queues a task that yielded: it must not run again before the others.
    pub(super) fn post_behind(&self, task: Runnable) {
        self.local.push(task);
        // If the task is alone in the queue, this worker polls it next. With others in the queue another worker
        // may take it, but nothing is lost if a worker that is just falling asleep misses it. So no fence is
        // needed.
        if self.local.len() > 1 && self.shared.idle.maybe_asleep() {
            self.shared.wake_one();
        }
    }

    /// Call this when there is work that others could take. The cheap check misses only a worker that is
    /// falling asleep right now. The reliable check follows at the end of the poll, once for everything that
    /// was posted.
    fn notify_others(&self) {
        if self.shared.idle.maybe_asleep() {
            self.shared.wake_one();
        } else {
            self.posted.set(true);
        }
    }

    // ---- taking tasks

    fn next(&self) -> Option<Runnable> {
        let turns = self.look_in.get();
        if turns == 0 || (turns.is_multiple_of(CLOCK_INTERVAL) && self.since_look() >= LOOK_PERIOD) {
            self.look_outside();
            // Even if this worker's own queue is never empty, it must take a share of the injector's tasks.
            if let Some(task) = self.take_injected() {
                return Some(task);
            }
        } else {
            self.look_in.set(turns - 1);
        }
        self.local.pop().or_else(|| self.take_injected())
    }

    fn since_look(&self) -> u64 {
        clock::nanos().saturating_sub(self.looked.get())
    }

    fn take_injected(&self) -> Option<Runnable> {
        let task = self.shared.injector.take_share(&self.local, self.shared.workers())?;
        if self.local.len() > 0 {
            self.notify_others();
        }
        Some(task)
    }

    fn search(&self) -> Option<Runnable> {
        let workers = self.shared.workers();
        if workers == 1 {
            return None;
        }
        if !self.searching.get() {
            if !self.shared.idle.start_search() {
                return None;
            }
            self.searching.set(true);
        }
        let start = self.next_random() as usize % workers;
        for victim in (start..workers).chain(0..start).filter(|victim| *victim != self.index) {
            if let Some(task) = self.shared.steal(victim, &self.local) {
                self.counters().steals.add(1);
                self.recorder.note(Kind::Steal, || 0);
                return Some(task);
            }
        }
        self.shared.injector.take_share(&self.local, workers)
    }

    /// xorshift: quality does not matter here, as long as workers do not pick victims in the same order.
    fn next_random(&self) -> u64 {
        let mut x = self.random.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.random.set(x);
        x
    }

    // ---- polling

    fn poll(&self, task: Runnable) {
        if self.searching.replace(false) && self.shared.idle.end_search() && self.shared.has_work() {
            // There may be more tasks where this one was: another worker continues the search, one at a time.
            self.shared.wake_one();
        }
        let counters = self.counters();
        coop::refill();
        self.polling.set(true);
        // Count first, so that a joiner of the task finds its polls in the metrics.
        counters.polls.add(1);
        self.recorder.note(Kind::TaskPoll, || task.type_number());
        task.run();
        let mut streak = 0;
        while let Some(task) = self.lifo.take() {
            if streak == MAX_LIFO_STREAK || !coop::has_budget() {
                self.post_behind(task);
                break;
            }
            streak += 1;
            counters.polls.add(1);
            counters.lifo_hits.add(1);
            self.recorder.note(Kind::TaskPoll, || task.type_number());
            task.run();
        }
        self.polling.set(false);
        coop::lift();
        if self.posted.replace(false) && self.shared.workers() > 1 {
            self.shared.wake_one();
        }
    }

    /// Runs a poll of something that is not a task. Tasks that it wakes are treated as in a task's poll.
    pub(super) fn as_poll<R>(&self, poll: impl FnOnce() -> R) -> R {
        struct Done<'a>(&'a Worker);
        impl Drop for Done<'_> {
            fn drop(&mut self) {
                self.0.polling.set(false);
                if let Some(task) = self.0.lifo.take() {
                    self.0.local.push(task);
                }
            }
        }
        self.polling.set(true);
        let _done = Done(self);
        poll()
    }

    // ---- for `simulated`, which takes the place of `turn`

    /// Moves every task that this worker could poll to the end of `ready`.
    pub(super) fn hand_over(&self, ready: &mut VecDeque<Runnable>) {
        while let Some(task) = self.local.pop().or_else(|| self.shared.injector.pop()) {
            ready.push_back(task);
        }
    }

    /// Queues tasks that `hand_over` has given away.
    pub(super) fn take_back(&self, ready: &mut VecDeque<Runnable>) {
        ready.drain(..).for_each(|task| self.local.push(task));
    }

    /// Polls one task. It does not count as a poll: then wakes do not go to the LIFO slot, but to the queue, and a
    /// task that yields comes behind those that it has woken.
    pub(super) fn poll_one(&self, task: Runnable) {
        self.counters().polls.add(1);
        self.recorder.note(Kind::TaskPoll, || task.type_number());
        coop::in_own_turn(|| task.run());
    }

    /// Looks at the sockets, and wakes the tasks that wait for those that are ready.
    pub(super) fn look_at_sockets(&self) {
        if !self.shared.driver.registrations.is_empty()
            && let Some(mut driver) = self.shared.try_driver()
        {
            driver.turn_without_timers(&self.shared.driver, Wait::Not);
        }
    }

    /// Sleeps until there may be work, or for this long.
    pub(super) fn wait_outside(&self, wait: Wait, interrupted: impl Fn() -> bool) {
        let (shared, idle) = (&self.shared, &self.shared.idle);
        idle.park(self.index, self.searching.replace(false));
        let stays = !shared.has_work() && !shared.is_closing() && !interrupted();
        if stays && let Some(mut driver) = shared.try_driver() {
            self.counters().parks.add(1);
            shared.trace(TraceEvent::Parked { worker: self.index });
            let wait = || driver.turn_without_timers(&shared.driver, wait);
            shared.parker(self.index).park_while(wait, || true);
            self.counters().wakeups.add(1);
            shared.trace(TraceEvent::Unparked { worker: self.index });
        }
        self.searching.set(idle.unpark(self.index, !stays));
    }

    /// This worker is about to poll the task of a sample.
    pub(super) fn record_delay(&self, sample: Sample) {
        self.counters().delay.note(sample.age(), sample.weight.into());
    }

    // ---- the driver, and sleep

    /// Polls the driver without waiting, and reads the clock to set the time of the next look.
    fn look_outside(&self) {
        let took = self.since_look();
        self.looked.set(self.looked.get() + took);
        let (turns, done) = (self.look_interval.get(), self.turns_done());
        self.measure(took);
        let fit = (u64::from(done) * LOOK_PERIOD / took.max(1)).min(u64::from(2 * MAX_LOOK_INTERVAL)) as u32;
        // Decrease at once, because the next look must not be late. Increase half way.
        let turns = if fit < turns { fit } else { (turns + fit).div_ceil(2) };
        self.look_interval.set(turns.clamp(1, MAX_LOOK_INTERVAL));
        self.look_in.set(self.look_interval.get());
        let handle = &self.shared.driver;
        let worthwhile = if self.has_backlog(done) { handle.has_due_timer() } else { handle.needs_look() };
        if worthwhile && let Some(mut driver) = self.shared.try_driver() {
            let before = self.local.len();
            driver.turn(handle, false);
            self.note_backlog(before);
            drop(driver);
            self.shared.leave_driver();
            if self.is_behind() {
                self.notify_others();
            }
        }
    }

    /// Whether most tasks of a large batch from the driver still wait, `done` turns after the last look. New
    /// events would only queue up behind them, so they may wait in the kernel. That saves system calls. The
    /// memory of a socket is also still in the cache if its task is polled soon after the event.
    fn has_backlog(&self, done: u32) -> bool {
        // Other workers may have taken some.
        let left = self.backlog.get().saturating_sub(done as usize).min(self.local.len());
        self.backlog.set(left);
        left > FEW
    }

    /// Notes the backlog after a turn of the driver. `before` is the number of tasks that waited before it.
    fn note_backlog(&self, before: usize) {
        let now = self.local.len();
        self.backlog.set(if now > before + FEW { now } else { 0 });
    }

    /// Returns the turns since the last look or sleep.
    fn turns_done(&self) -> u32 {
        self.look_interval.get() - self.look_in.get()
    }

    /// Adjusts the pace. `took` is the time since the last look or sleep.
    fn measure(&self, took: u64) {
        if let Some(each) = took.checked_div(u64::from(self.turns_done())) {
            let before = self.pace.get();
            self.pace.set(if each < before { before / 2 + each / 2 } else { each });
        }
    }

    /// Whether the tasks from the driver are worth waking another worker. They are not if they are done before
    /// it would be awake. If a poll takes longer than recent ones, the watcher takes the tasks that wait for
    /// the end of that poll.
    fn is_behind(&self) -> bool {
        let others = self.local.len().saturating_sub(1) as u64;
        others > 0 && (others.saturating_mul(self.pace.get()) >= WORTH_A_WAKE || !self.shared.watch.is_kept())
    }

    fn park(&self, interrupted: &mut dyn FnMut() -> bool) {
        let shared = &self.shared;
        let idle = &shared.idle;
        idle.park(self.index, self.searching.replace(false));
        // A task that was posted before we counted as asleep may have woken nobody. A searching worker looks
        // again before it sleeps; if there is none, we must look.
        if (idle.nobody_searches() && shared.has_work()) || shared.is_closing() || interrupted() {
            // This worker becomes a searcher. Others may have left the search to it, so if there is more than
            // one task, it calls the next worker.
            self.searching.set(idle.unpark(self.index, true));
            if shared.watch.give_up(self.index) {
                shared.leave_driver();
            }
            return;
        }
        let counters = self.counters();
        counters.parks.add(1);
        shared.trace(TraceEvent::Parked { worker: self.index });
        self.recorder.note(Kind::Park, || 0);
        self.recorder.rest();
        let took = self.since_look();
        let asleep = self.looked.get() + took;
        counters.presence.falls_asleep(asleep);
        self.sampler.sleeps(asleep);
        let mut left = self.park_in_driver(interrupted);
        if !left {
            shared.parker(self.index).park();
            left = self.keep_watch(interrupted);
        }
        self.measure(took);
        self.note_backlog(0);
        let awake = clock::nanos();
        counters.presence.wakes_up(awake);
        self.looked.set(awake);
        self.look_in.set(self.look_interval.get());
        counters.wakeups.add(1);
        shared.trace(TraceEvent::Unparked { worker: self.index });
        self.recorder.note(Kind::Unpark, || 0);
        self.searching.set(idle.unpark(self.index, false));
        if shared.watch.give_up(self.index) || left {
            shared.leave_driver();
        }
        if self.is_behind() {
            shared.wake_one();
        }
    }

    /// Sleeps in the driver. Returns false if it is not open, or if another worker has it.
    fn park_in_driver(&self, interrupted: &mut dyn FnMut() -> bool) -> bool {
        let shared = &self.shared;
        let Some(mut driver) = shared.try_driver() else { return false };
        let has_work = || self.local.len() > 0 || interrupted();
        shared.parker(self.index).park_in(&mut driver, &shared.driver, has_work);
        true
    }

    /// Call this after a wake outside the driver. If this worker was appointed to keep watch, it does so until
    /// there is something else to do. Returns whether it finally slept in the driver.
    fn keep_watch(&self, interrupted: &mut dyn FnMut() -> bool) -> bool {
        let (shared, parker) = (&self.shared, self.shared.parker(self.index));
        // The wake may have other reasons than the watch.
        while let Some(mut seen) = shared.watch.look(self.index)
            && shared.idle.is_parked(self.index)
            && !shared.is_closing()
        {
            loop {
                if parker.park_timeout(PERIOD) {
                    return false;
                }
                let Some(now) = shared.watch.look(self.index) else { return false };
                if now == seen {
                    // The driver was left alone for a while. The tasks that it brought last may be waiting for
                    // a long poll.
                    if shared.has_work() {
                        return false;
                    }
                    if self.park_in_driver(interrupted) {
                        return true;
                    }
                    // A worker is in the driver, and stays.
                    if shared.watch.stand_down(seen) {
                        break;
                    }
                }
                seen = now;
            }
            parker.park();
        }
        false
    }
}

/// A worker leaves when it is dropped: at the end of `run`, when the runtime's own code or a hook of the thread
/// panics, or when its thread could not be started. Others would wait forever for the tasks that it held. So
/// the runtime closes, and awaiting one of its tasks returns that the task was cancelled.
impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.close();
        let entered = EnteredWorker::new(self);
        self.shared.leave(|| {
            self.drain();
            // From here on, wakes on this thread go to the injector.
            drop(entered);
            drop(self.lifo.take());
            self.counters().presence.ends(clock::nanos());
        });
    }
}

/// While this lives, `current_worker` finds the worker.
pub(super) struct EnteredWorker<'a> {
    worker: &'a Worker,
    outer: *const Worker,
    _hidden: entered::Entered<'static>,
}

impl<'a> EnteredWorker<'a> {
    fn new(worker: &'a Worker) -> EnteredWorker<'a> {
        EnteredWorker { worker, outer: CURRENT.replace(worker), _hidden: entered::hide() }
    }
}

impl Drop for EnteredWorker<'_> {
    fn drop(&mut self) {
        debug_assert!(ptr::eq(CURRENT.get(), self.worker));
        CURRENT.set(self.outer);
    }
}

/// Returns the worker that the current thread runs, if it belongs to `shared` (or any worker, if null).
///
/// # Safety
/// The caller must give up the reference before it returns to the worker's loop.
pub(in super::super) unsafe fn current_worker<'a>(shared: *const Shared) -> Option<&'a Worker> {
    // SAFETY: the pointer is set exactly while the worker runs on this thread, further up this stack.
    let worker = unsafe { CURRENT.get().as_ref() }?;
    (shared.is_null() || ptr::eq(Arc::as_ptr(&worker.shared), shared)).then_some(worker)
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use std::future::pending;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::super::super::blocking::Pool;
    use super::super::super::thread_options::ThreadOptions;
    use super::super::Options;
    use super::*;

    #[test]
    fn a_worker_that_panics_ends_its_runtime_instead_of_being_waited_for() {
        let pool = Pool::new(1, Duration::from_secs(1), ThreadOptions::default());
        let threads = ThreadOptions::default();
        let shared = Shared::new(Options {
            workers: 2,
            tracer: None,
            pool,
            threads,
            arrive: Worker::arrive,
            simulation: None,
        });
        let task = shared.spawn(pending::<()>());
        let failing = Worker::first(&shared);
        // This starts the other worker.
        shared.open_driver().unwrap();
        let failing = thread::spawn(move || {
            failing.shared.parker(failing.index).adopt();
            let _entered = failing.enter();
            loop {
                failing.turn(&mut || panic!("the runtime's own code is wrong"));
            }
        });
        assert!(shared.threads.wait_left(Some(Instant::now() + Duration::from_secs(60))));
        assert!(super::super::super::block_on(task).unwrap_err().is_cancelled());
        assert!(failing.join().is_err());
        shared.threads.take_handles().into_iter().for_each(|healthy| healthy.join().unwrap());
    }
}
