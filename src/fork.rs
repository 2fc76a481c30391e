//! Objects that belong to one process.
//!
//! A forked child has a copy of its parent's memory and shares its descriptors, but it has one thread. What the
//! parent's other threads were doing is never completed in the child, and one of them may have held a lock at the fork.
//! To drop an object there may close or change something that the parent uses.
//!
//! - An [`Owned`] value does not exist in a forked child: it is `None`, and it is leaked.
//! - A [`ForkMutex`] is made anew in a forked child, and what was in it is leaked.
//! - An [`Owner`] is for an object that a child may use in part, or take over.

use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The fork count: the number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Counts a fork. Called in the forked child, before any other function of this crate.
pub(crate) fn forked() {
    // Relaxed: the child has one thread.
    FORKS.fetch_add(1, Ordering::Relaxed);
}

fn forks() -> u32 {
    // Relaxed: changes only in a child that has one thread.
    FORKS.load(Ordering::Relaxed)
}

/// The process that an object belongs to, by its fork count. Relaxed throughout: it changes only in a forked child, by
/// the one thread that uses the object.
#[derive(Debug)]
pub(crate) struct Owner(AtomicU32);

impl Owner {
    pub(crate) fn this_process() -> Owner {
        Owner(AtomicU32::new(forks()))
    }

    /// Is it this process, and not a parent of it?
    #[inline(always)]
    pub(crate) fn is_this_process(&self) -> bool {
        self.0.load(Ordering::Relaxed) == forks()
    }

    /// This process has the object from now on.
    pub(crate) fn adopt(&self) {
        self.0.store(forks(), Ordering::Relaxed);
    }
}

impl Clone for Owner {
    fn clone(&self) -> Owner {
        Owner(AtomicU32::new(self.0.load(Ordering::Relaxed)))
    }
}

/// A value that belongs to the process that made it. In a forked child it is `None`, and is never dropped.
#[derive(Debug)]
pub(crate) struct Owned<T> {
    value: ManuallyDrop<T>,
    owner: Owner,
}

impl<T> Owned<T> {
    pub(crate) fn new(value: T) -> Owned<T> {
        Owned { value: ManuallyDrop::new(value), owner: Owner::this_process() }
    }

    pub(crate) fn get(&self) -> Option<&T> {
        self.owner.is_this_process().then_some(&*self.value)
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut T> {
        if self.owner.is_this_process() { Some(&mut *self.value) } else { None }
    }

    pub(crate) fn into_inner(self) -> Option<T> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is not dropped, so nothing else takes the value.
        this.owner.is_this_process().then(|| unsafe { ManuallyDrop::take(&mut this.value) })
    }
}

impl<T> Drop for Owned<T> {
    fn drop(&mut self) {
        if self.owner.is_this_process() {
            // SAFETY: the value is dropped once, here: `into_inner` takes it without this destructor.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A mutex that a forked child makes anew, because another thread of its parent may have had it.
#[derive(Debug)]
pub(crate) struct ForkMutex<T>(UnsafeCell<Mutex<T>>);

// SAFETY: all but `renew` use it as a mutex, and the caller of `renew` is the only thread.
unsafe impl<T: Send> Sync for ForkMutex<T> {}

impl<T> ForkMutex<T> {
    pub(crate) const fn new(value: T) -> ForkMutex<T> {
        ForkMutex(UnsafeCell::new(Mutex::new(value)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        // SAFETY: only `renew` writes the mutex as a whole; see there.
        let mutex = unsafe { &*self.0.get() };
        // As `poison`, which is no floor below this one, has it.
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it anew with this value.
    ///
    /// # Safety
    /// This is a forked child with one thread, and that is not in [`lock`](ForkMutex::lock) and has no guard of it.
    pub(crate) unsafe fn renew(&self, value: T) {
        // SAFETY: nobody refers to the mutex, by the caller's promise. The old one is not dropped.
        unsafe { self.0.get().write(Mutex::new(value)) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// As in a forked child.
    fn inherited<T>(value: T) -> Owned<T> {
        let owned = Owned::new(value);
        owned.owner.0.store(forks().wrapping_sub(1), Ordering::Relaxed);
        owned
    }

    #[test]
    fn a_value_is_used_and_dropped_in_the_process_that_made_it() {
        let value = Arc::new(());
        let mut owned = Owned::new(value.clone());
        assert!(owned.get().is_some() && owned.get_mut().is_some());
        drop(owned);
        assert_eq!(Arc::strong_count(&value), 1);
        drop(Owned::new(value.clone()).into_inner().expect("it is this process's"));
        assert_eq!(Arc::strong_count(&value), 1);
    }

    #[test]
    fn a_value_of_a_parent_is_neither_used_nor_dropped() {
        let value = Arc::new(());
        let mut owned = inherited(value.clone());
        assert!(owned.get().is_none() && owned.get_mut().is_none());
        drop(owned);
        assert!(inherited(value.clone()).into_inner().is_none());
        assert_eq!(Arc::strong_count(&value), 3);
    }

    #[test]
    fn a_mutex_that_another_thread_had_is_made_anew() {
        let value = Arc::new(());
        let mutex = ForkMutex::new(Some(value.clone()));
        // As in a child, in which the thread that has the guard does not go on.
        std::mem::forget(mutex.lock());
        // SAFETY: this thread has forgotten the guard, and there is no other.
        unsafe { mutex.renew(None) };
        assert!(mutex.lock().is_none());
        assert_eq!(Arc::strong_count(&value), 2);
    }

    #[test]
    fn a_child_may_take_an_object_over() {
        let owner = inherited(()).owner.clone();
        assert!(!owner.is_this_process() && !owner.clone().is_this_process());
        owner.adopt();
        assert!(owner.is_this_process());
    }
}
