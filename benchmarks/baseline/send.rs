//! The counterpart of `bulk.py`: sends pieces of one size to one or more connections, 64 pieces with each `writev`.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;

use crate::system::{EPOLLET, EPOLLIN, EPOLLOUT, Epoll, cpu_seconds};

const PIECES: usize = 64;

struct Sender {
    stream: TcpStream,
    left: usize,
    done: bool,
}

impl Sender {
    fn ready(&mut self, piece: &[u8]) -> io::Result<()> {
        while self.left > 0 {
            let first = match self.left % piece.len() {
                0 => piece,
                rest => &piece[piece.len() - rest..],
            };
            let mut slices = [IoSlice::new(first); PIECES];
            slices[1..].fill(IoSlice::new(piece));
            let pieces = PIECES.min(self.left.div_ceil(piece.len()));
            match self.stream.write_vectored(&slices[..pieces]) {
                Ok(count) => self.left -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        match self.stream.read(&mut [0]) {
            Ok(_) => self.done = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

/// For each number of bytes on standard input, sends so many to all connections together, and prints the CPU time.
pub fn serve(port: u16, kib: usize, count: usize) -> io::Result<()> {
    let piece = vec![0; kib * 1024];
    let mut epoll = Epoll::new()?;
    let mut senders = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        epoll.add(stream.as_raw_fd(), EPOLLIN | EPOLLOUT | EPOLLET)?;
        senders.push(Sender { stream, left: 0, done: true });
    }
    println!("{{}}");
    for line in io::stdin().lines() {
        let total: usize = line?.trim().parse().map_err(|_| ErrorKind::InvalidInput)?;
        let before = cpu_seconds();
        for sender in &mut senders {
            (sender.left, sender.done) = (total / count, false);
            sender.ready(&piece)?;
        }
        while senders.iter().any(|sender| !sender.done) {
            for event in epoll.wait() {
                for sender in senders.iter_mut().filter(|sender| sender.stream.as_raw_fd() == event.fd()) {
                    if !sender.done {
                        sender.ready(&piece)?;
                    }
                }
            }
        }
        println!("{{\"cpu\": {}}}", cpu_seconds() - before);
    }
    Ok(())
}
