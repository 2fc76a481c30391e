//! The process's runtime. It starts on first use, so a program that uses only asyncio has no extra threads.

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;

use crate::fork::Owned;
use crate::runtime::{Builder, Handle, NoThread, Runtime};
use crate::settings;

struct State {
    /// A forked child has the memory of its parent's runtime, but not the threads, one of which may have held a lock of
    /// it at the fork.
    started: Option<Owned<Handle>>,
    workers: Option<usize>,
}

impl State {
    /// The handle, if the runtime was started in this process.
    fn handle(&self) -> Option<&Handle> {
        self.started.as_ref()?.get()
    }
}

static STATE: Mutex<State> = Mutex::new(State { started: None, workers: None });

fn state() -> std::sync::MutexGuard<'static, State> {
    // The lock may be poisoned: the code under it changes the state last.
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

thread_local! {
    /// The handle, cached per thread.
    static KNOWN: RefCell<Option<Owned<Handle>>> = const { RefCell::new(None) };
}

/// The runtime's handle. Starts the runtime on first use, and again in a forked child.
///
/// # Errors
/// When threads or descriptors run out, and for an environment variable that means nothing.
pub(crate) fn handle() -> io::Result<Handle> {
    if let Some(handle) = KNOWN.with_borrow(|known| known.as_ref()?.get().cloned()) {
        return Ok(handle);
    }
    let handle = start()?;
    KNOWN.set(Some(Owned::new(handle.clone())));
    Ok(handle)
}

fn start() -> io::Result<Handle> {
    let mut state = state();
    if let Some(handle) = state.handle() {
        return Ok(handle.clone());
    }
    settings::check()?;
    let mut builder = Builder::new();
    if let Some(workers) = state.workers {
        builder = builder.worker_threads(workers);
    }
    let runtime = builder.thread_name("wakeloop").build().map_err(|error| match error.kind() {
        // Only starting a thread fails with this kind.
        io::ErrorKind::WouldBlock => NoThread.into(),
        _ => error,
    })?;
    let handle = runtime.handle();
    handle.open_driver()?;
    // The runtime is never dropped: joining its threads at exit could wait for a peer that never sends.
    std::mem::forget::<Runtime>(runtime);
    state.started = Some(Owned::new(handle.clone()));
    Ok(handle)
}

/// The handle, if the runtime was started in this process.
pub(crate) fn started() -> Option<Handle> {
    state().handle().cloned()
}

/// Sets the number of workers with which the runtime will start. Returns false if it has started already.
pub(crate) fn configure(workers: usize) -> bool {
    let mut state = state();
    if state.handle().is_some() {
        return false;
    }
    state.workers = Some(workers);
    true
}
