//! Time and order under a test's control.
//!
//! [`run`] runs a future on a runtime of its own. Its clock is paused: when every task waits, time jumps to the next
//! deadline, so sleeps cost nothing. Which of the ready tasks runs next is drawn from a seed, and the same seed draws
//! the same order. [`explore`] tries many seeds, and says which one failed.
//!
//! ```
//! use std::time::Duration;
//! use wakeloop::runtime::{spawn, sync::oneshot, testing, time};
//!
//! testing::explore(0..100, || async {
//!     let (sender, receiver) = oneshot::channel();
//!     spawn(async move {
//!         time::sleep(Duration::from_secs(60)).await;
//!         let _ = sender.send("late");
//!     });
//!     let patience = Duration::from_secs(30);
//!     assert!(time::timeout(patience, receiver).await.is_err());
//! });
//! ```
//!
//! # Time
//!
//! [`sleep`](super::time::sleep), [`timeout`](super::time::timeout) and [`interval`](super::time::interval) follow the
//! runtime's clock; so does [`time::now`](super::time::now), by which code under test should tell the time.
//! `Instant::now` and the rest of the standard library know nothing of it.
//!
//! A paused clock stands still while tasks run. When all of them wait:
//!
//! - It jumps to the next deadline if nothing real is awaited.
//! - It stands still while a blocking job runs on a thread, or while there is a [`Hold`]. Both are expected to end.
//! - Otherwise, while a task waits for a socket, time passes as it does outside, because the socket may never become
//!   ready. See [`Builder::jump_over_real_work`] for another way.
//!
//! # Order
//!
//! With a seed, each step is drawn from all that could be next: the polls of ready tasks, those of a
//! [`LocalSet`](super::LocalSet) included, the timers that are due, and the blocking jobs, which then run between the
//! polls. So a run depends on nothing but the seed and the program, as long as the program does not: real sockets,
//! other threads, the time of the system and the random order of a `HashMap` are not under control.
//! [`assert_deterministic`] finds out.
//!
//! # Deadlocks
//!
//! If everything waits, and no timer and nothing real could ever wake a task, `block_on` panics at once and lists the
//! tasks. Threads of the program and tasks of another runtime are not known: keep a [`Hold`] while one of them is to
//! wake a task. A program that waits forever beside a task with an interval is no deadlock: limit it by a
//! [`timeout`](super::time::timeout) of the runtime's own time.

mod builder;
mod clock;
mod random;
mod simulation;

use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

pub use builder::Builder;
pub(super) use simulation::{Counts, Simulation, Step};

use super::context;
use super::executor::Shared;
use crate::settings;

/// Runs `future` on a new runtime with a paused clock and the order of this seed. Blocking jobs run on this thread.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use wakeloop::runtime::{spawn, testing};
///
/// fn order(seed: u64) -> Vec<u32> {
///     testing::run(seed, async {
///         let order = Arc::new(Mutex::new(Vec::new()));
///         let append = |n| {
///             let order = order.clone();
///             spawn(async move { order.lock().unwrap().push(n) })
///         };
///         for task in [1, 2, 3].map(append) {
///             task.await.unwrap();
///         }
///         Arc::into_inner(order).unwrap().into_inner().unwrap()
///     })
/// }
///
/// assert_eq!(order(5), order(5));
/// assert!((0..20).any(|seed| order(seed) != order(5)));
/// ```
///
/// # Panics
/// If the future panics, if it deadlocks, and if the process has no descriptor left.
pub fn run<F: Future>(seed: u64, future: F) -> F::Output {
    run_digested(seed, future).0
}

/// Returns a digest of the run's steps, too.
fn run_digested<F: Future>(seed: u64, future: F) -> (F::Output, u64) {
    let runtime = Builder::new().seed(seed).build().expect("a runtime needs descriptors");
    let output = runtime.block_on(future);
    let digest = runtime.enter(|| with(|simulation| simulation.digest()));
    (output, digest)
}

