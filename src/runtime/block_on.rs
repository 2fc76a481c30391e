//! Running one future on the current thread, without a runtime.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::executor::Parker;
use super::shim::thread_cell;

/// Ends the sleep of a thread in [`block_on`].
struct Unpark(Parker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark(None);
    }
}

/// What a thread sleeps on, with its waker.
struct Bed {
    unpark: Arc<Unpark>,
    waker: Waker,
}

impl Bed {
    fn new() -> Bed {
        let unpark = Arc::new(Unpark(Parker::current()));
        Bed { waker: Waker::from(unpark.clone()), unpark }
    }
}

thread_cell! {
    /// The thread's bed while no `block_on` uses it: one that is nested makes its own. A wake for an earlier future
    /// that comes late costs the present one a poll in vain, which every future has to bear.
    static BED: Option<Bed> = None;
}

/// Polls `future` on this thread until it is ready, and sleeps in between.
///
/// It needs no runtime, and gives none: sockets and sleeps that are first used inside need the runtime whose
/// [`Runtime::block_on`](super::Runtime::block_on) or [`Handle::block_on`](super::Handle::block_on) to call
/// instead. Blocks the thread: not for use inside a task.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let bed = BED.try_with(Cell::take).ok().flatten().unwrap_or_else(Bed::new);
    let mut context = Context::from_waker(&bed.waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break output;
        }
        bed.unpark.0.park();
    };
    // Fails at the end of a thread only.
    let _ = BED.try_with(|kept| kept.set(Some(bed)));
    output
}
