//! The process's runtime, made when something first needs it: a plain asyncio program starts no thread.

use std::io;
use std::sync::Mutex;

use crate::runtime::{Builder, Handle, Runtime};

struct Started {
    handle: Handle,
    /// The process that started it: a forked child has the memory but not the threads.
    process: u32,
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

/// The runtime's handle; starts it on first use, and anew in a forked child.
///
/// # Errors
/// When threads or descriptors run out.
pub(crate) fn handle() -> io::Result<Handle> {
    let mut state = state();
    let process = std::process::id();
    if let Some(started) = &state.started
        && started.process == process
    {
        return Ok(started.handle.clone());
    }
    let mut builder = Builder::new();
    if let Some(workers) = state.workers {
        builder = builder.worker_threads(workers);
    }
    let runtime = builder.thread_name("wakeloop").build()?;
    let handle = runtime.handle();
    // It lives until the process ends: joining its threads at exit could wait for a peer that never sends.
    std::mem::forget::<Runtime>(runtime);
    // The parent's handle, if this is a child, must not be dropped either: its threads are not here.
    std::mem::forget(state.started.replace(Started { handle: handle.clone(), process }));
    Ok(handle)
}

/// The handle, if the runtime was started in this process.
pub(crate) fn started() -> Option<Handle> {
    let state = state();
    state.started.as_ref().filter(|started| started.process == std::process::id()).map(|it| it.handle.clone())
}

/// Sets the number of workers for when the runtime starts. False if it runs already.
pub(crate) fn configure(workers: usize) -> bool {
    let mut state = state();
    if state.started.as_ref().is_some_and(|started| started.process == std::process::id()) {
        return false;
    }
    state.workers = Some(workers);
    true
}
