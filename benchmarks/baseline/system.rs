//! The few system calls that the standard library does not wrap.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::fd::RawFd;

pub const EPOLLIN: u32 = 1;
pub const EPOLLOUT: u32 = 4;
pub const EPOLLET: u32 = 1 << 31;
const EPOLL_CTL_ADD: c_int = 1;
const PR_SET_PDEATHSIG: c_int = 1;
const SIGKILL: u64 = 9;
const CLOCK_PROCESS_CPUTIME_ID: c_int = 2;
pub const MSG_DONTWAIT: c_int = 0x40;
pub const RTLD_NOW: c_int = 2;
pub const RTLD_GLOBAL: c_int = 0x100;

#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
#[derive(Clone, Copy)]
pub struct Event {
    events: u32,
    data: u64,
}

impl Event {
    pub fn fd(&self) -> RawFd {
        self.data as RawFd
    }
}

#[repr(C)]
pub struct IoVec {
    pub base: *mut u8,
    pub length: usize,
}

/// `struct msghdr` of <sys/socket.h> on 64-bit Linux.
#[repr(C)]
pub struct Header {
    pub name: *mut c_void,
    pub name_length: u32,
    pub vectors: *mut IoVec,
    pub vector_count: usize,
    pub control: *mut c_void,
    pub control_length: usize,
    pub flags: c_int,
}

/// `struct mmsghdr`.
#[repr(C)]
pub struct Message {
    pub header: Header,
    pub length: u32,
}

unsafe extern "C" {
    fn epoll_create1(flags: c_int) -> c_int;
    fn epoll_ctl(set: c_int, operation: c_int, fd: c_int, event: *mut Event) -> c_int;
    fn epoll_wait(set: c_int, events: *mut Event, count: c_int, timeout: c_int) -> c_int;
    fn sched_setaffinity(pid: c_int, size: usize, mask: *const u64) -> c_int;
    fn clock_gettime(clock: c_int, time: *mut [i64; 2]) -> c_int;
    fn prctl(option: c_int, value: u64, a: u64, b: u64, c: u64) -> c_int;
    pub fn recvmmsg(
        fd: c_int,
        messages: *mut Message,
        count: u32,
        flags: c_int,
        timeout: *mut c_void,
    ) -> c_int;
    pub fn sendmmsg(fd: c_int, messages: *mut Message, count: u32, flags: c_int) -> c_int;
    pub fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    pub fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Ends this process when its parent, the benchmark, ends.
pub fn die_with_parent() {
    // SAFETY: plain values.
    unsafe { prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) };
}

/// Keeps this thread on the core; -1 leaves it alone.
pub fn pin(cpu: i64) {
    if (0..64).contains(&cpu) {
        // SAFETY: a live mask of the size that is given.
        unsafe { sched_setaffinity(0, size_of::<u64>(), &(1u64 << cpu)) };
    }
}

/// The CPU time of this process.
pub fn cpu_seconds() -> f64 {
    let mut time = [0; 2];
    // SAFETY: room for a `timespec`, which is two 64-bit numbers on 64-bit Linux.
    unsafe { clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time[0] as f64 + time[1] as f64 * 1e-9
}

/// An epoll set that lives as long as the process.
pub struct Epoll {
    set: c_int,
    events: Vec<Event>,
}

impl Epoll {
    pub fn new() -> io::Result<Epoll> {
        // SAFETY: the call takes a plain flag.
        let set = unsafe { epoll_create1(0) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Epoll { set, events: vec![Event { events: 0, data: 0 }; 1024] })
    }

    pub fn add(&self, fd: RawFd, events: u32) -> io::Result<()> {
        let mut event = Event { events, data: fd as u64 };
        // SAFETY: an epoll set, an open descriptor and a live event.
        if unsafe { epoll_ctl(self.set, EPOLL_CTL_ADD, fd, &mut event) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Waits until descriptors are ready, and returns their events.
    pub fn wait(&mut self) -> &[Event] {
        // SAFETY: as many events as there is room for.
        let count = unsafe { epoll_wait(self.set, self.events.as_mut_ptr(), self.events.len() as c_int, -1) };
        &self.events[..count.max(0) as usize]
    }
}
