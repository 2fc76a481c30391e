//! The allocation of a task and the operations on it.

use std::alloc::{Layout, dealloc};
use std::any::{Any, type_name};
use std::cell::Cell;
use std::future::Future;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::{self, NonNull};
use std::task::{Context, Poll, Waker};

use super::super::blocking::RunningJob;
use super::super::clock;
use super::super::executor::{self, LocalShared, Shared};
use super::super::shim::UnsafeCell;
use super::super::trace::TraceEvent;
use super::join::{JoinError, JoinHandle, TaskPanic};
use super::state::{Paused, Start, State, Woken};
use super::waker;
use crate::recorder::event::{TypeName, type_number};

/// `Header::owner` of a task that is in no list.
const UNOWNED: u16 = u16::MAX;

/// The part that all tasks have in common: 64 bytes. With 24 bytes for the output of a small task that makes
/// 88, which malloc rounds to 96.
#[repr(C)]
pub(in super::super) struct Header {
    pub(super) state: State,
    pub(super) vtable: &'static Vtable,
    /// The pointer of the task's [`Home`]. The variant is in `kind`, which saves eight bytes.
    home: Cell<*const ()>,
    /// Neighbours in the list of live tasks. That list's lock guards them.
    pub(in super::super) links: std::cell::UnsafeCell<Links>,
    /// Rule 3 says when it may be touched.
    pub(super) join_waker: UnsafeCell<MaybeUninit<Waker>>,
    /// The fields of a [`Sample`], if the kind is `Sampled`; otherwise the weight is 0. Rule 5 says who may touch
    /// them, and the kind.
    sample_at: Cell<u32>,
    /// The shard of the list. Set before the task is published.
    pub(in super::super) owner: Cell<u16>,
    kind: Cell<Kind>,
    sample_weight: Cell<u8>,
}

/// Where a task is queued when it is woken.
#[derive(Clone, Copy)]
enum Home {
    Workers(*const Shared),
    Local(*const LocalShared),
    /// A blocking job, queued once. It completes in its only poll, so no wake queues it again. The pointer is
    /// the job of the thread that runs it, and null before.
    Pool(*const RunningJob<'static>),
}

#[derive(Clone, Copy)]
enum Kind {
    Workers,
    /// As `Workers`, from a wake to its poll if the time between the two is measured.
    Sampled,
    Local,
    Pool,
}

impl Home {
    fn into_parts(self) -> (*const (), Kind) {
        match self {
            Home::Workers(shared) => (shared.cast(), Kind::Workers),
            Home::Local(set) => (set.cast(), Kind::Local),
            Home::Pool(job) => (job.cast(), Kind::Pool),
        }
    }
}

/// A wake whose time is known, until the poll that serves it.
#[derive(Clone, Copy)]
pub(in super::super) struct Sample {
    /// When it was, in units of 1024 ns. They wrap around after 73 minutes.
    at: u32,
    /// How many wakes it stands for: at least one.
    pub(in super::super) weight: u8,
}

impl Sample {
    const UNIT_BITS: u32 = 10;

    fn units(nanos: u64) -> u32 {
        (nanos >> Sample::UNIT_BITS) as u32
    }

