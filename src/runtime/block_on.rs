//! Runs one future on the current thread, without a runtime.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use super::executor::Parker;
use super::shim::thread_cell;

/// Wakes a thread in [`block_on`].
struct Unpark(Parker);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark(None);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark(None);
    }
}

/// The parker and the waker of a thread.
struct ThreadWaker {
    unpark: Arc<Unpark>,
    waker: Waker,
}

impl ThreadWaker {
    fn new() -> ThreadWaker {
        let unpark = Arc::new(Unpark(Parker::current()));
        ThreadWaker { waker: Waker::from(unpark.clone()), unpark }
    }
}

thread_cell! {
    /// The thread's cached waker while no `block_on` uses it: a nested call makes its own. A late wake for an
    /// earlier future causes one spurious poll of the current one, which every future must tolerate.
    static THREAD_WAKER: Option<ThreadWaker> = None;
}

/// Polls `future` on this thread until it is ready, and sleeps in between.
///
/// It does not need a runtime, and does not provide one. Sockets and sleeps that are first used inside need a
/// runtime: for those call its [`Runtime::block_on`](super::Runtime::block_on) or
/// [`Handle::block_on`](super::Handle::block_on). This blocks the thread, so do not use it inside a task.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let own = THREAD_WAKER.try_with(Cell::take).ok().flatten().unwrap_or_else(ThreadWaker::new);
    let mut context = Context::from_waker(&own.waker);
    let output = loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            break output;
        }
        own.unpark.0.park();
    };
    // This fails only while the thread ends.
    let _ = THREAD_WAKER.try_with(|kept| kept.set(Some(own)));
    output
}
