//! The handles of a task: they await it and stop it.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::ptr::NonNull;
use std::task::{Context, Poll};

use super::super::coop;
use super::header::Header;
use super::state::{JoinSlot, Woken};

/// Why a task has no output.
#[derive(Debug)]
pub enum JoinError {
    /// It was aborted, or its runtime was shut down.
    Cancelled,
    /// It panicked.
    Panic(TaskPanic),
}

/// The payload that a task panicked with.
pub struct TaskPanic(Box<dyn Any + Send>);

// SAFETY: through a shared reference the payload is only asked for its type, and read if it is a `&str` or a
// `String`. Any number of threads may do that.
unsafe impl Sync for TaskPanic {}

impl TaskPanic {
    pub(super) fn new(payload: Box<dyn Any + Send>) -> TaskPanic {
        TaskPanic(payload)
    }

    /// The text of the panic, if it has one.
    pub fn message(&self) -> Option<&str> {
        let payload = &*self.0;
        payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
    }

    /// Returns the payload, as [`std::panic::catch_unwind`] does.
    pub fn into_payload(self) -> Box<dyn Any + Send> {
        self.0
    }

    /// Resumes the panic on this thread, without another message on stderr.
    pub fn resume(self) -> ! {
        std::panic::resume_unwind(self.0)
    }
}

impl fmt::Debug for TaskPanic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TaskPanic").field(&self.message().unwrap_or("..")).finish()
    }
}

impl JoinError {
    /// Whether the task was aborted or its runtime shut down.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, JoinError::Cancelled)
    }

    /// Whether the task panicked.
    pub fn is_panic(&self) -> bool {
        matches!(self, JoinError::Panic(_))
    }

    /// The text of the panic, if it has one.
    pub fn panic_message(&self) -> Option<&str> {
        match self {
            JoinError::Cancelled => None,
            JoinError::Panic(panic) => panic.message(),
        }
    }
}

impl fmt::Display for JoinError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.panic_message()) {
            (JoinError::Cancelled, _) => f.write_str("the task was cancelled"),
            (JoinError::Panic(_), Some(message)) => write!(f, "the task panicked: {message}"),
            (JoinError::Panic(_), None) => f.write_str("the task panicked"),
        }
    }
}

impl Error for JoinError {}

impl From<JoinError> for io::Error {
    fn from(error: JoinError) -> io::Error {
        io::Error::other(error)
    }
}

/// Awaits a spawned task: a future of its output.
///
/// Dropping the handle detaches the task, which runs on. The handle is cancel-safe, may be awaited on any thread
/// and any executor, and must not be polled again after it was ready.
pub struct JoinHandle<T> {
    task: AbortHandle,
    taken: bool,
    output: PhantomData<T>,
}

// SAFETY: the handle can only move a `T` to its thread; the header is made for sharing.
unsafe impl<T: Send> Send for JoinHandle<T> {}
// SAFETY: a shared reference can only abort and read the state, and both are atomic.
unsafe impl<T: Send> Sync for JoinHandle<T> {}

impl<T> Unpin for JoinHandle<T> {}

impl<T> JoinHandle<T> {
    /// # Safety
    /// The caller passes one reference and the JOIN_INTEREST of a task whose output is `T`.
    pub(super) unsafe fn from_raw(task: NonNull<Header>) -> JoinHandle<T> {
        JoinHandle { task: AbortHandle { task }, taken: false, output: PhantomData }
    }

    /// Asks the task to stop: a worker drops its future before its next poll, and the handle yields
    /// [`JoinError::Cancelled`]. It has no effect on a task that is complete, or that completes in its current
    /// poll. It does not interrupt a running blocking job. Returns at once; await the handle to know when the
    /// task has ended.
    pub fn abort(&self) {
        self.task.abort();
    }

    /// A handle that can stop the task but not await it.
    pub fn abort_handle(&self) -> AbortHandle {
        self.task.clone()
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    fn take(&mut self) -> Poll<Result<T, JoinError>> {
        self.taken = true;
        let mut output = MaybeUninit::<Result<T, JoinError>>::uninit();
        // SAFETY: the task is complete (all callers saw that), and its output has this type and is still there
        // (`taken` was false). The call writes it.
        unsafe {
            (self.task.header().vtable.take_output)(self.task.task, output.as_mut_ptr().cast());
            Poll::Ready(output.assume_init())
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, JoinError>;

    /// # Panics
    /// If polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        assert!(!self.taken, "a JoinHandle was polled after it was ready");
        coop::spend(cx, |cx| self.poll_output(cx))
    }
}

impl<T> JoinHandle<T> {
    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, JoinError>> {
        // SAFETY: our reference keeps the task alive.
        let header = unsafe { self.task.task.as_ref() };
        let now = header.state.load();
        if now.is_complete() {
            return self.take();
        }
        let slot = &header.join_waker;
        if now.has_join_waker() {
            // SAFETY: the slot is set, and both sides only read it now (rule 3). If the completer has taken the
            // waker meanwhile, its bits are still there, and are only compared.
            if slot.with(|slot| unsafe { (*slot).assume_init_ref().will_wake(cx.waker()) }) {
                return Poll::Pending;
            }
            if header.state.retract_join_waker() == JoinSlot::Complete {
                return self.take();
            }
            // SAFETY: the slot was taken back, so it is ours and set.
            slot.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
        // SAFETY: JOIN_WAKER is clear, so the slot is ours, and empty.
        slot.with_mut(|slot| unsafe { (*slot).write(cx.waker().clone()) });
        if header.state.publish_join_waker() == JoinSlot::Complete {
            // SAFETY: the completer found JOIN_WAKER clear, so the waker stayed ours.
            slot.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            return self.take();
        }
        Poll::Pending
    }
}

impl<T> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        let header = self.task.header();
        let detached = header.state.detach();
        if detached.drop_waker {
            // SAFETY: `detach` took the slot back, and it is set.
            header.join_waker.with_mut(|slot| unsafe { (*slot).assume_init_drop() });
        }
        if detached.drop_output && !self.taken {
            // SAFETY: the task is complete, and its output is ours and still there.
            let drop_output = || unsafe { (header.vtable.drop_output)(self.task.task) };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(drop_output))
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoinHandle").field("finished", &self.is_finished()).finish()
    }
}

/// Stops a task. Dropping it has no effect, neither on the task nor on its output.
pub struct AbortHandle {
    task: NonNull<Header>,
}

// SAFETY: abort and the reference count are atomic.
unsafe impl Send for AbortHandle {}
// SAFETY: abort and the reference count are atomic.
unsafe impl Sync for AbortHandle {}

impl AbortHandle {
    fn header(&self) -> &Header {
        // SAFETY: our reference keeps the task alive.
        unsafe { self.task.as_ref() }
    }

    /// As [`JoinHandle::abort`].
    pub fn abort(&self) {
        if self.header().state.cancel() == Woken::Schedule {
            // SAFETY: WAKES has just gone from 0 to 1.
            unsafe { Header::schedule(self.task) };
        }
    }

    /// Whether the task has ended.
    pub fn is_finished(&self) -> bool {
        self.header().state.load().is_complete()
    }
}

impl Clone for AbortHandle {
    fn clone(&self) -> AbortHandle {
        self.header().state.retain();
        AbortHandle { task: self.task }
    }
}

impl Drop for AbortHandle {
    fn drop(&mut self) {
        // SAFETY: our reference, which is not used again.
        unsafe { Header::release(self.task) }
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("finished", &self.is_finished()).finish()
    }
}
