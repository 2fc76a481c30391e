//! The part of a file that threads of the pool use.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use super::buffered::Buffered;
use super::turn::Turn;
use crate::capi::threads::released;
use crate::fork::Owner;
use crate::poison::unpoisoned;

/// The part of a file that threads of the pool use.
#[derive(Debug)]
pub(super) struct SharedFile {
    pub(super) fd: RawFd,
    pub(super) regular: bool,
    /// Locked by the one whose turn it is, so nobody waits for the lock. Reads at an offset share a turn, but do not
    /// hold the lock while they wait.
    state: Mutex<Buffered>,
    /// The turn of the operations. A wake-up that its loop does not hear passes it on, also when the file is gone.
    pub(super) turn: Arc<Turn>,
    /// `close` has had its turn. Relaxed: the turn orders the operations.
    pub(super) closed: AtomicBool,
    /// A ResourceWarning about the file was issued. Relaxed: written by the thread that frees the file.
    pub(super) warned: AtomicBool,
    /// The process that uses the file.
    pub(super) owner: Owner,
}

impl SharedFile {
    pub(super) fn new(fd: RawFd, regular: bool, capacity: usize) -> SharedFile {
        SharedFile {
            fd,
            regular,
            state: Mutex::new(Buffered::new(fd, regular, capacity)),
            turn: Arc::default(),
            warned: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            owner: Owner::this_process(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Buffered> {
        // The lock may be poisoned: a read or write that panics leaves a buffer that can be used.
        unpoisoned(self.state.lock())
    }

    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, Buffered>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Writes what was kept, as io does for a file that nobody has closed: without the GIL, and it does not wait for
    /// room in a non-blocking descriptor. A signal may have ended a wait, so `goes_on` is asked before the next one.
    pub(super) fn finish(&mut self, goes_on: impl Fn() -> bool) -> io::Result<()> {
        let is_closed = std::mem::replace(self.closed.get_mut(), true);
        let state = unpoisoned(self.state.get_mut());
        while !is_closed && state.is_dirty() {
            match released(|| state.flush_some()) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ if goes_on() => {}
                _ => return Err(io::ErrorKind::Interrupted.into()),
            }
        }
        Ok(())
    }
}

/// The last one that has the file is a job, if the file itself was freed before.
impl Drop for SharedFile {
    fn drop(&mut self) {
        // There is nobody to report an error to.
        let _ = self.finish(|| true);
    }
}
