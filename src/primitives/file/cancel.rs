//! How the wait of a read for data ends when the read is cancelled.
//!
//! The thread of the pool polls the descriptor and the reading end of a pipe, and the task has the other end. If there
//! is no descriptor for a pipe, the thread looks from time to time whether the task still waits.

use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use super::sys;

/// The time between two looks, in milliseconds.
const PERIOD: i32 = 20;

/// Ends the wait when it is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "it is there to be dropped")]
pub(super) enum Canceller {
    Pipe(PipeWriter),
    Waits(Arc<()>),
}

/// The thread's side.
#[derive(Debug)]
pub(super) enum Cancelled {
    Pipe(PipeReader),
    Waits(Weak<()>),
}

pub(super) fn pair() -> (Cancelled, Canceller) {
    if let Ok((reader, writer)) = io::pipe() {
        return (Cancelled::Pipe(reader), Canceller::Pipe(writer));
    }
    let waits = Arc::new(());
    (Cancelled::Waits(Arc::downgrade(&waits)), Canceller::Waits(waits))
}

impl Cancelled {
    /// Waits until there is something to read. Returns false if the read was cancelled.
    pub(super) fn wait_readable(&self, fd: RawFd) -> io::Result<bool> {
        match self {
            Cancelled::Pipe(reader) => sys::wait_readable(fd, reader),
            Cancelled::Waits(task) => loop {
                let is_readable = sys::is_readable_within(fd, PERIOD)?;
                if is_readable || task.strong_count() == 0 {
                    break Ok(task.strong_count() > 0);
                }
            },
        }
    }
}