    /// Returns the time since the wake, in nanoseconds.
    pub(in super::super) fn age(&self) -> u64 {
        u64::from(Sample::units(clock::nanos()).wrapping_sub(self.at)) << Sample::UNIT_BITS
    }
}

#[derive(Clone, Copy, Default)]
pub(in super::super) struct Links {
    pub(in super::super) prev: Option<NonNull<Header>>,
    pub(in super::super) next: Option<NonNull<Header>>,
}

/// The operations that depend on the type of the future. They are for a task that is not freed.
pub(super) struct Vtable {
    /// Polls or cancels. Consumes the `Runnable`.
    run: unsafe fn(NonNull<Header>),
    /// Drops the future and completes with `Cancelled`; consumes the `Runnable`.
    cancel: unsafe fn(NonNull<Header>),
    /// Moves the output of a complete task, if it is the caller's, to a `*mut Result<T, JoinError>`.
    pub(super) take_output: unsafe fn(NonNull<Header>, *mut ()),
    /// Drops the output of a complete task, if it is the caller's, in place.
    pub(super) drop_output: unsafe fn(NonNull<Header>),
    /// Frees the memory, after future and output were dropped and the last reference is gone.
    pub(super) free: unsafe fn(NonNull<Header>),
    /// The name of the future's type.
    name: TypeName,
}

#[repr(C)]
struct Task<F: Future> {
    header: Header,
    payload: UnsafeCell<Payload<F>>,
}

/// The future, until the holder of the `Runnable` is done with it; then the output.
union Payload<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

/// Creates a scheduled task. The caller queues the `Runnable`.
///
/// `shared` must stay valid until the task is complete.
pub(in super::super) fn new<F: Future<Output: Send + 'static> + Send + 'static>(
    future: F,
    shared: *const Shared,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: future and output are `Send`, so any thread may touch them.
    unsafe { allocate(future, Home::Workers(shared)) }
}

/// As [`new`], for the blocking pool.
pub(in super::super) fn new_job<F: Future<Output: Send + 'static> + Send + 'static>(
    future: F,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: future and output are `Send`, so any thread may touch them.
    unsafe { allocate(future, Home::Pool(ptr::null())) }
}

/// As [`new`], for a set of local tasks.
///
/// # Safety
/// The `Runnable` must be run and dropped on this thread only. It may be passed between threads.
pub(in super::super) unsafe fn new_local<F: Future<Output: 'static> + 'static>(
    future: F,
    set: *const LocalShared,
) -> (Runnable, JoinHandle<F::Output>) {
    // SAFETY: by contract, the future stays on this thread. An output that is not `Send` makes the handle not
    // `Send`; without a handle, the completer drops it on this thread.
    unsafe { allocate(future, Home::Local(set)) }
}

/// # Safety
/// If future or output is not `Send`, the caller must ensure that the `Runnable` is run and dropped on this
/// thread.
unsafe fn allocate<F: Future<Output: 'static> + 'static>(
    future: F,
    home: Home,
) -> (Runnable, JoinHandle<F::Output>) {
    let (home, kind) = home.into_parts();
    let task = Box::new(Task {
        header: Header {
            state: State::new(),
            vtable: Task::<F>::VTABLE,
            home: Cell::new(home),
            links: Default::default(),
            join_waker: UnsafeCell::new(MaybeUninit::uninit()),
            sample_at: Cell::new(0),
            owner: Cell::new(UNOWNED),
            kind: Cell::new(kind),
            sample_weight: Cell::new(0),
        },
        payload: UnsafeCell::new(Payload { future: ManuallyDrop::new(future) }),
    });
    let header = NonNull::from(Box::leak(task)).cast::<Header>();
    // SAFETY: `State::new` counts two references and one `Runnable`, which these two are.
    (Runnable(header), unsafe { JoinHandle::from_raw(header) })
}

/// Notes that the job polled with `waker` has its output, and is about to notify.
pub(in super::super) fn job_ends(waker: &Waker) {
    let Some(header) = waker::task_of(waker) else { return };
    // SAFETY: the waker keeps the task alive.
    unsafe { header.as_ref() }.job_ends();
}

/// The exclusive right, and the duty, to poll a scheduled task once. Dropping it cancels the task.
pub(in super::super) struct Runnable(NonNull<Header>);

// SAFETY: the future is `Send`, or is polled on its thread only (see `allocate`). The header's shared fields
// are atomic, or guarded as the module documentation of `task` says.
unsafe impl Send for Runnable {}

impl Runnable {
    /// Polls the future, or drops it if the task was cancelled, and does what follows from that.
    pub(in super::super) fn run(self) {
        let header = self.into_raw();
        // SAFETY: we hold the `Runnable` and give it up.
        unsafe { (header.as_ref().vtable.run)(header) }
    }

    /// As [`Runnable::run`], for a job of the blocking pool.
    pub(in super::super) fn run_job(self, job: &RunningJob<'_>) {
        // SAFETY: alive, and only the holder of the `Runnable` reads or changes the home (rule 5). This is the
        // only run, and nobody reads the home after it.
        unsafe { self.0.as_ref() }.home.set(ptr::from_ref(job).cast());
        self.run();
    }

    pub(in super::super) fn header(&self) -> NonNull<Header> {
        self.0
    }

    /// Makes the poll of a task that was woken `now` report the time in between, which stands for `weight` wakes.
    pub(in super::super) fn sampled(self, now: u64, weight: u8) -> Runnable {
        // SAFETY: alive, and we hold the `Runnable` (rule 5).
        let header = unsafe { self.0.as_ref() };
        header.sample_at.set(Sample::units(now));
        header.sample_weight.set(weight);
        header.kind.set(Kind::Sampled);
        self
    }

    /// Names the task in traces.
    pub(in super::super) fn id(&self) -> usize {
        self.0.addr().get()
    }

    /// Names the type of the task's future in a recording.
    #[inline(always)]
    pub(in super::super) fn type_number(&self) -> u64 {
        // SAFETY: the task is alive while there is a `Runnable`.
        type_number(&unsafe { self.0.as_ref() }.vtable.name)
    }

    fn into_raw(self) -> NonNull<Header> {
        ManuallyDrop::new(self).0
    }
}

impl Drop for Runnable {
    fn drop(&mut self) {
        // SAFETY: we hold the `Runnable` and give it up.
        unsafe { (self.0.as_ref().vtable.cancel)(self.0) }
    }
}

impl Header {
    /// The name of the future's type.
    pub(in super::super) fn name(&self) -> &'static str {
        (self.vtable.name)()
    }

