//! The heart of every async runtime, in forty lines: a waker that ends a sleep, and a loop that polls.
//!
//! `cargo run --example block_on --no-default-features`

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use wakeloop::runtime::sync::oneshot;

/// Waking a future that this thread waits for ends the thread's sleep.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // An unpark that came before the park makes it return at once: no wake is lost.
            Poll::Pending => thread::park(),
        }
    }
}

fn main() {
    let (sender, receiver) = oneshot::channel();
    let helper = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        sender.send("hello from another thread")
    });
    println!("{:?}", block_on(receiver));
    helper.join().expect("the helper does not panic").expect("we waited for it");
}
