//! The file that the watchdog writes to.
//!
//! A write never blocks the watchdog for long, and an error is ignored: there is nobody to report it to.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// How long to wait for a full pipe or a slow terminal, in milliseconds.
const PATIENCE: i32 = 100;
/// A pipe that can be written to takes this much without blocking.
const CHUNK: usize = libc::PIPE_BUF;

#[derive(Debug)]
pub(super) enum Output {
    StandardError,
    File(OwnedFd),
}

impl Output {
    fn fd(&self) -> RawFd {
        match self {
            Output::StandardError => libc::STDERR_FILENO,
            Output::File(file) => file.as_raw_fd(),
        }
    }

    /// Writes the text. If the file takes nothing for a while, or fails, the rest is dropped.
    pub(super) fn write(&self, text: &str) {
        let (fd, mut rest) = (self.fd(), text.as_bytes());
        while !rest.is_empty() {
            let mut poll = libc::pollfd { fd, events: libc::POLLOUT, revents: 0 };
            let chunk = &rest[..rest.len().min(CHUNK)];
            // SAFETY: one entry is given, and the length of the chunk.
            let written = unsafe {
                if libc::poll(&raw mut poll, 1, PATIENCE) != 1 {
                    return;
                }
                libc::write(fd, chunk.as_ptr().cast(), chunk.len())
            };
            match usize::try_from(written) {
                Ok(written @ 1..) => rest = &rest[written..],
                _ => return,
            }
        }
    }
}
