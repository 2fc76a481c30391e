//! The part that all tasks have in common, and the right to poll one.

use std::cell::Cell;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr::{self, NonNull};
use std::task::Waker;

use super::super::blocking::RunningJob;
use super::super::clock;
use super::super::shim::UnsafeCell;
use super::super::trace::TraceEvent;
use super::state::{TaskState, Woken};
use crate::recorder::event::{TypeName, type_number};

/// `Header::owner` of a task that is in no list.
pub(super) const UNOWNED: u16 = u16::MAX;

/// The part that all tasks have in common: 64 bytes. With 24 bytes for the output of a small task that makes
/// 88, which malloc rounds to 96.
#[repr(C)]
pub(in super::super) struct Header {
    pub(super) state: TaskState,
    pub(super) vtable: &'static Vtable,
    /// The task's [`Home`], whose type is that of the vtable.
    pub(super) home: Cell<*const ()>,
    /// Neighbours in the list of live tasks. That list's lock guards them.
    pub(in super::super) links: std::cell::UnsafeCell<Links>,
    /// Rule 3 says when it may be touched.
    pub(super) join_waker: UnsafeCell<MaybeUninit<Waker>>,
    /// The fields of a [`Sample`]. The weight is 0 if the wake is not measured. Rule 5 says who may touch them.
    pub(super) sample_at: Cell<u32>,
    /// The shard of the list. Set before the task is published.
    pub(in super::super) owner: Cell<u16>,
    pub(super) sample_weight: Cell<u8>,
}

/// Where a task is queued when it is woken: the executor, a set of local tasks, or the pool, which runs it once. A task
/// points to its home without a count.
///
/// # Safety
/// All functions: the task's home is `this`, and lives (rule 5). The caller of `schedule` and `reschedule` gives up the
/// `Runnable`.
pub(in super::super) trait Home {
    const KIND: HomeKind;

    /// Queues a woken task.
    unsafe fn schedule(this: *const Self, task: Runnable);

    /// Queues a task that was woken during its poll, behind the others.
    #[inline(always)]
    unsafe fn reschedule(this: *const Self, task: Runnable) {
        // SAFETY: by contract.
        unsafe { Self::schedule(this, task) }
    }

    /// Removes a task from the list of live tasks.
    unsafe fn remove(this: *const Self, task: NonNull<Header>);

    /// The current thread is about to poll the task of a sample.
    #[inline(always)]
    unsafe fn record_delay(_this: *const Self, _sample: Sample) {}

    /// Reports an event of the task, which has this address.
    #[inline(always)]
    unsafe fn trace(_this: *const Self, _task: usize, _event: fn(usize) -> TraceEvent) {}
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum HomeKind {
    Workers,
    Local,
    /// A blocking job, queued once. It completes in its only poll, so no wake queues it again. The home is the job of
    /// the thread that runs it, and null before.
    Pool,
}

impl Home for RunningJob<'static> {
    const KIND: HomeKind = HomeKind::Pool;

    unsafe fn schedule(_: *const Self, task: Runnable) {
        drop(task);
    }

    unsafe fn remove(_: *const Self, _: NonNull<Header>) {}
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

    pub(super) fn new(at: u32, weight: u8) -> Sample {
        Sample { at, weight }
    }

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
    pub(super) run: unsafe fn(NonNull<Header>),
    /// Queues the task at its home. Consumes the `Runnable`.
    pub(super) schedule: unsafe fn(NonNull<Header>),
    /// Drops the future and completes with `Cancelled`; consumes the `Runnable`.
    pub(super) cancel: unsafe fn(NonNull<Header>),
    /// Moves the output of a complete task, if it is the caller's, to a `*mut Result<T, JoinError>`.
    pub(super) take_output: unsafe fn(NonNull<Header>, *mut ()),
    /// Drops the output of a complete task, if it is the caller's, in place.
    pub(super) drop_output: unsafe fn(NonNull<Header>),
    /// Frees the memory, after future and output were dropped and the last reference is gone.
    pub(super) free: unsafe fn(NonNull<Header>),
    pub(super) kind: HomeKind,
    /// The name of the future's type.
    pub(super) name: TypeName,
}

/// The exclusive right, and the duty, to poll a scheduled task once. Dropping it cancels the task.
pub(in super::super) struct Runnable(pub(super) NonNull<Header>);

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

    /// Notes that the job has its output. The thread that runs the job calls this.
    pub(super) fn job_ends(&self) {
        if self.vtable.kind == HomeKind::Pool
            // SAFETY: null, or the job of the run that we are in (rule 5).
            && let Some(job) = unsafe { self.home.get().cast::<RunningJob<'_>>().as_ref() }
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
        unsafe { (header.as_ref().vtable.schedule)(header) }
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
}
