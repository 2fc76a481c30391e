//! Synchronisation between tasks: channels, a notification, a semaphore, a mutex.
//!
//! Nothing here needs a runtime: both ends may be on any thread or executor.

pub mod mpsc;
mod mutex;
mod notify;
pub mod oneshot;
mod semaphore;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/sync/channels.rs"]
mod model;

pub use mutex::{Mutex, MutexGuard, OwnedMutexGuard};
pub use notify::{Notified, Notify};
pub use semaphore::{Acquire, OwnedPermit, Permit, Semaphore};
