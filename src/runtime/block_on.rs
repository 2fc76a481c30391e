//! Running one future on the current thread, without a runtime.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::executor::Parker;

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

/// Polls `future` on this thread until it is ready, and sleeps in between.
///
/// It needs no runtime, and gives none: sockets and sleeps that are first used inside need the runtime whose
/// [`Runtime::block_on`](super::Runtime::block_on) or [`Handle::block_on`](super::Handle::block_on) to call
/// instead. Blocks the thread: not for use inside a task.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let unpark = Arc::new(Unpark(Parker::current()));
    let waker = Waker::from(unpark.clone());
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        unpark.0.park();
    }
}
