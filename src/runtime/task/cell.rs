//! The allocation of a task and the operations on it.

use std::alloc::{Layout, dealloc};
use std::any::{Any, type_name};
use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::task::{Context, Poll, Waker};

use super::super::blocking::RunningJob;
use super::super::shim::UnsafeCell;
use super::super::trace::TraceEvent;
use super::header::{Header, Home, HomeKind, Runnable, Sample, UNOWNED, Vtable};
use super::join::{JoinError, JoinHandle, TaskPanic};
use super::state::{Paused, Start, TaskState};
use super::waker;

#[repr(C)]
struct Task<F: Future, H> {
    header: Header,
    payload: UnsafeCell<Payload<F>>,
    home: PhantomData<*const H>,
}

/// The future, until the holder of the `Runnable` is done with it; then the output.
union Payload<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

/// Creates a scheduled task. The caller queues the `Runnable`.
///
/// `home` must stay valid until the task is complete.
pub(in super::super) fn new<F: Future<Output: Send + 'static> + Send + 'static, H: Home>(
    future: F,
    home: *const H,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: future and output are `Send`, so any thread may touch them.
    unsafe { allocate(future, home) }
}

/// As [`new`], for the blocking pool.
pub(in super::super) fn new_job<F: Future<Output: Send + 'static> + Send + 'static>(
    future: F,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: future and output are `Send`, so any thread may touch them.
    unsafe { allocate(future, ptr::null::<RunningJob<'static>>()) }
}

/// As [`new`], for a set of local tasks.
///
/// # Safety
/// The `Runnable` must be run and dropped on this thread only. It may be passed between threads.
pub(in super::super) unsafe fn new_local<F: Future<Output: 'static> + 'static, H: Home>(
    future: F,
    set: *const H,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: by contract, the future stays on this thread. An output that is not `Send` makes the handle not
    // `Send`; without a handle, the completer drops it on this thread.
    unsafe { allocate(future, set) }
}

/// # Safety
/// If future or output is not `Send`, the caller must ensure that the `Runnable` is run and dropped on this
/// thread.
unsafe fn allocate<F: Future<Output: 'static> + 'static, H: Home>(
    future: F,
    home: *const H,
) -> (Runnable, JoinHandle<F::Output>) {
    let task = Box::new(Task::<F, H> {
        header: Header {
            state: TaskState::new(),
            vtable: Task::<F, H>::VTABLE,
            home: Cell::new(home.cast()),
            links: Default::default(),
            join_waker: UnsafeCell::new(MaybeUninit::uninit()),
            sample_at: Cell::new(0),
            owner: Cell::new(UNOWNED),
            sample_weight: Cell::new(0),
        },
        payload: UnsafeCell::new(Payload { future: ManuallyDrop::new(future) }),
        home: PhantomData,
    });
    let header = NonNull::from(Box::leak(task)).cast::<Header>();
    // SAFETY: `TaskState::new` counts two references and one `Runnable`, which these two are.
    (Runnable(header), unsafe { JoinHandle::from_raw(header) })
}

/// Notes that the job polled with `waker` has its output, and is about to notify.
pub(in super::super) fn job_ends(waker: &Waker) {
    let Some(header) = waker::task_of(waker) else { return };
    // SAFETY: the waker keeps the task alive.
    unsafe { header.as_ref() }.job_ends();
}

impl<F: Future, H: Home> Task<F, H> {
    const VTABLE: &'static Vtable = &Vtable {
        run: Self::run,
        schedule: Self::schedule,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        free: Self::free,
        kind: H::KIND,
        name: type_name::<F>,
    };

    /// # Safety
    /// As [`Vtable::schedule`].
    unsafe fn schedule(header: NonNull<Header>) {
        // SAFETY: the caller gives up the `Runnable`, so the home lives (rule 5), and `H` is its type.
        unsafe { H::schedule(header.as_ref().home.get().cast(), Runnable(header)) }
    }

    /// A poll is about to begin. Called only by the holder of the `Runnable`.
    #[inline(always)]
    fn begin_poll(head: &Header) {
        if H::KIND != HomeKind::Workers {
            return;
        }
        if head.sample_weight.get() > 0 {
            Self::begin_sampled_poll(head);
        }
        Self::trace(head, |task| TraceEvent::Polled { task });
    }

    #[cold]
    fn begin_sampled_poll(head: &Header) {
        let sample = Sample::new(head.sample_at.get(), head.sample_weight.replace(0));
        // SAFETY: the caller holds the `Runnable`, so the home lives (rule 5).
        unsafe { H::record_delay(head.home.get().cast(), sample) };
    }

    /// Reports an event of the task. Called only by the holder of the `Runnable`.
    #[inline(always)]
    fn trace(head: &Header, event: fn(usize) -> TraceEvent) {
        // SAFETY: the caller holds the `Runnable`, so the home lives (rule 5).
        unsafe { H::trace(head.home.get().cast(), ptr::from_ref(head).addr(), event) }
    }

    /// # Safety
    /// The caller gives up the `Runnable`.
    unsafe fn run(header: NonNull<Header>) {
        // SAFETY: the task is alive until it completes, and only we can complete it.
        let task = unsafe { header.cast::<Self>().as_ref() };
        let head = &task.header;
        if head.state.start() == Start::Cancel {
            // SAFETY: we hold the `Runnable`.
            return unsafe { Self::cancel(header) };
        }
        Self::begin_poll(head);
        let polled = waker::with_borrowed(header, |waker| {
            let mut context = Context::from_waker(waker);
            catch_unwind(AssertUnwindSafe(|| {
                task.payload.with_mut(|payload| {
                    // SAFETY: the payload is a future and ours (rule 1). It never moves: it is on the heap, and
                    // is dropped in place.
                    let future = unsafe { Pin::new_unchecked(&mut *(*payload).future) };
                    future.poll(&mut context)
                })
            }))
        });
        match polled {
            Ok(Poll::Pending) => {
                Self::trace(head, |task| TraceEvent::Pending { task });
                match head.state.pause() {
                    Paused::Idle => {}
                    // SAFETY: the `Runnable` is still ours.
                    Paused::Again => unsafe { H::reschedule(head.home.get().cast(), Runnable(header)) },
                    // SAFETY: the `Runnable` is still ours.
                    Paused::Cancel => unsafe { Self::cancel(header) },
                }
            }
            // SAFETY: the `Runnable` is still ours.
            Ok(Poll::Ready(output)) => unsafe { Self::finish(header, Ok(output)) },
            // SAFETY: the `Runnable` is still ours.
            Err(panic) => unsafe { Self::finish(header, Err(JoinError::Panic(TaskPanic::new(panic)))) },
        }
    }

    /// # Safety
    /// The caller gives up the `Runnable`.
    unsafe fn cancel(header: NonNull<Header>) {
        // SAFETY: by contract.
        unsafe { Self::finish(header, Err(JoinError::Cancelled)) }
    }

    /// Replaces the future by the output, completes the task, and wakes the joiner.
    ///
    /// # Safety
    /// The caller gives up the `Runnable`, and the payload is a future.
    unsafe fn finish(header: NonNull<Header>, output: Result<F::Output, JoinError>) {
        // SAFETY: the task's own reference, released at the end, keeps it alive.
        let task = unsafe { header.cast::<Self>().as_ref() };
        let head = &task.header;
        let dropped = catch_panic(|| {
            // SAFETY: the future is ours (rule 1) and not used again.
            task.payload.with_mut(|payload| unsafe { ManuallyDrop::drop(&mut (*payload).future) });
        });
        let output = match dropped {
            Ok(()) => output,
            Err(panic) => {
                drop(catch_panic(|| drop(output)));
                Err(JoinError::Panic(TaskPanic::new(panic)))
            }
        };
        // SAFETY: the payload is empty now, and still ours.
        task.payload.with_mut(|payload| unsafe { (*payload).output = ManuallyDrop::new(output) });
        Self::trace(head, |task| TraceEvent::Completed { task });
        // Remove it from the list first, so that a joiner does not find it in the metrics.
        if head.owner.get() != UNOWNED {
            // SAFETY: the home lives while the task is in its list.
            unsafe { H::remove(head.home.get().cast(), header) };
        }
        let completed = head.state.complete();
        if completed.drop_output {
            // SAFETY: the output is the completer's (rule 2).
            drop(catch_panic(|| unsafe { Self::drop_output(header) }));
        }
        if completed.wake_joiner {
            // SAFETY: the slot is set and passed to us (rule 3).
            let waker = head.join_waker.with(|slot| unsafe { (*slot).assume_init_read() });
            // If the waker is a task's, waking it only queues that task: no foreign code runs before this
            // thread is back.
            if H::KIND == HomeKind::Pool && waker::task_of(&waker).is_some() {
                head.job_ends();
            }
            drop(catch_panic(|| waker.wake()));
        }
        // SAFETY: this is the reference of the live task.
        unsafe { Header::release(header) };
    }

    /// # Safety
    /// As [`Vtable::take_output`], and `to` is valid for the result.
    unsafe fn take_output(header: NonNull<Header>, to: *mut ()) {
        // SAFETY: the payload is an output and the caller's to move; `to` is valid.
        unsafe {
            let task = header.cast::<Self>().as_ref();
            let output = task.payload.with_mut(|payload| ManuallyDrop::take(&mut (*payload).output));
            to.cast::<Result<F::Output, JoinError>>().write(output);
        }
    }

    /// # Safety
    /// As [`Vtable::drop_output`].
    unsafe fn drop_output(header: NonNull<Header>) {
        // SAFETY: the payload is an output and the caller's to drop.
        unsafe {
            let task = header.cast::<Self>().as_ref();
            task.payload.with_mut(|payload| ManuallyDrop::drop(&mut (*payload).output));
        }
    }

    /// # Safety
    /// As [`Vtable::free`].
    unsafe fn free(header: NonNull<Header>) {
        // To a model, freeing is the last access.
        #[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
        // SAFETY: not freed yet.
        unsafe { header.cast::<Self>().as_ref() }.payload.with_mut(|_| ());
        // SAFETY: allocated by `Box` with this layout. Nothing in it needs dropping: the payload's content was
        // dropped, the join waker's slot is empty, and the rest is plain data.
        unsafe { dealloc(header.as_ptr().cast(), Layout::new::<Self>()) };
    }
}

/// Runs user code, and returns its panic as an error.
fn catch_panic(f: impl FnOnce()) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(f))
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_small_task_takes_eighty_eight_bytes() {
        fn size_of_task<F: Future>(_: &F) -> usize {
            size_of::<Task<F, ()>>()
        }
        assert_eq!(size_of::<Header>(), 64);
        assert_eq!(size_of_task(&async {}), 88);
    }
}
