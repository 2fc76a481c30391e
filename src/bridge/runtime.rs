//! The process's runtime. It starts on first use, so a program that uses only asyncio has no extra threads.

use std::cell::RefCell;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard};

use crate::fork::Owned;
use crate::poison::unpoisoned;
use crate::runtime::{Builder, Handle, NoThread, Runtime};
use crate::settings;

/// The handle of the last runtime that was started, which stays; null if none was. A forked child has the memory of its
/// parent's runtime, but not the threads, one of which may have held a lock of it at the fork. It is no lock itself, so
/// that a thread which needs no GIL may look at any time.
static STARTED: AtomicPtr<Owned<Handle>> = AtomicPtr::new(null_mut());

/// The number of workers with which the runtime will start. Locked while it starts.
static WORKERS: Mutex<Option<usize>> = Mutex::new(None);

fn workers() -> MutexGuard<'static, Option<usize>> {
    // The lock may be poisoned: the code under it changes the state last.
    unpoisoned(WORKERS.lock())
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
    let workers = workers();
    if let Some(handle) = started() {
        return Ok(handle);
    }
    settings::check()?;
    let mut builder = Builder::new();
    if let Some(workers) = *workers {
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
    // Ordering: Release pairs with the Acquire in `started`.
    STARTED.store(Box::into_raw(Box::new(Owned::new(handle.clone()))), Release);
    Ok(handle)
}

/// The handle, if the runtime was started in this process.
pub(crate) fn started() -> Option<Handle> {
    // Ordering: Acquire pairs with the Release in `start`.
    // SAFETY: null, or stored by `start`, which leaks it.
    unsafe { STARTED.load(Acquire).as_ref() }?.get().cloned()
}

/// Sets the number of workers with which the runtime will start. Returns false if it has started already.
pub(crate) fn configure(wanted: usize) -> bool {
    let mut workers = workers();
    if started().is_some() {
        return false;
    }
    *workers = Some(wanted);
    true
}