/// Calls `test` and runs its future as [`run`] does, once for each seed. The first failure ends it: the panic is passed
/// on, and stderr has the seed.
///
/// If the environment variable `WAKELOOP_SEED` has a seed, it runs that one alone, to repeat a failure.
///
/// # Panics
/// As [`run`], and if the environment variable is not a number.
pub fn explore<F: Future>(seeds: impl IntoIterator<Item = u64>, mut test: impl FnMut() -> F) {
    let mut run = |seed| drop(run(seed, async { test().await }));
    match settings::SEED.number() {
        Ok(Some(seed)) => run(seed),
        Ok(None) => seeds.into_iter().for_each(run),
        Err(wrong) => panic!("{wrong}"),
    }
}

/// Runs the same program twice with the same seed, and compares the steps of the two runs.
///
/// # Panics
/// As [`run`], and if the runs differ.
pub fn assert_deterministic<F: Future>(seed: u64, mut test: impl FnMut() -> F) {
    let mut digest = || run_digested(seed, async { drop(test().await) }).1;
    assert_eq!(
        digest(),
        digest(),
        "two runs with the seed {seed} differ: the program depends on something that the seed does not control"
    );
}

/// Stops the clock of the current runtime: from now on it moves only as the [module](self) describes.
///
/// # Panics
/// If the clock is paused already, and outside a runtime of this module.
pub fn pause() {
    with(|simulation| simulation.clock.pause()).expect("the clock is paused already");
}

/// Lets the clock of the current runtime run, from where it stands, as the system's clock does.
///
/// # Panics
/// If the clock is not paused, and outside a runtime of this module.
pub fn resume() {
    with(|simulation| simulation.clock.resume()).expect("the clock is not paused");
}

/// Moves the paused clock of the current runtime by `duration`, at once. Timers that are due by then fire, and this
/// returns when everything waits again.
///
/// It is as if the program had stood still for so long: an interval misses its ticks. To let everything happen in
/// its own time, [`sleep`](super::time::sleep) instead.
///
/// ```
/// use std::time::Duration;
/// use wakeloop::runtime::{spawn, testing, time};
///
/// testing::run(1, async {
///     let sleeper = spawn(time::sleep(Duration::from_secs(5)));
///     testing::advance(Duration::from_secs(4)).await;
///     assert!(!sleeper.is_finished());
///     testing::advance(Duration::from_secs(1)).await;
///     assert!(sleeper.is_finished());
/// });
/// ```
///
/// # Panics
/// If the clock is not paused, and outside a runtime of this module.
pub async fn advance(duration: Duration) {
    // A sleep that was made but not polled yet is armed first.
    settle().await;
    with(|simulation| simulation.clock.advance(duration)).expect("only a paused clock can be advanced");
    settle().await;
}

/// Waits until every other task waits.
async fn settle() {
    let mut since = None;
    poll_fn(|cx| with(|simulation| simulation.poll_settled(&mut since, cx))).await;
}

/// Keeps the paused clock of the current runtime from moving, and the runtime from reporting a deadlock, until the
/// returned value is dropped. It stands for work that the runtime does not know, such as a thread of the program that
/// will wake a task.
///
/// ```
/// use std::thread;
/// use wakeloop::runtime::{sync::oneshot, testing};
///
/// testing::run(1, async {
///     let (sender, receiver) = oneshot::channel();
///     let hold = testing::hold();
///     thread::spawn(move || {
///         let _ = sender.send(7);
///         drop(hold);
///     });
///     assert_eq!(receiver.await, Ok(7));
/// });
/// ```
///
/// # Panics
/// Outside a runtime of this module.
#[must_use = "time moves as soon as the hold is dropped"]
pub fn hold() -> Hold {
    with(|simulation| simulation.hold());
    Hold { shared: context::with(Arc::clone) }
}

/// Keeps a clock from moving: see [`hold`].
pub struct Hold {
    shared: Arc<Shared>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(simulation) = self.shared.simulation() {
            simulation.release();
        }
        self.shared.end_simulated_wait();
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}

/// Calls `f` with the control of the current thread's runtime.
fn with<R>(f: impl FnOnce(&Simulation) -> R) -> R {
    let result = context::try_with(|shared| shared.simulation().map(f)).flatten();
    result.expect(
        "this needs a runtime of wakeloop::runtime::testing: call it inside its block_on or in its tasks",
    )
}
