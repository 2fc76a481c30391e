//! The loop of a thread in `block_on` on a runtime of [`testing`](super::super::testing), instead of a worker's own.
//!
//! Each step does one thing: it polls one task or the future of `block_on`, runs one blocking job, or fires one timer.
//! The [`Simulation`] chooses which. Wakes of sockets and of other threads count from the step after they came.
//!
//! When there is no step to take, everything waits. Then the loop does the first of these that applies:
//!
//! 1. Tasks in `advance` continue.
//! 2. Something real is awaited, so the thread waits for it in the driver.
//! 3. The clock is paused, and jumps to the next deadline.
//! 4. Nothing can ever happen again: a deadlock, which panics.

use std::collections::VecDeque;
use std::fmt::Write;
use std::task::Poll;
use std::time::{Duration, Instant};

use super::super::clock;
use super::super::task::Runnable;
use super::super::testing::{Counts, Simulation, Step};
use super::worker::Worker;
use crate::reactor::Wait;

/// After a real wait this long, stderr says what is waited for.
const SILENCE: Duration = Duration::from_secs(5);
/// A message names at most this many tasks.
const NAMED: usize = 16;

/// The future of `block_on`.
pub(super) struct Root<P, W, O> {
    /// Takes the wake, and polls.
    pub(super) poll: P,
    /// Whether there was a wake since the last poll.
    pub(super) is_woken: W,
    /// Whether other threads are in `block_on` too.
    pub(super) others_wait: O,
}

/// What outside the simulation is awaited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Nothing,
    /// Another thread waits in `block_on`. It may do anything when its future is woken.
    Caller,
    /// A socket, which may never be ready.
    Socket,
    /// A blocking job, or what a `Hold` stands for: it ends.
    Work,
}

/// Runs tasks until the future of `block_on` is ready. Returns `Pending` if the runtime was closed.
pub(super) fn drive<T>(
    worker: &Worker,
    simulation: &Simulation,
    root: Root<impl FnMut() -> Poll<T>, impl Fn() -> bool, impl Fn() -> bool>,
) -> Poll<T> {
    let Root { mut poll, is_woken, others_wait } = root;
    let shared = worker.shared();
    let _seed = SeedOnPanic::new(simulation);
    let mut ready = Ready { worker, tasks: VecDeque::new() };
    let mut waited = Waited::default();
    while !shared.is_closing() {
        worker.look_at_sockets();
        worker.hand_over(&mut ready.tasks);
        let now = simulation.clock.now();
        let step = simulation.choose(Counts {
            timers: shared.driver.timers.end_simulated_wait(now),
            roots: usize::from(is_woken()),
            tasks: ready.tasks.len(),
            jobs: if simulation.runs_jobs() { shared.pool.queued() } else { 0 },
        });
        match step {
            Some(Step::Timer(index)) => shared.driver.timers.fire_due(now, index),
            Some(Step::Root) => {
                if let Poll::Ready(output) = poll() {
                    return Poll::Ready(output);
                }
            }
            Some(Step::Task(index)) => {
                if let Some(task) = ready.tasks.remove(index) {
                    worker.poll_one(task);
                }
            }
            Some(Step::Job(index)) => shared.pool.run_queued(index),
            None => {
                idle(worker, simulation, &is_woken, &others_wait, &mut waited);
                continue;
            }
        }
        waited = Waited::default();
    }
    Poll::Pending
}

/// Everything waits.
fn idle(
    worker: &Worker,
    simulation: &Simulation,
    is_woken: &impl Fn() -> bool,
    others_wait: &impl Fn() -> bool,
    waited: &mut Waited,
) {
    let shared = worker.shared();
    if simulation.wake_settling() {
        return;
    }
    let outside = outside(worker, simulation, others_wait);
    // Work outside may have ended meanwhile. It woke its task before that.
    if shared.has_work() || is_woken() || shared.is_closing() {
        return;
    }
    let clock = &simulation.clock;
    let deadline = shared.driver.timers.begin_simulated_wait();
    let holds = match outside {
        Outside::Nothing | Outside::Caller => false,
        Outside::Socket | Outside::Work => !simulation.jumps_over_outside(),
    };
    if let Some(deadline) = deadline
        && clock.is_paused()
        && !holds
    {
        return clock.jump(deadline);
    }
    if deadline.is_none() && outside == Outside::Nothing {
        deadlock(worker);
    }
    let now = clock.now();
    let stands = clock.is_paused() && outside != Outside::Socket;
    let left = deadline.filter(|_| !stands).map(|deadline| deadline.saturating_duration_since(now));
    waited.report(worker, outside);
    let limit = left.map_or(SILENCE, |left| left.min(SILENCE));
    let start = Instant::now();
    worker.wait_outside(Wait::within(clock::nanos(), limit), is_woken);
    let took = start.elapsed();
    waited.time += took;
    if clock.is_paused() && !stands {
        // A socket may never be ready, so time passes while one is awaited.
        let until = deadline.unwrap_or(now + took);
        clock.jump((now + took).min(until));
    }
}

fn outside(worker: &Worker, simulation: &Simulation, others_wait: &impl Fn() -> bool) -> Outside {
    let shared = worker.shared();
    if simulation.is_held() || (!simulation.runs_jobs() && shared.pool.threads() > 0) {
        Outside::Work
    } else if shared.driver.registrations.any_awaited() {
        Outside::Socket
    } else if others_wait() {
        Outside::Caller
    } else {
        Outside::Nothing
    }
}

/// The ready tasks. They go back to the worker's queue when this is dropped.
struct Ready<'a> {
    worker: &'a Worker,
    tasks: VecDeque<Runnable>,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.worker.take_back(&mut self.tasks);
    }
}

/// How long the thread has waited for something real since the last step.
#[derive(Default)]
struct Waited {
    time: Duration,
    reported: bool,
}

impl Waited {
    fn report(&mut self, worker: &Worker, outside: Outside) {
        if self.time < SILENCE || self.reported {
            return;
        }
        self.reported = true;
        let what = match outside {
            Outside::Work => "a blocking job or a Hold",
            Outside::Socket => "a socket",
            Outside::Caller => "another thread in block_on",
            Outside::Nothing => "a timer of a clock that runs",
        };
        eprintln!("wakeloop: a test has waited {:?} for {what}. {}", self.time, tasks(worker));
    }
}

#[cold]
fn deadlock(worker: &Worker) -> ! {
    panic!(
        "deadlock: everything waits, and no timer, socket or blocking job is left that could wake a task. {}. \
         If another thread will wake one, keep a testing::hold() until then",
        tasks(worker)
    );
}

/// Says which tasks there are.
fn tasks(worker: &Worker) -> String {
    let mut names = Vec::new();
    worker.shared().owned.each_name(|name| names.push(name));
    let mut text = match names.len() {
        0 => return "The future of block_on is the only one".to_owned(),
        1 => "Beside the future of block_on there is 1 task: ".to_owned(),
        n => format!("Beside the future of block_on there are {n} tasks: "),
    };
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    text.push_str(&names.join(", "));
    if more > 0 {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Prints the seed when a panic ends the run.
struct SeedOnPanic {
    seed: Option<u64>,
}

impl SeedOnPanic {
    fn new(simulation: &Simulation) -> SeedOnPanic {
        SeedOnPanic { seed: simulation.seed().filter(|_| !std::thread::panicking()) }
    }
}

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if let Some(seed) = self.seed
            && std::thread::panicking()
        {
            eprintln!(
                "wakeloop: the run with the seed {seed} failed. WAKELOOP_SEED={seed} makes explore() repeat it"
            );
        }
    }
}
