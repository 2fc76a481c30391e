//! CPU clocks of processes: nanoseconds of user and system time over all threads, ended ones included.

use std::io;
use std::time::Duration;

/// The clock of another process, or of this one.
#[cfg(not(target_vendor = "apple"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuClock(libc::clockid_t);

#[cfg(not(target_vendor = "apple"))]
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

/// The clock of another process, or of this one. macOS has no such clock, but counts the ticks of a process.
#[cfg(target_vendor = "apple")]
#[derive(Clone, Copy, Debug)]
pub(super) struct CpuClock(i32);

#[cfg(target_vendor = "apple")]
impl CpuClock {
    pub(super) fn own() -> Self {
        CpuClock(std::process::id() as i32)
    }

    /// Fails where there is no such process.
    pub(super) fn of_process(pid: i32) -> io::Result<Self> {
        let clock = CpuClock(pid);
        clock.read().map(|_| clock)
    }

    /// CPU time used so far; fails once the process is gone.
    // `libc` marks the call as deprecated in favour of another crate.
    #[allow(deprecated)]
    pub(super) fn read(self) -> io::Result<Duration> {
        // SAFETY: a plain record of numbers, for which zero is a value.
        let mut used: libc::rusage_info_v0 = unsafe { std::mem::zeroed() };
        let mut scale = libc::mach_timebase_info { numer: 1, denom: 1 };
        // SAFETY: both are valid places for the results, the first of the kind that is named.
        let done = unsafe {
            libc::mach_timebase_info(&mut scale);
            libc::proc_pid_rusage(self.0, libc::RUSAGE_INFO_V0, (&raw mut used).cast())
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let ticks = u128::from(used.ri_user_time) + u128::from(used.ri_system_time);
        Ok(Duration::from_nanos((ticks * u128::from(scale.numer) / u128::from(scale.denom)) as u64))
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
