//! Linux: `epoll_ctl` without EPOLLET for level-triggered entries, and a timerfd for precise timeouts and alarms.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use mio::unix::SourceFd;

use super::super::readiness::{INTERNAL, Interest};
use super::super::wait::Wait;
use super::common::{check, timeout};

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

/// The timerfd is not set.
const NEVER: u64 = u64::MAX;

/// Waits with a timeout: without one in `epoll_wait`, where arming costs half a microsecond in each wait, and with a
/// timerfd that stays set.
///
/// Most waits end because something is ready, so a deadline is waited for many times, and most deadlines that are
/// passed by are moved or cancelled. The timerfd is not touched for that: it ends one wait early when its time comes.
pub(in super::super) struct Precision {
    /// None if creating it failed (in a sandbox, or without descriptors): then mio's rounding applies.
    timer: Option<OwnedFd>,
    /// The time for which the timerfd is set, in nanoseconds of CLOCK_MONOTONIC, until a poll has reported it.
    set_for: u64,
}

impl Precision {
    /// Creates the timerfd here and not at the first wait. Some programs count the open descriptors of the
    /// process before and after some work to find leaks, and must not find ours.
    pub(in super::super) fn new(registry: &mio::Registry) -> Precision {
        Precision { timer: create(registry).ok(), set_for: NEVER }
    }

    pub(in super::super) fn poll(
        &mut self,
        poll: &mut mio::Poll,
        events: &mut mio::Events,
        wait: Wait,
    ) -> io::Result<()> {
        let timeout = match wait {
            Wait::Until { at, .. } if self.ends_by(at) => None,
            other => timeout(other),
        };
        poll.poll(events, timeout)?;
        if self.set_for != NEVER && events.iter().any(|event| event.token() == INTERNAL) {
            self.set_for = NEVER;
        }
        Ok(())
    }

    /// Makes the timerfd end a wait at `at` or before. Returns false if there is none.
    fn ends_by(&mut self, at: u64) -> bool {
        let Some(timer) = &self.timer else { return false };
        if at < self.set_for {
            if set_timer(timer, Duration::from_nanos(at.max(1)), libc::TFD_TIMER_ABSTIME).is_err() {
                return false;
            }
            self.set_for = at;
        }
        true
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
        set_timer(&self.0, after, 0)
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// Sets a timerfd. `time` is not zero, which would clear it.
fn set_timer(timer: &OwnedFd, time: Duration, flags: libc::c_int) -> io::Result<()> {
    let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let value = libc::timespec {
        tv_sec: time.as_secs() as libc::time_t,
        tv_nsec: time.subsec_nanos() as libc::c_long,
    };
    let spec = libc::itimerspec { it_interval: zero, it_value: value };
    // SAFETY: the descriptor is ours and open, `spec` is valid for the call, and no old value is asked for.
    check(unsafe { libc::timerfd_settime(timer.as_raw_fd(), flags, &spec, std::ptr::null_mut()) }).map(drop)
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
