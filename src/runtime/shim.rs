//! Atomics, locks, cells and threads, from the standard library or from a model checker.
//!
//! - Under `--cfg wakeloop_loom`, loom runs a test in every order that the memory model allows, as far as the
//!   test uses these types.
//! - Under `--cfg wakeloop_shuttle`, shuttle runs it thousands of times in random orders. It does not model
//!   weak memory, but it can run tests of any size, such as a whole runtime.
//!
//! Neither sees what comes from the standard library directly: `Arc`, and what a `SpinLock` guards.

use crate::spin::Setting;

cfg_select! {
    wakeloop_loom => {
        pub(super) use loom::hint;
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
        pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

        pub(super) mod thread {
            pub(in super::super) use loom::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

            /// Does nothing: time does not pass in a model.
            pub(in super::super) fn sleep(_: std::time::Duration) {
                yield_now();
            }

            pub(in super::super) fn park_timeout(_: std::time::Duration) {
                yield_now();
            }
        }
    }
    wakeloop_shuttle => {
        pub(super) use shuttle::hint;
        pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
        pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};

        pub(super) mod thread {
            pub(in super::super) use shuttle::thread::{Builder, JoinHandle, Thread, current, park, sleep, yield_now};

            pub(in super::super) fn park_timeout(_: std::time::Duration) {
                yield_now();
            }
        }
    }
    _ => {
        pub(super) use std::hint;
        pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
        pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

        pub(super) mod thread {
            pub(in super::super) use std::thread::{
                Builder, JoinHandle, Thread, current, park, park_timeout, sleep, yield_now,
            };
        }
    }
}

cfg_select! {
    wakeloop_loom => {
        pub(super) use loom::cell::UnsafeCell;
    }
    _ => {
        /// A cell of the standard library with loom's methods, where an access has a beginning and an end.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

        impl<T> UnsafeCell<T> {
            pub(super) const fn new(value: T) -> UnsafeCell<T> {
                UnsafeCell(std::cell::UnsafeCell::new(value))
            }

            /// Gives read access. Others may read at the same time.
            #[inline(always)]
            pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
                f(self.0.get())
            }

            /// Gives write access. The caller must be the only user.
            #[inline(always)]
            pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
                f(self.0.get())
            }
        }
    }
}

cfg_select! {
    any(wakeloop_loom, wakeloop_shuttle) => {
        cfg_select! {
            wakeloop_loom => {
                pub(super) use loom::thread::LocalKey;
                pub(super) use loom::thread_local as model_thread_local;
            }
            _ => {
                pub(super) use shuttle::thread::LocalKey;
                pub(super) use shuttle::thread_local as model_thread_local;
            }
        }

        /// A `Cell` per thread. To the system, all threads of a model are one thread.
        macro_rules! thread_cell {
            ($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;) => {
                #[allow(unused_imports)]
                use $crate::runtime::shim::CellKey as _;
                $crate::runtime::shim::model_thread_local! {
                    $(#[$attribute])*
                    static $name: std::cell::Cell<$type> = std::cell::Cell::new($init);
                }
            };
        }

        /// The methods of the standard library's `LocalKey<Cell<T>>`.
        pub(super) trait CellKey<T: 'static> {
            fn set(&'static self, value: T);
            fn replace(&'static self, value: T) -> T;
            fn get(&'static self) -> T where T: Copy;
        }

        impl<T: 'static> CellKey<T> for LocalKey<std::cell::Cell<T>> {
            fn set(&'static self, value: T) {
                self.with(|cell| cell.set(value));
            }

            fn replace(&'static self, value: T) -> T {
                self.with(|cell| cell.replace(value))
            }

            fn get(&'static self) -> T where T: Copy {
                self.with(std::cell::Cell::get)
            }
        }
    }
    _ => {
        /// A `Cell` per thread.
        macro_rules! thread_cell {
            ($(#[$attribute:meta])* static $name:ident: $type:ty = $init:expr;) => {
                std::thread_local! {
                    $(#[$attribute])*
                    static $name: std::cell::Cell<$type> = const { std::cell::Cell::new($init) };
                }
            };
        }
    }
}

cfg_select! {
    wakeloop_shuttle => {
        /// Returns how long to wait in the system: not at all, because a wait would hold up all threads of the
        /// model.
        pub(super) fn system_wait(_: crate::reactor::Wait) -> crate::reactor::Wait {
            thread::yield_now();
            crate::reactor::Wait::Not
        }
    }
    _ => {
        /// Returns how long to wait in the system.
        #[inline(always)]
        pub(super) fn system_wait(wait: crate::reactor::Wait) -> crate::reactor::Wait {
            wait
        }
    }
}

/// Returns whether threads spin before they sleep. Those of a model never do.
pub(super) fn spin_setting() -> Setting {
    if cfg!(any(wakeloop_loom, wakeloop_shuttle)) {
        return Setting::Off;
    }
    // The builder has refused a wrong value.
    Setting::from_environment().unwrap_or_default()
}

pub(super) use thread_cell;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../tests/models/shim.rs"]
pub(super) mod model;
