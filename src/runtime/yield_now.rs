//! Yields once.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Lets the other ready tasks run first, by moving this task to the back of the queue once.
pub fn yield_now() -> impl Future<Output = ()> + Send + Sync + Unpin {
    YieldNow { yielded: false }
}

#[derive(Debug)]
struct YieldNow {
    yielded: bool,
}

impl Future for YieldNow {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
