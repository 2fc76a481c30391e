//! Builds a runtime that a test controls.

use std::io;
use std::sync::Arc;

use super::super::builder;
use super::super::handle::Runtime;
use super::super::trace::Tracer;
use super::simulation::{Settings, Simulation};

/// Configures a current-thread [`Runtime`] whose clock and order a test controls. It is used like any other: see
/// [`Runtime::block_on`].
///
/// ```
/// use std::time::Duration;
/// use wakeloop::runtime::{testing, time};
///
/// let rt = testing::Builder::new().build()?;
/// rt.block_on(async {
///     let start = time::now();
///     time::sleep(Duration::from_secs(600)).await;
///     assert_eq!(time::now() - start, Duration::from_secs(600));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Builder {
    seed: Option<u64>,
    paused: bool,
    inline_blocking: Option<bool>,
    jumps_over_outside: bool,
    tracer: Option<Arc<dyn Tracer>>,
}

impl Builder {
    /// Configures a runtime whose clock is paused. Tasks run in the order in which they were woken, and blocking jobs
    /// on threads.
    pub fn new() -> Builder {
        Builder { seed: None, paused: true, inline_blocking: None, jumps_over_outside: false, tracer: None }
    }

    /// Draws the order of everything from this seed, and prints the seed when `block_on` panics.
    pub fn seed(mut self, seed: u64) -> Builder {
        self.seed = Some(seed);
        self
    }

    /// Sets whether the clock is paused at first, as it is by default. See [`pause`](super::pause).
    pub fn start_paused(mut self, paused: bool) -> Builder {
        self.paused = paused;
        self
    }

    /// Sets whether blocking jobs run on the thread in `block_on`, one at a time between the polls of tasks. So the
    /// same seed leads to the same run. The default is to do so if there is a seed.
    ///
    /// Such a job must not wait for a task or for another job: nothing else runs meanwhile.
    pub fn inline_blocking(mut self, inline: bool) -> Builder {
        self.inline_blocking = Some(inline);
        self
    }

    /// Sets whether time jumps also while something real is awaited: a socket, a blocking job on a thread, or what a
    /// [`Hold`](super::Hold) stands for. The default is that it does not.
    ///
    /// With Unix sockets between tasks of the same runtime it may: what one has sent, the other finds before time jumps.
    /// The system may take a moment longer to deliver what was sent over TCP or UDP.
    pub fn jump_over_real_work(mut self, jump: bool) -> Builder {
        self.jumps_over_outside = jump;
        self
    }

    /// Reports each scheduling event to `tracer`.
    pub fn tracer(mut self, tracer: Arc<dyn Tracer>) -> Builder {
        self.tracer = Some(tracer);
        self
    }

    /// Creates the runtime.
    ///
    /// # Errors
    /// The system's error if it has no descriptor left.
    pub fn build(self) -> io::Result<Runtime> {
        let runs_jobs = self.inline_blocking.unwrap_or(self.seed.is_some());
        let settings = Settings {
            seed: self.seed,
            paused: self.paused,
            runs_jobs,
            jumps_over_outside: self.jumps_over_outside,
        };
        let mut builder = builder::Builder::new_current_thread();
        if let Some(tracer) = self.tracer {
            builder = builder.tracer(tracer);
        }
        builder.build_simulated(Simulation::new(settings))
    }
}

impl Default for Builder {
    fn default() -> Builder {
        Builder::new()
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("seed", &self.seed)
            .field("paused", &self.paused)
            .field("inline_blocking", &self.inline_blocking)
            .field("jump_over_real_work", &self.jumps_over_outside)
            .finish_non_exhaustive()
    }
}
