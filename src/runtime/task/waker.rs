//! The `Waker` of a task: its pointer is the task's header.
//!
//! The vtable is one static for all tasks, so `Waker::will_wake` compares two pointers, which are equal exactly
//! if the tasks are: a future that is polled again keeps its waker.
//!
//! A waker may be used on any thread at any time, also after the task has completed or its runtime has ended.

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::task::{RawWaker, RawWakerVTable, Waker};

use super::header::Header;
use super::state::Woken;

static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, wake, wake_by_ref, drop_waker);

/// Calls `f` with a waker that borrows the live task's reference. No reference is counted unless `f` clones it.
pub(super) fn with_borrowed<R>(header: NonNull<Header>, f: impl FnOnce(&Waker) -> R) -> R {
    // SAFETY: the functions of the vtable keep the contract of `RawWaker`. This waker is never dropped, so it
    // never gives up a reference.
    let waker = ManuallyDrop::new(unsafe { Waker::new(header.as_ptr().cast(), &VTABLE) });
    f(&waker)
}

/// Returns the task that the waker queues, if it is a task's waker. It lives as long as the waker.
pub(super) fn task_of(waker: &Waker) -> Option<NonNull<Header>> {
    if !std::ptr::eq(waker.vtable(), &VTABLE) {
        return None;
    }
    NonNull::new(waker.data().cast_mut().cast())
}

/// # Safety
/// `data` comes from a waker of this vtable.
unsafe fn header(data: *const ()) -> NonNull<Header> {
    // SAFETY: it was a `NonNull<Header>` in `with_borrowed`, and the waker's reference keeps the task alive.
    unsafe { NonNull::new_unchecked(data.cast_mut().cast()) }
}

unsafe fn clone(data: *const ()) -> RawWaker {
    // SAFETY: by the contract of `RawWakerVTable`.
    unsafe { header(data).as_ref() }.state.retain();
    RawWaker::new(data, &VTABLE)
}

unsafe fn wake(data: *const ()) {
    // SAFETY: by the contract of `RawWakerVTable`. `wake_by_value` gives up the reference. With `Schedule` the
    // task is alive until its `Runnable` has run; with `Free` the last reference was ours.
    unsafe {
        let header = header(data);
        match header.as_ref().state.wake_by_value() {
            Woken::Schedule => Header::schedule(header),
            Woken::Nothing => {}
            Woken::Free => (header.as_ref().vtable.free)(header),
        }
    }
}

unsafe fn wake_by_ref(data: *const ()) {
    // SAFETY: by the contract of `RawWakerVTable`.
    unsafe {
        let header = header(data);
        if header.as_ref().state.wake_by_ref() == Woken::Schedule {
            Header::schedule(header);
        }
    }
}

unsafe fn drop_waker(data: *const ()) {
    // SAFETY: by the contract of `RawWakerVTable`. The reference is given up.
    unsafe { Header::release(header(data)) }
}
