//! A number of permits that tasks acquire and release.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::poison::unpoisoned;
use crate::runtime::coop;
use crate::runtime::shim::Mutex;
use crate::runtime::wakers::{renew, wake_all};
use crate::wait_queue::{Left, Place, WaitQueue};

/// Hands out permits, first come, first served. A task that asks for many is not overtaken by tasks that ask
/// for few.
#[derive(Debug)]
pub struct Semaphore {
    state: Mutex<PermitState>,
}

#[derive(Debug)]
struct PermitState {
    permits: usize,
    waiting: WaitQueue<PermitWaiter>,
}

#[derive(Debug)]
struct PermitWaiter {
    permits: usize,
    waker: Waker,
}

impl Semaphore {
    /// Creates a semaphore with `permits` permits.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore { state: Mutex::new(PermitState { permits, waiting: WaitQueue::default() }) }
    }

    /// How many permits are free.
    pub fn available(&self) -> usize {
        unpoisoned(self.state.lock()).permits
    }

    /// Waits for `permits` permits at once. The task joins the line at the first poll. Cancel-safe, but a
    /// cancelled wait loses its place in the line. A task that asks for more permits than there ever are waits
    /// forever, and so do the tasks behind it.
    pub fn acquire(&self, permits: usize) -> Acquire<'_> {
        Acquire { semaphore: self, permits, place: None }
    }

    /// As [`Semaphore::acquire`], with a permit that owns a reference to the semaphore.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use wakeloop::runtime::{Runtime, spawn, sync::Semaphore};
    ///
    /// let rt = Runtime::new()?;
    /// rt.block_on(async {
    ///     // At most ten at a time.
    ///     let limit = Arc::new(Semaphore::new(10));
    ///     for _ in 0..100 {
    ///         let permit = limit.clone().acquire_owned(1).await;
    ///         spawn(async move {
    ///             // ... serves a connection ...
    ///             drop(permit);
    ///         });
    ///     }
    ///     // All are back when all tasks are done.
    ///     limit.acquire(10).await;
    /// });
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn acquire_owned(self: Arc<Self>, permits: usize) -> OwnedPermit {
        self.acquire(permits).await.forget();
        OwnedPermit { semaphore: self, permits }
    }

    /// Takes `permits` if they are free and nobody is in line.
    pub fn try_acquire(&self, permits: usize) -> Option<Permit<'_>> {
        let mut state = unpoisoned(self.state.lock());
        if !state.waiting.is_empty() || state.permits < permits {
            return None;
        }
        state.permits -= permits;
        Some(Permit { semaphore: self, permits })
    }

    /// As [`Semaphore::try_acquire`], with a permit that owns a reference to the semaphore.
    pub fn try_acquire_owned(self: Arc<Self>, permits: usize) -> Option<OwnedPermit> {
        self.try_acquire(permits)?.forget();
        Some(OwnedPermit { semaphore: self, permits })
    }

    /// Adds permits: new ones, or those of a [`Permit`] that was forgotten. The count saturates.
    pub fn release(&self, permits: usize) {
        let mut state = unpoisoned(self.state.lock());
        state.permits = state.permits.saturating_add(permits);
        let mut woken = Vec::new();
        while let Some(&PermitWaiter { permits, .. }) = state.waiting.first()
            && permits <= state.permits
        {
            state.permits -= permits;
            woken.extend(state.waiting.notify_first().map(|(_, waiting)| waiting.waker));
        }
        drop(state);
        wake_all(woken);
    }
}

/// The future of [`Semaphore::acquire`].
#[derive(Debug)]
#[must_use = "a permit is taken when this is awaited"]
pub struct Acquire<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
    place: Option<Place>,
}

impl<'a> Future for Acquire<'a> {
    type Output = Permit<'a>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Permit<'a>> {
        coop::spend(cx, |cx| self.poll_permit(cx))
    }
}

impl<'a> Acquire<'a> {
    fn poll_permit(&mut self, cx: &mut Context<'_>) -> Poll<Permit<'a>> {
        let (semaphore, permits) = (self.semaphore, self.permits);
        let mut state = unpoisoned(semaphore.state.lock());
        match self.place {
            None => {
                if !state.waiting.is_empty() || state.permits < permits {
                    let place = state.waiting.join(None, PermitWaiter { permits, waker: cx.waker().clone() });
                    drop(state);
                    self.place = Some(place);
                    return Poll::Pending;
                }
                state.permits -= permits;
            }
            Some(place) => {
                if let Some(waiting) = state.waiting.waiter(place) {
                    let replaced = renew(&mut waiting.waker, cx.waker());
                    drop(state);
                    drop(replaced);
                    return Poll::Pending;
                }
                state.waiting.consume(place);
                drop(state);
                self.place = None;
            }
        }
        Poll::Ready(Permit { semaphore, permits })
    }
}

impl Drop for Acquire<'_> {
    fn drop(&mut self) {
        if let Some(place) = self.place.take() {
            let left = unpoisoned(self.semaphore.state.lock()).waiting.leave(place);
            // Granted but not taken: give the permits back. Not granted: the next in line may need fewer.
            self.semaphore.release(if matches!(left, Left::Notified) { self.permits } else { 0 });
        }
    }
}

/// Permits of a [`Semaphore`]. Dropping this releases them.
#[derive(Debug)]
pub struct Permit<'a> {
    semaphore: &'a Semaphore,
    permits: usize,
}

/// As [`Permit`], but it owns a reference to its semaphore.
#[derive(Debug)]
pub struct OwnedPermit {
    semaphore: Arc<Semaphore>,
    permits: usize,
}

macro_rules! permit {
    ($($permit:ty),*) => {$(
        impl $permit {
            /// Drops this without releasing the permits.
            pub fn forget(mut self) {
                self.permits = 0;
            }
        }

        impl Drop for $permit {
            fn drop(&mut self) {
                if self.permits > 0 {
                    self.semaphore.release(self.permits);
                }
            }
        }
    )*};
}

permit! { Permit<'_>, OwnedPermit }
