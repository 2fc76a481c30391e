//! How the wait of a read for data ends when the read is cancelled.
//!
//! The thread of the pool polls the descriptor and one of a pair of sockets, and the task has the other. If there is no
//! descriptor for a pair, the thread looks from time to time whether the task still waits.

use std::io;
use std::net::Shutdown;
use std::os::fd::RawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};

use super::sys;

/// The time between two looks, in milliseconds.
const PERIOD: i32 = 20;

/// Ends the wait when it is dropped.
#[derive(Debug)]
pub(super) enum Canceller {
    Socket(UnixStream),
    Waits(#[expect(dead_code, reason = "it is there to be dropped")] Arc<()>),
}

impl Drop for Canceller {
    fn drop(&mut self) {
        if let Canceller::Socket(socket) = self {
            // A child that was forked meanwhile may have the descriptor too, so to close it would end nothing.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// The thread's side.
#[derive(Debug)]
pub(super) enum Cancelled {
    Socket(UnixStream),
    Waits(Weak<()>),
}

pub(super) fn pair() -> (Cancelled, Canceller) {
    if let Ok((thread, task)) = UnixStream::pair() {
        return (Cancelled::Socket(thread), Canceller::Socket(task));
    }
    let waits = Arc::new(());
    (Cancelled::Waits(Arc::downgrade(&waits)), Canceller::Waits(waits))
}

impl Cancelled {
    /// Waits until there is something to read. Returns false if the read was cancelled.
    pub(super) fn wait_readable(&self, fd: RawFd) -> io::Result<bool> {
        match self {
            Cancelled::Socket(socket) => sys::wait_readable(fd, socket),
            Cancelled::Waits(task) => loop {
                let is_readable = sys::is_readable_within(fd, PERIOD)?;
                if is_readable || task.strong_count() == 0 {
                    break Ok(task.strong_count() > 0);
                }
            },
        }
    }
}
