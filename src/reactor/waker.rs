//! Ends a poll from another thread.

use std::fmt;
use std::io;

use super::Token;

/// Makes a blocked or the next [`poll`](super::Poller::poll) return with an event under the waker's token.
///
/// `Send` and `Sync`; wakes that come before the poll notices merge into one event. One waker per poller: share
/// it by reference or `Arc`.
pub struct Waker(mio::Waker);

impl Waker {
    pub(super) fn new(registry: &mio::Registry, token: Token) -> io::Result<Waker> {
        mio::Waker::new(registry, mio::Token(token.0)).map(Waker)
    }

    /// Wakes the poller: one system call, from any thread.
    ///
    /// # Errors
    /// Those of writing to the eventfd or kqueue; in practice there are none.
    pub fn wake(&self) -> io::Result<()> {
        self.0.wake()
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reactor::Waker")
    }
}
