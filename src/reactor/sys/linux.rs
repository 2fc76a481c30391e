//! Linux: `epoll_ctl` without EPOLLET for level-triggered entries, and a timerfd for precise timeouts and alarms.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;

use super::super::Interest;
use super::super::poller::INTERNAL;
use super::check;

pub(in super::super) fn set_level(
    poll: RawFd,
    fd: RawFd,
    token: usize,
    interest: Interest,
    registered: bool,
) -> io::Result<()> {
    let operation = if registered { libc::EPOLL_CTL_MOD } else { libc::EPOLL_CTL_ADD };
    // No EPOLLRDHUP: a half-closed peer is readable anyway, and a registration for writing alone would fire
    // forever.
    let mut mask = 0;
    if interest.is_read() {
        mask |= libc::EPOLLIN;
    }
    if interest.is_write() {
        mask |= libc::EPOLLOUT;
    }
    control(poll, operation, fd, mask, token)
}

/// EPOLLEXCLUSIVE: an arrival wakes the first poller of the file's wait queue that waits (`__wake_up_common` in
/// kernel/sched/wait.c, `ep_poll_callback` in fs/eventpoll.c). Adding puts the poller at the end of the queue.
pub(in super::super) fn add_exclusive(poll: RawFd, fd: RawFd, token: usize) -> io::Result<()> {
    control(poll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, token)
}

fn control(poll: RawFd, operation: libc::c_int, fd: RawFd, mask: libc::c_int, token: usize) -> io::Result<()> {
    // mio keeps its token in the same 64 bits.
    let mut event = libc::epoll_event { events: mask as u32, u64: token as u64 };
    // SAFETY: `event` is valid for the call, which copies it; a stale descriptor number is an error, not a hazard.
    check(unsafe { libc::epoll_ctl(poll, operation, fd, &mut event) }).map(drop)
}

/// A read stops at a message with descriptors or with the sender's credentials (`unix_stream_read_generic` in
/// net/unix/af_unix.c). The flag says that they were left out.
pub(in super::super) fn may_be_cut(flags: libc::c_int) -> bool {
    flags & libc::MSG_CTRUNC != 0
}

/// Shorter waits use the timerfd. Longer ones mostly use epoll's own timeout, which costs no extra call.
const COARSE: Duration = Duration::from_millis(10);

/// Returns how much of a long wait is left to the timerfd.
///
/// The kernel lets a poll's timeout run over by a thousandth of it, by a two-hundredth for a process with a
/// positive nice value, and by 100 ms at most (`select_estimate_accuracy` in fs/select.c).
fn margin(wait: Duration) -> Duration {
    (wait / 200).clamp(Duration::from_millis(1), Duration::from_millis(100))
}

/// Waits with a timeout: with `epoll_wait` as long as that is accurate enough, then with a timerfd.
pub(in super::super) struct Precision {
    /// None if creating it failed (in a sandbox, or without descriptors): then mio's rounding applies.
    timer: Option<OwnedFd>,
}

impl Precision {
    /// Creates the timerfd here and not at the first wait. Some programs count the open descriptors of the
    /// process before and after some work to find leaks, and must not find ours.
    pub(in super::super) fn new(registry: &mio::Registry) -> Precision {
        Precision { timer: create(registry).ok() }
    }

    pub(in super::super) fn poll(
        &mut self,
        poll: &mut mio::Poll,
        events: &mut mio::Events,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let timeout = match timeout {
            Some(wait) if wait >= COARSE => Some(whole_millis(wait - margin(wait))),
            Some(wait) if !wait.is_zero() && self.arm(wait) => None,
            other => other,
        };
        poll.poll(events, timeout)
    }

    /// Makes the poller return after `wait` (positive, below [`COARSE`]). Returns false if there is no timerfd.
    ///
    /// A timer left from a poll that I/O ended early is either replaced, or ends one later poll early.
    fn arm(&self, wait: Duration) -> bool {
        self.timer.as_ref().is_some_and(|timer| set_timer(timer, wait).is_ok())
    }
}

/// A descriptor that becomes ready once after a time. For an edge-triggered registration: it never has to be read.
#[derive(Debug)]
pub struct Alarm(OwnedFd);

impl Alarm {
    /// An alarm that is not set.
    ///
    /// # Errors
    /// When the system has no descriptor or memory left; `Unsupported` where there are no such descriptors.
    pub fn new() -> io::Result<Alarm> {
        new_timer().map(Alarm)
    }

    /// Makes the descriptor ready after this time, which is not zero. It replaces the time that was set before.
    ///
    /// # Errors
    /// Those of `timerfd_settime(2)`.
    pub fn set(&self, after: Duration) -> io::Result<()> {
        set_timer(&self.0, after)
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

fn set_timer(timer: &OwnedFd, after: Duration) -> io::Result<()> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec {
        tv_sec: after.as_secs() as libc::time_t,
        tv_nsec: after.subsec_nanos() as libc::c_long,
    };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: the descriptor is ours and open, `spec` is valid for the call, and no old value is asked for.
    check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &spec, std::ptr::null_mut()) }).map(drop)
}

/// Creates and registers the timerfd. It is registered edge-triggered, and each arming resets the expiry count,
/// so it never has to be read.
fn create(registry: &mio::Registry) -> io::Result<OwnedFd> {
    let timer = new_timer()?;
    registry.register(&mut SourceFd(&timer.as_raw_fd()), INTERNAL, mio::Interest::READABLE)?;
    Ok(timer)
}

fn new_timer() -> io::Result<OwnedFd> {
    if cfg!(miri) {
        // Miri has no timerfd and would stop here.
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: no pointers are involved.
    let fd = check(unsafe {
        libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_NONBLOCK | libc::TFD_CLOEXEC)
    })?;
    // SAFETY: the descriptor was just created, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn whole_millis(wait: Duration) -> Duration {
    // epoll's timeout is an i32. A wait of 24 days or more ends early, and the caller polls again.
    let millis = wait.as_millis().min(i32::MAX as u128);
    Duration::from_millis(millis as u64)
}
