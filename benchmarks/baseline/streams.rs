//! Connections over TCP and Unix sockets: one edge-triggered epoll set, one buffer for all of them.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use crate::system::{EPOLLET, EPOLLIN, EPOLLOUT, Epoll};

pub trait Listener: AsRawFd {
    type Stream: Read + Write + AsRawFd;
    fn nonblocking(&self) -> io::Result<()>;
    /// The next connection, nonblocking and, over TCP, without Nagle's delay.
    fn next(&self) -> io::Result<Self::Stream>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;
    fn nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
    fn next(&self) -> io::Result<TcpStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;
    fn nonblocking(&self) -> io::Result<()> {
        self.set_nonblocking(true)
    }
    fn next(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.accept()?;
        stream.set_nonblocking(true)?;
        Ok(stream)
    }
}

/// The protocol of a connection.
pub trait Connection {
    /// Does all that can be done without waiting. False: the connection is over.
    fn ready(&mut self, buffer: &mut [u8]) -> bool;
}

/// Bytes that the socket has not taken yet.
#[derive(Default)]
pub struct Rest(Vec<u8>);

impl Rest {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends the bytes behind those that are kept, and keeps what the socket does not take.
    pub fn send(&mut self, stream: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
        if !self.0.is_empty() {
            self.0.extend_from_slice(bytes);
            return Ok(());
        }
        let sent = match stream.write(bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            sent => sent?,
        };
        self.0.extend_from_slice(&bytes[sent..]);
        self.flush(stream)
    }

    pub fn flush(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while !self.0.is_empty() {
            match stream.write(&self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                sent => drop(self.0.drain(..sent?)),
            }
        }
        Ok(())
    }
}

/// The result of a nonblocking read.
pub enum Got {
    Bytes(usize),
    Nothing,
    End,
}

pub fn read(stream: &mut impl Read, buffer: &mut [u8]) -> Got {
    match stream.read(buffer) {
        Ok(0) => Got::End,
        Ok(count) => Got::Bytes(count),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Got::Nothing,
        Err(_) => Got::End,
    }
}

/// Serves the connections of a listener; `make` makes the protocol of each.
pub fn serve<L: Listener, C: Connection>(listener: L, make: impl Fn(L::Stream) -> C) -> io::Result<()> {
    listener.nonblocking()?;
    let mut epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd(), EPOLLIN)?;
    let mut connections: Vec<Option<C>> = Vec::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut fresh: Vec<L::Stream> = Vec::new();
    loop {
        for event in epoll.wait() {
            let fd = event.fd();
            if fd == listener.as_raw_fd() {
                fresh.extend(std::iter::from_fn(|| listener.next().ok()));
            } else if let Some(place) = connections.get_mut(fd as usize)
                && !place.as_mut().is_some_and(|it| it.ready(&mut buffer))
            {
                *place = None;
            }
        }
        for stream in fresh.drain(..) {
            let fd: RawFd = stream.as_raw_fd();
            epoll.add(fd, EPOLLIN | EPOLLOUT | EPOLLET)?;
            if connections.len() <= fd as usize {
                connections.resize_with(fd as usize + 1, || None);
            }
            connections[fd as usize] = Some(make(stream));
        }
    }
}

/// Accepts and closes.
pub fn accept_and_close(listener: TcpListener) -> io::Result<()> {
    listener.nonblocking()?;
    let mut epoll = Epoll::new()?;
    epoll.add(listener.as_raw_fd(), EPOLLIN)?;
    loop {
        epoll.wait();
        while listener.accept().is_ok() {}
    }
}
