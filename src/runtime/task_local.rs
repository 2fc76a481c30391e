//! Values that belong to a task rather than to a thread.
//!
//! A value is put into a thread-local slot during each poll and taken out afterwards. So it follows its future
//! from worker to worker, and a task that is polled in between does not see it.

use std::cell::RefCell;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread::LocalKey;

use pin_project_lite::pin_project;

use super::macros::opaque_debug;

/// Declares task locals: statics of type [`TaskLocal`].
///
/// ```
/// use wakeloop::runtime::{block_on, yield_now};
///
/// wakeloop::task_local! {
///     static REQUEST: u64;
/// }
///
/// block_on(REQUEST.scope(7, async {
///     yield_now().await;
///     assert_eq!(REQUEST.with(|id| *id), 7);
/// }));
/// assert!(REQUEST.try_with(|_| ()).is_err());
/// ```
#[macro_export]
macro_rules! task_local {
    ($($(#[$attribute:meta])* $visibility:vis static $name:ident: $type:ty);+ $(;)?) => {$(
        $(#[$attribute])*
        $visibility static $name: $crate::runtime::task_local::TaskLocal<$type> = {
            ::std::thread_local! {
                static SLOT: ::std::cell::RefCell<::std::option::Option<$type>> =
                    const { ::std::cell::RefCell::new(::std::option::Option::None) };
            }
            $crate::runtime::task_local::TaskLocal::__new(&SLOT)
        };
    )+};
}

/// A value per task. Made by [`task_local!`](crate::task_local).
pub struct TaskLocal<T: 'static> {
    slot: &'static LocalKey<RefCell<Option<T>>>,
}

impl<T: 'static> TaskLocal<T> {
    #[doc(hidden)]
    pub const fn __new(slot: &'static LocalKey<RefCell<Option<T>>>) -> TaskLocal<T> {
        TaskLocal { slot }
    }

    /// Runs `future` with `value` as the value of its task. It hides the value of an outer scope meanwhile.
    /// Tasks that `future` spawns do not inherit it.
    ///
    /// # Panics
    /// When polled inside [`TaskLocal::with`] of the same local.
    pub fn scope<F: Future>(&'static self, value: T, future: F) -> Scope<T, F> {
        Scope { local: self, value: Some(value), future: Some(future) }
    }

    /// As `scope`, for a function.
    ///
    /// # Panics
    /// Inside [`TaskLocal::with`] of the same local.
    pub fn sync_scope<R>(&'static self, value: T, f: impl FnOnce() -> R) -> R {
        let mut value = Some(value);
        let _inside = Inside::enter(self, &mut value);
        f()
    }

    /// Calls `f` with the value.
    ///
    /// # Panics
    /// If called outside every `scope`.
    pub fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        match self.try_with(f) {
            Ok(result) => result,
            Err(error) => panic!("{error}"),
        }
    }

    /// Calls `f` with the value.
    ///
    /// # Errors
    /// If called outside every `scope`.
    pub fn try_with<R>(&'static self, f: impl FnOnce(&T) -> R) -> Result<R, NoValue> {
        let with = |slot: &RefCell<Option<T>>| slot.borrow().as_ref().map(f);
        self.slot.try_with(with).ok().flatten().ok_or(NoValue(()))
    }

    /// Returns a copy of the value.
    ///
    /// # Panics
    /// If called outside every `scope`.
    pub fn get(&'static self) -> T
    where
        T: Copy,
    {
        self.with(|value| *value)
    }

    /// Swaps the value in the slot. Returns false if the slot is in use.
    fn swap(&'static self, value: &mut Option<T>) -> bool {
        let swap = |slot: &RefCell<Option<T>>| {
            slot.try_borrow_mut().map(|mut slot| std::mem::swap(&mut *slot, value)).is_ok()
        };
        // While the thread ends there is no slot any more, and no value is seen.
        self.slot.try_with(swap).unwrap_or(true)
    }
}

opaque_debug! {
    "TaskLocal" [T] TaskLocal<T>;
    "task_local::Scope" [T, F] Scope<T, F>;
}

/// While this lives, the value is in the slot. Dropping it takes the value out, also when a panic unwinds.
struct Inside<'a, T: 'static> {
    local: &'static TaskLocal<T>,
    value: &'a mut Option<T>,
}

impl<'a, T> Inside<'a, T> {
    fn enter(local: &'static TaskLocal<T>, value: &'a mut Option<T>) -> Inside<'a, T> {
        let inside = Inside::try_enter(local, value);
        inside.expect("a scope of a task local cannot begin while its value is in use")
    }

    fn try_enter(local: &'static TaskLocal<T>, value: &'a mut Option<T>) -> Option<Inside<'a, T>> {
        local.swap(value).then(|| Inside { local, value })
    }
}

impl<T> Drop for Inside<'_, T> {
    fn drop(&mut self) {
        self.local.swap(self.value);
    }
}

pin_project! {
    /// The future of [`TaskLocal::scope`].
    #[must_use = "a scope does nothing unless awaited"]
    pub struct Scope<T: 'static, F> {
        local: &'static TaskLocal<T>,
        value: Option<T>,
        // Dropped once ready, while the value can be seen.
        #[pin]
        future: Option<F>,
    }

    impl<T: 'static, F> PinnedDrop for Scope<T, F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            if this.future.is_some() {
                // A panic may be unwinding while the value is in use; then the future does not see it.
                let _inside = Inside::try_enter(this.local, this.value);
                this.future.set(None);
            }
        }
    }
}

impl<T, F: Future> Future for Scope<T, F> {
    type Output = F::Output;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        let _inside = Inside::enter(this.local, this.value);
        let future = this.future.as_mut().as_pin_mut().expect("a scope was polled after it was ready");
        let polled = future.poll(cx);
        if polled.is_ready() {
            this.future.set(None);
        }
        polled
    }
}

/// A task local was read outside of its scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoValue(());

impl fmt::Display for NoValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this task local has no value here: it was read outside its scope")
    }
}

impl Error for NoValue {}
