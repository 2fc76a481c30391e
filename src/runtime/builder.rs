//! Builds a runtime.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock, Weak};
use std::thread::available_parallelism;
use std::time::Duration;

use super::blocking::Pool;
use super::clock;
use super::executor::{CurrentThread, Options, Shared, Worker};
use super::handle::Runtime;
use super::testing::Simulation;
use super::thread_options::ThreadOptions;
use super::trace::Tracer;
use crate::settings::{self, MAX_WORKERS};
use crate::spin::Setting;

/// Enough for a burst of `getaddrinfo` and file reads; a bound, not a target.
const BLOCKING_CAP: usize = 512;
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Configures a [`Runtime`].
///
/// The runtime's threads block all signals. They start when there is work for them; the first worker starts in
/// [`Builder::build`]. A thread inherits the CPU affinity and the nice value of whichever thread starts it. A
/// program that pins or slows down some of its threads should set both in [`Builder::on_thread_start`].
///
/// ```
/// use wakeloop::runtime::Builder;
///
/// let rt = Builder::new().worker_threads(1).thread_name("io").build()?;
/// assert_eq!(rt.block_on(async { 1 + 1 }), 2);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    workers: Option<usize>,
    current_thread: bool,
    threads: ThreadOptions,
    blocking_cap: usize,
    blocking_keep_alive: Duration,
    tracer: Option<Arc<dyn Tracer>>,
}

impl Builder {
    /// Configures a multi-threaded runtime with one worker per core.
    pub fn new() -> Builder {
        Builder {
            workers: None,
            current_thread: false,
            threads: ThreadOptions::default(),
            blocking_cap: BLOCKING_CAP,
            blocking_keep_alive: BLOCKING_KEEP_ALIVE,
            tracer: None,
        }
    }

    /// Configures a runtime without worker threads. Tasks run on a thread that is in `block_on`, while it is
    /// there.
    pub fn new_current_thread() -> Builder {
        Builder { current_thread: true, ..Builder::new() }
    }

    /// Sets the maximum number of workers, between 1 and 1024. The default is the environment variable
    /// `WAKELOOP_WORKERS`, or else the number of cores that this process may use.
    pub fn worker_threads(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// Sets the prefix of thread names, "wakeloop" by default. A number or the word "blocking" is added.
    pub fn thread_name(mut self, name: impl Into<String>) -> Builder {
        self.threads.name = Some(name.into());
        self
    }

    /// Sets a function that each thread of the runtime calls first. If it panics on a worker, the runtime ends
    /// and its tasks are cancelled.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.threads.on_start = Some(Arc::new(hook));
        self
    }

    /// Sets a function that each thread of the runtime calls last.
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.threads.on_stop = Some(Arc::new(hook));
        self
    }

    /// Sets how many threads may run blocking jobs at a time; at least 1.
    pub fn max_blocking_threads(mut self, threads: usize) -> Builder {
        self.blocking_cap = threads.max(1);
        self
    }

    /// Sets how long a thread of the blocking pool waits for another job before it ends.
    pub fn blocking_keep_alive(mut self, time: Duration) -> Builder {
        self.blocking_keep_alive = time;
        self
    }

    /// Reports each scheduling event to `tracer`.
    pub fn tracer(mut self, tracer: Arc<dyn Tracer>) -> Builder {
        self.tracer = Some(tracer);
        self
    }

    /// Creates the runtime and starts its first worker. Further workers start when there is work for them, the
    /// second at the latest with the first timer or socket, which also opens the driver's descriptors.
    ///
    /// # Errors
    /// `InvalidInput` for a number of workers out of range, for a NUL in the threads' name, and for a value of
    /// `WAKELOOP_WORKERS` or `WAKELOOP_SPIN` that means nothing. Otherwise the system's error if it has no thread left
    /// or, for a current-thread runtime, no descriptor.
    pub fn build(self) -> io::Result<Runtime> {
        self.build_with(None)
    }

    /// Creates a current-thread runtime that a test controls.
    pub(super) fn build_simulated(mut self, simulation: Simulation) -> io::Result<Runtime> {
        if simulation.runs_jobs() {
            self.blocking_cap = 0;
        }
        // The simulation asks for threads that have not left. So each leaves after its job, and says so.
        self.blocking_keep_alive = Duration::ZERO;
        let left: Arc<OnceLock<Weak<Shared>>> = Arc::default();
        let made = left.clone();
        self.threads.on_stop = Some(Arc::new(move || {
            if let Some(shared) = left.get().and_then(Weak::upgrade) {
                shared.end_simulated_wait();
            }
        }));
        clock::expect_simulations();
        let runtime = self.build_with(Some(simulation))?;
        made.get_or_init(|| runtime.downgrade());
        Ok(runtime)
    }

    fn build_with(self, simulation: Option<Simulation>) -> io::Result<Runtime> {
        // A wrong value of a variable is an error also where it would not count.
        Setting::from_environment()?;
        let wanted = settings::WORKERS.number()?;
        let workers = match (self.current_thread, self.workers) {
            (true, _) => 1,
            (false, Some(workers)) => workers,
            (false, None) => wanted.map_or_else(default_workers, |wanted| wanted as usize),
        };
        if self.threads.name.as_ref().is_some_and(|name| name.contains('\0')) {
            return Err(invalid("a thread name must not contain NUL".to_owned()));
        }
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(invalid(format!(
                "the number of workers must be between 1 and {MAX_WORKERS}, not {workers}"
            )));
        }
        let pool = Pool::new(self.blocking_cap, self.blocking_keep_alive, self.threads.clone());
        let shared = Shared::new(Options {
            workers,
            tracer: self.tracer,
            pool,
            threads: self.threads,
            arrive: Worker::arrive,
            simulation,
        });
        if self.current_thread {
            // Its worker moves between threads, and can only be woken in the driver.
            shared.open_driver()?;
            let current_thread = CurrentThread::create(&shared);
            return Ok(Runtime::new_parts(shared, Some(current_thread)));
        }
        shared.start()?;
        Ok(Runtime::new_parts(shared, None))
    }
}

impl Runtime {
    /// Creates a runtime with a worker per core; see [`Builder`] for more.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new() -> io::Result<Runtime> {
        Builder::new().build()
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("workers", &self.workers)
            .field("current_thread", &self.current_thread)
            .field("thread_name", &self.threads.name)
            .finish_non_exhaustive()
    }
}

fn default_workers() -> usize {
    available_parallelism().map_or(1, usize::from).min(MAX_WORKERS)
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
