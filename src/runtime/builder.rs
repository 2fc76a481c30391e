//! Making a runtime.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use super::blocking::Pool;
use super::executor::{Options, Shared};
use super::handle::Runtime;
use super::shim::thread::{self, JoinHandle};
use super::trace::Tracer;

/// More workers than this do not fit the idle word, nor any machine.
const MAX_WORKERS: usize = 1024;
/// Enough for a burst of `getaddrinfo` and file reads; a bound, not a target.
const BLOCKING_CAP: usize = 512;
const BLOCKING_KEEP_ALIVE: Duration = Duration::from_secs(10);

type Hook = Arc<dyn Fn() + Send + Sync>;

/// Configures a [`Runtime`].
///
/// Its threads block all signals. They start when there is work for them, the first worker in [`Builder::build`]; a
/// thread begins with the CPU affinity and the nice value of the thread that happened to start it, as the system has it.
/// A program that pins or slows down some of its threads sets those of the runtime in [`Builder::on_thread_start`].
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

/// How threads of a runtime are started.
#[derive(Clone, Default)]
pub(super) struct ThreadOptions {
    name: Option<String>,
    stack_size: Option<usize>,
    on_start: Option<Hook>,
    on_stop: Option<Hook>,
}

impl Builder {
    /// A multi-threaded runtime with a worker per core.
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

    /// A runtime without worker threads: tasks run while some thread is in `block_on`, on that thread.
    pub fn new_current_thread() -> Builder {
        Builder { current_thread: true, ..Builder::new() }
    }

    /// How many workers at most, between 1 and 1024. Without it, the environment variable `WAKELOOP_WORKERS` decides, else
    /// the number of cores this process may use.
    pub fn worker_threads(mut self, workers: usize) -> Builder {
        self.workers = Some(workers);
        self
    }

    /// What threads are called; a number or the word "blocking" is added. "wakeloop" by default.
    pub fn thread_name(mut self, name: impl Into<String>) -> Builder {
        self.threads.name = Some(name.into());
        self
    }

    /// The stack of each thread, in bytes. By default what Rust gives a thread: 2 MiB.
    pub fn thread_stack_size(mut self, bytes: usize) -> Builder {
        self.threads.stack_size = Some(bytes);
        self
    }

    /// Called on each thread of the runtime before it does anything else. Where it panics on a worker, the runtime ends:
    /// its tasks are cancelled.
    pub fn on_thread_start(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.threads.on_start = Some(Arc::new(hook));
        self
    }

    /// Called on each thread of the runtime as the last thing it does.
    pub fn on_thread_stop(mut self, hook: impl Fn() + Send + Sync + 'static) -> Builder {
        self.threads.on_stop = Some(Arc::new(hook));
        self
    }

    /// How many threads may run blocking jobs at a time; at least 1.
    pub fn max_blocking_threads(mut self, threads: usize) -> Builder {
        self.blocking_cap = threads.max(1);
        self
    }

    /// How long a thread of the blocking pool waits for another job before it leaves.
    pub fn blocking_keep_alive(mut self, time: Duration) -> Builder {
        self.blocking_keep_alive = time;
        self
    }

    /// Reports each scheduling event to `tracer`.
    pub fn tracer(mut self, tracer: Arc<dyn Tracer>) -> Builder {
        self.tracer = Some(tracer);
        self
    }

    /// Makes the runtime and starts its first worker. The others start as there is work for them, the second no later
    /// than with the first timer or socket, and what these need of the system is asked for then.
    ///
    /// # Errors
    /// `InvalidInput` for a number of workers out of range, given here or in the environment, and for a NUL in the name
    /// of the threads; else what the system says when it has no thread left, or, for a runtime on the current thread, no descriptor.
    pub fn build(self) -> io::Result<Runtime> {
        let workers = match (self.current_thread, self.workers) {
            (true, _) => 1,
            (false, Some(workers)) => workers,
            (false, None) => default_workers()?,
        };
        if self.threads.name.as_ref().is_some_and(|name| name.contains('\0')) {
            return Err(invalid("the name of a thread has no NUL".to_owned()));
        }
        if !(1..=MAX_WORKERS).contains(&workers) {
            return Err(invalid(format!("a runtime has 1 to {MAX_WORKERS} workers, not {workers}")));
        }
        let pool = Pool::new(self.blocking_cap, self.blocking_keep_alive, self.threads.clone());
        let shared = Shared::new(Options { workers, tracer: self.tracer, pool, threads: self.threads });
        if self.current_thread {
            // Its worker changes threads, and can only be woken in the driver.
            shared.open_driver()?;
            let seat = shared.seat_worker();
            return Ok(Runtime::new_parts(shared, Some(seat)));
        }
        shared.start()?;
        Ok(Runtime::new_parts(shared, None))
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

impl ThreadOptions {
    /// Starts a thread that blocks all signals: in a process with Python, signals are for the main thread. What `arrive`
    /// makes is there before the hooks, and dropped if one panics; `work` is the rest, and what it returns is dropped after
    /// the hooks.
    pub(super) fn spawn<A, L>(
        &self,
        name: &str,
        arrive: impl FnOnce() -> A + Send + 'static,
        work: impl FnOnce(A) -> L + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let mut builder = thread::Builder::new();
        builder = builder.name(format!("{}-{name}", self.name.as_deref().unwrap_or("wakeloop")));
        if let Some(bytes) = self.stack_size {
            builder = builder.stack_size(bytes);
        }
        let (on_start, on_stop) = (self.on_start.clone(), self.on_stop.clone());
        // A thread inherits the mask of its creator: blocked here, no signal can slip in between.
        let _blocked = SignalsBlocked::new();
        builder.spawn(move || {
            let arrived = arrive();
            if let Some(hook) = on_start {
                hook();
            }
            let _last = work(arrived);
            if let Some(hook) = on_stop {
                hook();
            }
        })
    }
}

/// Blocks all signals on this thread, and restores the mask.
struct SignalsBlocked {
    before: Option<libc::sigset_t>,
}

impl SignalsBlocked {
    fn new() -> SignalsBlocked {
        if cfg!(miri) {
            // It has no signals, and would stop at them.
            return SignalsBlocked { before: None };
        }
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set it is given; `pthread_sigmask` reads that and writes the other,
        // which is only used if it succeeded.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            let failed = libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            (failed == 0).then(|| before.assume_init())
        };
        SignalsBlocked { before }
    }
}

impl Drop for SignalsBlocked {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // SAFETY: a mask that the system gave; the old one is not asked for.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}

fn default_workers() -> io::Result<usize> {
    match std::env::var("WAKELOOP_WORKERS") {
        Ok(text) => text
            .trim()
            .parse()
            .map_err(|_| invalid(format!("WAKELOOP_WORKERS must be a number, not {text:?}"))),
        Err(_) => Ok(available_parallelism().map_or(1, usize::from).min(MAX_WORKERS)),
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}