    fn home(&self) -> Home {
        match self.kind.get() {
            Kind::Workers | Kind::Sampled => Home::Workers(self.home.get().cast()),
            Kind::Local => Home::Local(self.home.get().cast()),
            Kind::Pool => Home::Pool(self.home.get().cast()),
        }
    }

    /// Notes that the job has its output. The thread that runs the job calls this.
    fn job_ends(&self) {
        if let Home::Pool(job) = self.home()
            // SAFETY: null, or the job of the run that we are in (rule 5).
            && let Some(job) = unsafe { job.as_ref() }
        {
            job.ends();
        }
    }

    /// Asks the task to stop. Returns a `Runnable` if the task was idle; the caller drops or queues it.
    ///
    /// # Safety
    /// `header` is a live task.
    pub(in super::super) unsafe fn claim_for_cancel(header: NonNull<Header>) -> Option<Runnable> {
        // SAFETY: alive, by contract.
        match unsafe { header.as_ref() }.state.cancel() {
            Woken::Schedule => Some(Runnable(header)),
            Woken::Nothing | Woken::Free => None,
        }
    }

    /// Queues the task.
    ///
    /// # Safety
    /// The caller has just moved the task's WAKES from 0 to 1.
    pub(super) unsafe fn schedule(header: NonNull<Header>) {
        // SAFETY: by contract. So the task cannot complete meanwhile, and its home lives (rule 5).
        unsafe {
            let task = Runnable(header);
            match header.as_ref().home() {
                Home::Workers(shared) => executor::schedule(shared, task),
                Home::Local(set) => executor::schedule_local(set, task),
                Home::Pool(_) => drop(task),
            }
        }
    }

    /// Queues a task that was woken during its poll, behind the others.
    ///
    /// # Safety
    /// The caller holds the `Runnable` and gives it up.
    #[inline(always)]
    unsafe fn reschedule(header: NonNull<Header>) {
        // SAFETY: by contract we hold the `Runnable`, so the home lives (rule 5).
        unsafe {
            match header.as_ref().home() {
                Home::Workers(shared) => executor::reschedule(shared, Runnable(header)),
                Home::Local(_) | Home::Pool(_) => Header::schedule(header),
            }
        }
    }

    /// Gives up one reference.
    ///
    /// # Safety
    /// The caller owns a reference and does not use it again.
    pub(super) unsafe fn release(header: NonNull<Header>) {
        // SAFETY: our reference keeps the task alive. If it was the last, nobody else can reach the task.
        unsafe {
            if header.as_ref().state.release() {
                (header.as_ref().vtable.free)(header);
            }
        }
    }

    /// A poll is about to begin. Called only by the holder of the `Runnable`.
    #[inline(always)]
    fn begin_poll(&self) {
        if matches!(self.kind.get(), Kind::Workers) {
            self.trace(|task| TraceEvent::Polled { task });
        } else if self.sample_weight.get() > 0 {
            // Not a question about the kind, because two of those cost each poll three instructions more.
            self.begin_sampled_poll();
        }
    }

    #[cold]
    fn begin_sampled_poll(&self) {
        self.kind.set(Kind::Workers);
        let sample = Sample { at: self.sample_at.get(), weight: self.sample_weight.replace(0) };
        // SAFETY: the caller holds the `Runnable`, so the executor lives (rule 5).
        unsafe { executor::record_delay(self.home.get().cast(), sample) };
        self.trace(|task| TraceEvent::Polled { task });
    }

    /// Reports an event of the task. Called only by the holder of the `Runnable`.
    fn trace(&self, event: impl FnOnce(usize) -> TraceEvent) {
        if let Home::Workers(shared) = self.home() {
            // SAFETY: the caller holds the `Runnable`, so the executor lives (rule 5).
            unsafe { &*shared }.trace(event(ptr::from_ref(self).addr()));
        }
    }
}

impl<F: Future> Task<F> {
    const VTABLE: &'static Vtable = &Vtable {
        run: Self::run,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        free: Self::free,
        name: type_name::<F>,
    };

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
        head.begin_poll();
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
                head.trace(|task| TraceEvent::Pending { task });
                match head.state.pause() {
                    Paused::Idle => {}
                    // SAFETY: the `Runnable` is still ours.
                    Paused::Again => unsafe { Header::reschedule(header) },
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
        head.trace(|task| TraceEvent::Completed { task });
        // Remove it from the list first, so that a joiner does not find it in the metrics.
        if head.owner.get() != UNOWNED {
            // SAFETY: the home lives while the task is in its list.
            unsafe {
                match head.home() {
                    Home::Workers(shared) => (*shared).owned.remove(header),
                    Home::Local(set) => (*set).owned.remove(header),
                    Home::Pool(_) => {}
                }
            }
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
            if matches!(head.kind.get(), Kind::Pool) && waker::task_of(&waker).is_some() {
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
            size_of::<Task<F>>()
        }
        assert_eq!(size_of::<Header>(), 64);
        assert_eq!(size_of_task(&async {}), 88);
    }
}
