//! A lock for a handful of instructions.
//!
//! Taking it is one read-modify-write and leaving it a plain store, half of what a blocking mutex costs when
//! nobody contends, and less than half when two processors do: who leaves need not wait for the cache line, which is with
//! the other by then. For sections that never block and are short, if not always: a buffer may grow in one, a waker be
//! cloned. Should the holder lose its processor, waiters yield theirs, and in the end sleep, as the holder may have the
//! lower priority.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use super::shim::{AtomicBool, hint, thread};

/// Looks at the lock before a waiter gives up its processor; about a microsecond.
const SPINS: u32 = 64;
/// How often it gives the processor up before it sleeps.
const YIELDS: u32 = 64;
const SLEEP: Duration = Duration::from_micros(50);

pub(super) struct SpinLock<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock hands the value to one thread at a time.
unsafe impl<T: Send> Send for SpinLock<T> {}
// SAFETY: as above.
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
        // SAFETY: the guard is the proof that this thread holds the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for SpinGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is borrowed exclusively.
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

        /// In place of a [`SpinLock`] in models of what it guards: a checker sees a mutex as one step, and a spinning
        /// thread as one more order for each look.
        pub(super) struct ShortLock<T>(Mutex<T>);

        pub(super) type ShortGuard<'a, T> = MutexGuard<'a, T>;

        impl<T> ShortLock<T> {
            pub(super) fn new(value: T) -> ShortLock<T> {
                ShortLock(Mutex::new(value))
            }

            pub(super) fn lock(&self) -> ShortGuard<'_, T> {
                super::unpoisoned(self.0.lock())
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

    // SAFETY: the cell is touched under the lock only.
    unsafe impl Sync for Guarded {}

    impl Guarded {
        fn add(&self) -> u32 {
            let _guard = self.0.lock();
            // SAFETY: under the lock.
            self.1.with_mut(|count| unsafe {
                *count += 1;
                *count
            })
        }
    }

    /// What the lock itself guards, a model does not see; so here something beside it.
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
    fn who_waits_long_for_a_lock_has_it_in_the_end() {
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
