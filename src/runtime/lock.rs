//! A spin lock for sections of a few instructions.
//!
//! Taking it is one read-modify-write, and releasing it a plain store. That is half of what a blocking mutex
//! costs without contention, and less than half with two processors, because the releasing thread need not wait
//! for the cache line. Use it for sections that never block and are usually short (a buffer may grow, a waker
//! may be cloned). If the holder loses its processor, waiters yield theirs and finally sleep, because the
//! holder may have the lower priority.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::shim::{AtomicBool, hint, thread};

/// How often a waiter looks at the lock before it yields its processor; about a microsecond.
const SPINS: u32 = 64;
/// How often a waiter yields before it sleeps.
const YIELDS: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);

pub(super) struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: the lock gives the value to one thread at a time.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    pub(super) fn new(value: T) -> SpinLock<T> {
        SpinLock { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(super) fn lock(&self) -> SpinGuard<'_, T> {
        let mut waited = 0;
        // Ordering: Acquire pairs with the Release of the guard's drop.
        while self.locked.compare_exchange_weak(false, true, Acquire, Relaxed).is_err() {
            self.wait(waited);
            waited += 1;
        }
        SpinGuard { lock: self }
    }

    #[cold]
    fn wait(&self, waited: u32) {
        for _ in 0..SPINS {
            if !self.locked.load(Relaxed) {
                return;
            }
            hint::spin_loop();
        }
        if waited < YIELDS {
            thread::yield_now();
        } else {
            thread::sleep(SLEEP);
        }
    }
}

pub(super) struct SpinGuard<'a, T> {
    lock: &'a SpinLock<T>,
}

impl<T> Deref for SpinGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the guard proves that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard proves that this thread holds the lock, and it is borrowed exclusively.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for SpinGuard<'_, T> {
    fn drop(&mut self) {
        // Ordering: Release pairs with the Acquire of the next `lock`.
        self.lock.locked.store(false, Release);
    }
}

cfg_select! {
    any(wakeloop_loom, wakeloop_shuttle) => {
        use super::shim::{Mutex, MutexGuard};

        /// Takes the place of [`SpinLock`] in models of what it guards. A model checker sees a mutex as one
        /// step, but every look of a spinning thread as one more interleaving to explore.
        pub(super) struct ShortLock<T>(Mutex<T>);

        pub(super) type ShortGuard<'a, T> = MutexGuard<'a, T>;

        impl<T> ShortLock<T> {
            pub(super) fn new(value: T) -> ShortLock<T> {
                ShortLock(Mutex::new(value))
            }

            pub(super) fn lock(&self) -> ShortGuard<'_, T> {
                crate::poison::unpoisoned(self.0.lock())
            }
        }
    }
    _ => {
        pub(super) use SpinGuard as ShortGuard;
        pub(super) use SpinLock as ShortLock;
    }
}

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
mod model {
    use std::sync::Arc;

    use super::super::shim::UnsafeCell;
    use super::super::shim::model::{check, thread};
    use super::SpinLock;

    struct Guarded(SpinLock<()>, UnsafeCell<u32>);

    // SAFETY: the cell is touched only under the lock.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn add(&self) -> u32 {
            let _guard = self.0.lock();
            // SAFETY: this thread holds the lock.
            self.1.with_mut(|count| unsafe {
                *count += 1;
                *count
            })
        }
    }

    /// A model does not see what the lock itself guards, so this test puts a checked cell beside it.
    #[test]
    fn what_a_lock_guards_is_touched_by_one_thread_at_a_time() {
        check(|| {
            let guarded = Arc::new(Guarded(SpinLock::new(()), UnsafeCell::new(0)));
            let other = thread::spawn({
                let guarded = guarded.clone();
                move || guarded.add()
            });
            assert_eq!(guarded.add() + other.join().unwrap(), 3);
        });
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_long_for_a_lock_gets_it() {
        let lock = SpinLock::new(0);
        std::thread::scope(|scope| {
            let mut held = lock.lock();
            let waiting = scope.spawn(|| *lock.lock());
            thread::sleep(100 * SLEEP);
            *held = 7;
            drop(held);
            assert_eq!(waiting.join().unwrap(), 7);
        });
    }
}
