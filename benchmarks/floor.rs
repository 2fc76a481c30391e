//! The floor of the echo scenarios: one thread, one edge-triggered epoll set, one buffer.
//!
//! `floor CPU` listens on a port of its choice, prints `{"port": N}` and serves until it is killed. Built by
//! `floor.py` with plain rustc, hence the declarations by hand. Linux only.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

const EPOLLIN: u32 = 1;
const EPOLLOUT: u32 = 4;
const EPOLLET: u32 = 1 << 31;
const EPOLL_CTL_ADD: i32 = 1;
const PR_SET_PDEATHSIG: i32 = 1;
const SIGKILL: u64 = 9;

#[repr(C)]
#[cfg_attr(target_arch = "x86_64", repr(packed))]
#[derive(Clone, Copy)]
struct Event {
    events: u32,
    data: u64,
}

unsafe extern "C" {
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(set: i32, operation: i32, fd: i32, event: *mut Event) -> i32;
    fn epoll_wait(set: i32, events: *mut Event, count: i32, timeout: i32) -> i32;
    fn sched_setaffinity(pid: i32, size: usize, mask: *const u64) -> i32;
    fn prctl(option: i32, value: u64, a: u64, b: u64, c: u64) -> i32;
}

struct Connection {
    stream: TcpStream,
    /// What the socket did not take yet.
    rest: Vec<u8>,
}

impl Connection {
    /// Reads until the socket is drained and sends back what came. False: the connection is over.
    fn serve(&mut self, buffer: &mut [u8]) -> bool {
        if !self.flush() {
            return false;
        }
        while self.rest.is_empty() {
            let count = match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            };
            let sent = match self.stream.write(&buffer[..count]) {
                Ok(sent) => sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(_) => return false,
            };
            self.rest.extend_from_slice(&buffer[sent..count]);
            if !self.flush() {
                return false;
            }
            // A short read has drained the socket: the next edge will tell.
            if count < buffer.len() {
                return true;
            }
        }
        true
    }

    fn flush(&mut self) -> bool {
        while !self.rest.is_empty() {
            match self.stream.write(&self.rest) {
                Ok(sent) => drop(self.rest.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

fn main() -> std::io::Result<()> {
    let cpu: i64 = std::env::args().nth(1).and_then(|cpu| cpu.parse().ok()).unwrap_or(-1);
    // SAFETY: the benchmark is the parent; plain values and one live mask.
    unsafe {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        if cpu >= 0 {
            sched_setaffinity(0, size_of::<u64>(), &(1u64 << cpu));
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    println!("{{\"port\": {}}}", listener.local_addr()?.port());
    // SAFETY: a flag that says nothing.
    let set = unsafe { epoll_create1(0) };
    let add = |fd: i32, events: u32| {
        let mut event = Event { events, data: fd as u64 };
        // SAFETY: an epoll set, an open descriptor and a live event.
        unsafe { epoll_ctl(set, EPOLL_CTL_ADD, fd, &mut event) }
    };
    let accepts = listener.as_raw_fd() as u64;
    add(listener.as_raw_fd(), EPOLLIN);
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut events = [Event { events: 0, data: 0 }; 1024];
    let mut buffer = vec![0; 256 * 1024];
    loop {
        // SAFETY: as many events as there is room for.
        let count = unsafe { epoll_wait(set, events.as_mut_ptr(), events.len() as i32, -1) };
        for event in &events[..count.max(0) as usize] {
            let fd = event.data;
            if fd == accepts {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    add(stream.as_raw_fd(), EPOLLIN | EPOLLOUT | EPOLLET);
                    connections.insert(stream.as_raw_fd() as u64, Connection { stream, rest: Vec::new() });
                }
            } else if !connections.get_mut(&fd).is_some_and(|it| it.serve(&mut buffer)) {
                connections.remove(&fd);
            }
        }
    }
}
