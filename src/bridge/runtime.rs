//! The process's runtime. It starts on first use, so a program that uses only asyncio has no extra threads.

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;

use crate::event_loop::core::process::forks;
use crate::runtime::{Builder, Handle, NoThread, Runtime};
use crate::settings;

struct Started {
    handle: Handle,
    /// The fork count when it was started: a forked child has the memory of the runtime, but not its threads.
    forks: u32,
}

struct State {
    started: Option<Started>,
    workers: Option<usize>,
}

static STATE: Mutex<State> = Mutex::new(State { started: None, workers: None });

fn state() -> std::sync::MutexGuard<'static, State> {
    // The lock may be poisoned: the code under it changes the state last.
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

thread_local! {
    /// The handle and its fork count, cached per thread.
    static KNOWN: RefCell<Option<(u32, Handle)>> = const { RefCell::new(None) };
}

/// The runtime's handle. Starts the runtime on first use, and again in a forked child.
///
/// # Errors
/// When threads or descriptors run out, and for an environment variable that means nothing.
pub(crate) fn handle() -> io::Result<Handle> {
    let forks = forks();
    let known = KNOWN.with_borrow(|known| known.clone());
    if let Some((_, handle)) = known.filter(|(number, _)| *number == forks) {
        return Ok(handle);
    }
    let handle = start(forks)?;
    let stale = KNOWN.replace(Some((forks, handle.clone())));
    // In a forked child the parent's handle is leaked: its threads do not exist here, and one of them may have held a
    // lock of the runtime at the fork.
    std::mem::forget(stale);
    Ok(handle)
}

fn start(forks: u32) -> io::Result<Handle> {
    let mut state = state();
    if let Some(started) = &state.started
        && started.forks == forks
    {
        return Ok(started.handle.clone());
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
    // In a forked child this leaks the parent's handle; see `handle`.
    std::mem::forget(state.started.replace(Started { handle: handle.clone(), forks }));
    Ok(handle)
}

/// The handle, if the runtime was started in this process.
pub(crate) fn started() -> Option<Handle> {
    let state = state();
    state.started.as_ref().filter(|started| started.forks == forks()).map(|it| it.handle.clone())
}

/// Sets the number of workers with which the runtime will start. Returns false if it has started already.
pub(crate) fn configure(workers: usize) -> bool {
    let mut state = state();
    if state.started.as_ref().is_some_and(|started| started.forks == forks()) {
        return false;
    }
    state.workers = Some(workers);
    true
}
