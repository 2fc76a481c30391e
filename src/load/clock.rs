//! CPU clocks of processes: nanoseconds of user and system time over all threads, ended ones included.

use std::io;
use std::time::Duration;

/// The clock of another process, or of this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuClock(libc::clockid_t);

impl CpuClock {
    pub(super) fn own() -> Self {
        CpuClock(libc::CLOCK_PROCESS_CPUTIME_ID)
    }

    /// Fails where there is no such process.
    pub(super) fn of_process(pid: i32) -> io::Result<Self> {
        let mut id = 0;
        // SAFETY: `id` is a valid place for the result.
        match unsafe { libc::clock_getcpuclockid(pid, &mut id) } {
            0 => Ok(CpuClock(id)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// CPU time used so far; fails once the process is gone.
    pub(super) fn read(self) -> io::Result<Duration> {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place for the result.
        if unsafe { libc::clock_gettime(self.0, &mut time) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_clock_by_pid_is_the_own_clock() {
        let by_pid = CpuClock::of_process(std::process::id() as i32).expect("this process exists");
        let before = CpuClock::own().read().expect("own clock");
        let between = by_pid.read().expect("clock by pid");
        assert!(before <= between && between <= CpuClock::own().read().expect("own clock"));
    }

    #[test]
    fn no_clock_without_a_process() {
        // Above the kernel's limit for process ids, 2^22.
        assert!(CpuClock::of_process(1 << 23).is_err());
    }
}
