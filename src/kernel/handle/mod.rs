//! Handle, TimerHandle and ThreadSafeHandle: what `call_soon`, `call_later` and `call_soon_threadsafe` return.
//!
//! [`layout`] has the fields, [`run`] runs the callback, [`run_lock`] is the lock of a ThreadSafeHandle, and
//! [`methods`] has the Python types.

pub(crate) mod layout;
pub(crate) mod methods;
pub(crate) mod run;
mod run_lock;
