//! The process's runtime, made when something first needs it: a plain asyncio program starts no thread.

use std::cell::RefCell;
use std::io;
use std::sync::Mutex;

use crate::event_loop::core::process::forks;
use crate::runtime::{Builder, Handle, NoThread, Runtime};

struct Started {
    handle: Handle,
    /// In which process it was started: a forked child has the memory but not the threads.
    forks: u32,
}

struct State {
    started: Option<Started>,
    workers: Option<usize>,
}

static STATE: Mutex<State> = Mutex::new(State { started: None, workers: None });

fn state() -> std::sync::MutexGuard<'static, State> {
    // A panic under this lock can only come from a failed thread start, which leaves the state whole.
    STATE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

thread_local! {
    /// The handle, for threads that have asked before.
    static KNOWN: RefCell<Option<(u32, Handle)>> = const { RefCell::new(None) };
}

/// The runtime's handle; starts it on first use, and anew in a forked child.
///
/// # Errors
/// When threads or descriptors run out.
pub(crate) fn handle() -> io::Result<Handle> {
    let forks = forks();
    let known = KNOWN.with_borrow(|known| known.clone());
    if let Some((_, handle)) = known.filter(|(number, _)| *number == forks) {
        return Ok(handle);
    }
    let handle = start(forks)?;
    let stale = KNOWN.replace(Some((forks, handle.clone())));
    // A parent's handle must not be dropped: its threads are not here.
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
    let mut builder = Builder::new();
    if let Some(workers) = state.workers {
        builder = builder.worker_threads(workers);
    }
    let runtime = builder.thread_name("wakeloop").build().map_err(|error| match error.kind() {
        // Only the start of a thread fails like this.
        io::ErrorKind::WouldBlock => NoThread.into(),
        _ => error,
    })?;
    let handle = runtime.handle();
    handle.open_driver()?;
    // It lives until the process ends: joining its threads at exit could wait for a peer that never sends.
    std::mem::forget::<Runtime>(runtime);
    // The parent's handle, if this is a child, must not be dropped either: its threads are not here.
    std::mem::forget(state.started.replace(Started { handle: handle.clone(), forks }));
    Ok(handle)
}

/// The handle, if the runtime was started in this process.
pub(crate) fn started() -> Option<Handle> {
    let state = state();
    state.started.as_ref().filter(|started| started.forks == forks()).map(|it| it.handle.clone())
}

/// Sets the number of workers for when the runtime starts. False if it runs already.
pub(crate) fn configure(workers: usize) -> bool {
    let mut state = state();
    if state.started.as_ref().is_some_and(|started| started.forks == forks()) {
        return false;
    }
    state.workers = Some(workers);
    true
}
