//! Atomics, locks, cells and threads: the standard library's, or loom's under `--cfg wakeloop_loom`.
//!
//! Loom runs a test in every order that the memory model allows, as far as the test goes through these types. What
//! is taken from the standard library directly is invisible to it: `Arc`, and what a `SpinLock` guards.

cfg_select! {
    wakeloop_loom => {
        pub(super) use loom::cell::UnsafeCell;
        pub(super) use loom::hint;
        pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
        pub(super) use loom::sync::{Condvar, Mutex, MutexGuard};

        pub(super) mod thread {
            pub(in super::super) use loom::thread::{Builder, JoinHandle, Thread, current, park, yield_now};

            /// Time does not pass in a model.
            pub(in super::super) fn sleep(_: std::time::Duration) {
                yield_now();
            }
        }
    }
    _ => {
        pub(super) use std::hint;
        pub(super) use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, fence};
        pub(super) use std::sync::{Condvar, Mutex, MutexGuard};

        pub(super) mod thread {
            pub(in super::super) use std::thread::{Builder, JoinHandle, Thread, current, park, sleep, yield_now};
        }

        /// As the standard library's, with the methods of loom's: an access has a beginning and an end.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

        impl<T> UnsafeCell<T> {
            pub(super) const fn new(value: T) -> UnsafeCell<T> {
                UnsafeCell(std::cell::UnsafeCell::new(value))
            }

            /// For reading: others may read at the same time.
            #[inline(always)]
            pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
                f(self.0.get())
            }

            /// For writing, or reading by its only user.
            #[inline(always)]
            pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
                f(self.0.get())
            }
        }
    }
}
