//! Blocking jobs of the current runtime.

use std::sync::Arc;

use super::super::executor::Shared;
use super::super::task::JoinHandle;
use super::super::{context, entered};
use super::pool::{Job, Surroundings};

/// Runs `f` on a thread where blocking is allowed, on the pool of the current runtime.
///
/// Jobs beyond the pool's cap wait in a queue. On a runtime that was shut down the job is cancelled.
///
/// # Panics
/// If the thread belongs to no runtime.
pub fn spawn_blocking<F, T>(f: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    context::with(|shared| shared.pool.run(Job(Some(f)), shared))
}

impl Surroundings for Arc<Shared> {
    fn enter(&self, body: impl FnOnce()) {
        let _entered = entered::enter(self);
        body();
    }

    fn job_waits(&self) {
        self.end_simulated_wait();
    }
}
