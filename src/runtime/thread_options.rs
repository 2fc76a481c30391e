//! The options of a runtime's threads, and how one starts.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use super::shim::thread::{self, JoinHandle};

type Hook = Arc<dyn Fn() + Send + Sync>;

/// The options of a runtime's threads.
#[derive(Clone, Default)]
pub(super) struct ThreadOptions {
    pub(super) name: Option<String>,
    pub(super) on_start: Option<Hook>,
    pub(super) on_stop: Option<Hook>,
}

impl ThreadOptions {
    /// Starts a thread that blocks all signals: in a process with Python, signals are for the main thread. The
    /// thread first calls `arrive`, then the start hook, then `work` with the value of `arrive`, then the stop
    /// hook. The value is dropped if the start hook panics; what `work` returns is dropped after the stop hook.
    pub(super) fn spawn<A, L>(
        &self,
        name: &str,
        arrive: impl FnOnce() -> A + Send + 'static,
        work: impl FnOnce(A) -> L + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let name = format!("{}-{name}", self.name.as_deref().unwrap_or("wakeloop"));
        let (on_start, on_stop) = (self.on_start.clone(), self.on_stop.clone());
        // A thread inherits its creator's signal mask, so no signal can arrive before the new thread blocks
        // them.
        let _blocked = SignalsBlocked::new();
        thread::Builder::new().name(name).spawn(move || {
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

/// Blocks all signals on this thread, and restores the mask when dropped.
#[derive(Debug)]
pub(crate) struct SignalsBlocked {
    before: Option<libc::sigset_t>,
}

impl SignalsBlocked {
    pub(crate) fn new() -> SignalsBlocked {
        if cfg!(miri) {
            // Miri has no signals, and would stop here.
            return SignalsBlocked { before: None };
        }
        let mut all = MaybeUninit::uninit();
        let mut before = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set that it is given. `pthread_sigmask` reads that set and
        // writes the other one, which is used only if the call succeeded.
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
            // SAFETY: the mask came from the system. A null pointer says that the mask in force until now is
            // not wanted.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, ptr::null_mut()) };
        }
    }
}
