//! How many bytes have to arrive before the poller reports a TCP socket as readable: `SO_RCVLOWAT`.
//!
//! While a read waits for many bytes, a smaller number of them is of no use to it. So the mark is raised for the time of
//! the wait, and the loop does not wake for each piece that arrives. What holds:
//!
//! 1. The mark is never higher than what the waiting read still needs, or the socket would not be reported when the last
//!    of it arrives. So each receive that leaves the read waiting lowers the mark.
//! 2. Without such a read the mark is 1, as it is on a new socket. When the mark is lowered, the kernel reports what is
//!    there already.
//! 3. The end of the stream and errors are reported in any case, and so is a full receive buffer.
//!
//! The kernel enlarges the receive buffer to hold what the mark asks for (`tcp_set_rcvlowat`), unless the program has set
//! `SO_RCVBUF`: then it lowers the mark to half of the buffer, and the sender would have to pause at each. Such a socket
//! keeps the mark 1.

use std::cell::Cell;
use std::mem::size_of_val;
use std::os::fd::RawFd;

use libc::c_int;

use crate::event_loop::sock::attempt::socket_option;

/// For fewer missing bytes, raising the mark and lowering it again would cost more than it saves.
pub(crate) const LONG: usize = 128 * 1024;
/// For more, the kernel would hold so much data that it leaves the processor's cache before it is copied.
const MOST: usize = 1024 * 1024;

/// The mark of a socket, as it was last set.
#[derive(Debug)]
pub(super) struct LowWater(Cell<Mark>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// 1, and it was never another.
    New,
    Set(c_int),
    /// 1, and it cannot be another.
    Fixed,
}

impl LowWater {
    pub(super) fn new(family: c_int) -> LowWater {
        let may_change = cfg!(target_os = "linux") && matches!(family, libc::AF_INET | libc::AF_INET6);
        LowWater(Cell::new(if may_change { Mark::New } else { Mark::Fixed }))
    }

    /// Is the mark higher than 1?
    #[inline(always)]
    pub(super) fn is_raised(&self) -> bool {
        matches!(self.0.get(), Mark::Set(2..))
    }

    /// Sets the mark for a read that still needs `missing` bytes; 0 if no read waits, or if any number is enough.
    #[inline(always)]
    pub(super) fn follow(&self, missing: usize, descriptor: impl FnOnce() -> RawFd) {
        if missing >= LONG || self.is_raised() {
            self.change(missing, descriptor());
        }
    }

    #[inline(never)]
    fn change(&self, missing: usize, fd: RawFd) {
        let wanted = if missing < LONG { 1 } else { missing.min(MOST) as c_int };
        let now = self.0.get();
        if matches!(now, Mark::Fixed) || now == Mark::Set(wanted) {
            return;
        }
        self.0.set(if set(fd, wanted) && (now != Mark::New || has(fd, wanted)) {
            Mark::Set(wanted)
        } else {
            set(fd, 1);
            Mark::Fixed
        });
    }
}

fn set(fd: RawFd, bytes: c_int) -> bool {
    let size = size_of_val(&bytes) as libc::socklen_t;
    // SAFETY: the value is an int of that size. A stale descriptor number is an error, not a hazard.
    unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const bytes).cast(), size) == 0 }
}

/// Has the kernel set the mark as it was asked to?
fn has(fd: RawFd, bytes: c_int) -> bool {
    socket_option(fd, libc::SO_RCVLOWAT).is_ok_and(|found| found >= bytes)
}
