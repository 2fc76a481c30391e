//! Waiting for other tasks: channels, a notification, permits.
//!
//! Nothing here needs a runtime: both ends may be on any thread or executor.

pub mod mpsc;
mod notify;
pub mod oneshot;
mod semaphore;
mod wait_list;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
mod model;

pub use notify::{Notified, Notify};
pub use semaphore::{Acquire, Permit, Semaphore};
