//! Handle, TimerHandle and ThreadSafeHandle: what `call_soon`, `call_later` and `call_soon_threadsafe` return.
//!
//! [`layout`] says what a handle is, [`run`] how it runs its callback, [`run_lock`] what a ThreadSafeHandle adds, and
//! [`methods`] what Python sees.

pub(crate) mod layout;
pub(crate) mod methods;
pub(crate) mod run;
mod run_lock;
