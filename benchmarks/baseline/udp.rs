//! Sends each datagram back: one system call receives all that wait, another answers them.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use crate::system::{EPOLLIN, Epoll, Header, IoVec, MSG_DONTWAIT, Message, recvmmsg, sendmmsg};

const BATCH: usize = 64;
const SIZE: usize = 2048;
/// Room for `struct sockaddr_in`.
const NAME: u32 = 16;

pub fn serve() -> io::Result<()> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    println!("{{\"port\": {}}}", socket.local_addr()?.port());
    let mut epoll = Epoll::new()?;
    epoll.add(socket.as_raw_fd(), EPOLLIN)?;
    let mut bytes = vec![[0u8; SIZE]; BATCH];
    let mut names = vec![[0u64; NAME as usize / 8]; BATCH];
    let mut vectors: Vec<IoVec> =
        bytes.iter_mut().map(|each| IoVec { base: each.as_mut_ptr(), length: SIZE }).collect();
    let mut messages: Vec<Message> = (names.iter_mut().zip(&mut vectors))
        .map(|(name, vector)| Header {
            name: name.as_mut_ptr().cast(),
            name_length: NAME,
            vectors: vector,
            vector_count: 1,
            control: null_mut(),
            control_length: 0,
            flags: 0,
        })
        .map(|header| Message { header, length: 0 })
        .collect();
    loop {
        epoll.wait();
        let fd = socket.as_raw_fd();
        // SAFETY: each message points to a name and a vector of its own, which live in this function.
        let count = unsafe { recvmmsg(fd, messages.as_mut_ptr(), BATCH as u32, MSG_DONTWAIT, null_mut()) };
        let count = count.max(0) as usize;
        for (vector, message) in vectors.iter_mut().zip(&messages[..count]) {
            vector.length = message.length as usize;
        }
        // SAFETY: as for the receive above: all messages point to live names and vectors.
        unsafe { sendmmsg(fd, messages.as_mut_ptr(), count as u32, 0) };
        for (vector, message) in vectors.iter_mut().zip(&mut messages[..count]) {
            vector.length = SIZE;
            message.header.name_length = NAME;
        }
    }
}
