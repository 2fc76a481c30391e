//! A mutex that may be held across awaits.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::semaphore::{Permit, Semaphore};

/// A value that one task at a time may use, also across awaits. First come, first served.
///
/// For a value that is only read or changed between two awaits, `std::sync::Mutex` is faster and just as good.
/// This one is for a value that a task needs for itself across an await, for example a connection during a
/// request and its response. It is not poisoned: a holder that panics leaves the value as it is.
///
/// ```
/// use wakeloop::runtime::{block_on, sync::Mutex, yield_now};
///
/// let number = Mutex::new(1);
/// block_on(async {
///     let mut held = number.lock().await;
///     let before = *held;
///     yield_now().await;
///     *held = before + 1;
/// });
/// assert_eq!(number.into_inner(), 2);
/// ```
pub struct Mutex<T: ?Sized> {
    turn: Semaphore,
    value: UnsafeCell<T>,
}

// SAFETY: the semaphore has one permit, and the value is touched only with it. So the value only moves from
// thread to thread, for which `Send` is enough. The semaphore's lock orders one holder's accesses before the
// next one's.
unsafe impl<T: Send + ?Sized> Send for Mutex<T> {}
// SAFETY: only the holder of the semaphore's one permit touches the value, so `Send` is enough.
unsafe impl<T: Send + ?Sized> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub fn new(value: T) -> Mutex<T> {
        Mutex { turn: Semaphore::new(1), value: UnsafeCell::new(value) }
    }

    /// Returns the value. Nobody else can hold the lock any more.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock. The task joins the line at the first poll. Cancel-safe, but a cancelled wait loses
    /// its place in the line.
    ///
    /// A task that already holds the lock would wait forever.
    pub async fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard { _permit: self.turn.acquire(1).await, mutex: self }
    }

    /// Takes the lock if it is free and nobody is in line.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        Some(MutexGuard { _permit: self.turn.try_acquire(1)?, mutex: self })
    }

    /// As [`Mutex::lock`], with a guard that owns a reference to the mutex.
    pub async fn lock_owned(self: Arc<Self>) -> OwnedMutexGuard<T> {
        self.turn.acquire(1).await.forget();
        OwnedMutexGuard { mutex: self }
    }

    /// Returns the value without locking: the exclusive borrow is enough.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T> From<T> for Mutex<T> {
    fn from(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
}

impl<T: fmt::Debug + ?Sized> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Mutex");
        match self.try_lock() {
            Some(guard) => debug.field("value", &&*guard).finish(),
            None => debug.finish_non_exhaustive(),
        }
    }
}

/// The guard of a [`Mutex`]. Dropping it unlocks.
#[must_use = "the mutex is unlocked at once if this is not kept"]
pub struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    _permit: Permit<'a>,
}

/// As [`MutexGuard`], but it owns a reference to its mutex.
#[must_use = "the mutex is unlocked at once if this is not kept"]
pub struct OwnedMutexGuard<T: ?Sized> {
    mutex: Arc<Mutex<T>>,
}

// SAFETY: a shared guard gives only shared references to the value. (Without this impl, the guard would only
// need `Mutex: Sync`, which holds even for a value that is not `Sync`.)
unsafe impl<T: Sync + ?Sized> Sync for MutexGuard<'_, T> {}
// SAFETY: a shared guard gives only shared references to the value.
unsafe impl<T: Sync + ?Sized> Sync for OwnedMutexGuard<T> {}

impl<T: ?Sized> Drop for OwnedMutexGuard<T> {
    fn drop(&mut self) {
        self.mutex.turn.release(1);
    }
}

macro_rules! guard {
    ($($guard:ty),*) => {$(
        impl<T: ?Sized> Deref for $guard {
            type Target = T;

            fn deref(&self) -> &T {
                // SAFETY: the guard is the only one there is.
                unsafe { &*self.mutex.value.get() }
            }
        }

        impl<T: ?Sized> DerefMut for $guard {
            fn deref_mut(&mut self) -> &mut T {
                // SAFETY: the guard is the only one there is, and it is borrowed exclusively.
                unsafe { &mut *self.mutex.value.get() }
            }
        }

        impl<T: fmt::Debug + ?Sized> fmt::Debug for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }

        impl<T: fmt::Display + ?Sized> fmt::Display for $guard {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    )*};
}

guard! { MutexGuard<'_, T>, OwnedMutexGuard<T> }

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Two impls for every `Sync` type, so that a call is ambiguous exactly for those.
    trait NotSync<A> {
        fn holds() {}
    }

    impl<T: ?Sized> NotSync<()> for T {}
    impl<T: ?Sized + Sync> NotSync<u8> for T {}

    #[test]
    fn a_guard_is_shared_between_threads_only_if_its_value_may_be() {
        fn is_send_and_sync<T: Send + Sync>() {}
        is_send_and_sync::<Mutex<Cell<u8>>>();
        is_send_and_sync::<MutexGuard<'_, u8>>();
        is_send_and_sync::<OwnedMutexGuard<u8>>();
        <MutexGuard<'_, Cell<u8>> as NotSync<_>>::holds();
        <OwnedMutexGuard<Cell<u8>> as NotSync<_>>::holds();
    }
}
