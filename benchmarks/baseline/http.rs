//! Answers requests without looking at them: small answers, large ones in writes of one size, and uploads.

use std::io::{ErrorKind, Read, Write};

use crate::streams::{Connection, Got, Rest, read};

/// About what uvicorn and aiohttp send.
const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 00:00:00 GMT\r\nserver: plain\r\n\
content-type: text/plain\r\ncontent-length: 13\r\n\r\nHello, world!";
const ANSWER: usize = 4 * 1024 * 1024;

/// How many requests end in these bytes. The load sends each request in one piece.
fn requests(bytes: &[u8]) -> usize {
    bytes.windows(4).filter(|four| four == b"\r\n\r\n").count()
}

pub struct Hello<S> {
    stream: S,
    rest: Rest,
}

impl<S> Hello<S> {
    pub fn new(stream: S) -> Self {
        Hello { stream, rest: Rest::default() }
    }
}

impl<S: Read + Write> Connection for Hello<S> {
    fn ready(&mut self, buffer: &mut [u8]) -> bool {
        if self.rest.flush(&mut self.stream).is_err() {
            return false;
        }
        match read(&mut self.stream, buffer) {
            Got::Bytes(count) => {
                (0..requests(&buffer[..count])).all(|_| self.rest.send(&mut self.stream, HELLO).is_ok())
            }
            Got::Nothing => true,
            Got::End => false,
        }
    }
}

/// Answers with 4 MiB of what the scenario expects.
pub struct Bulk<S> {
    stream: S,
    chunk: Vec<u8>,
    /// The position in the answers that are due, without their heads.
    sent: usize,
    owed: usize,
}

impl<S> Bulk<S> {
    pub fn new(stream: S, size: usize) -> Self {
        Bulk { stream, chunk: (0..size).map(|place| place as u8).collect(), sent: 0, owed: 0 }
    }
}

impl<S: Read + Write> Connection for Bulk<S> {
    fn ready(&mut self, buffer: &mut [u8]) -> bool {
        match read(&mut self.stream, buffer) {
            Got::Bytes(count) => {
                for _ in 0..requests(&buffer[..count]) {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {ANSWER}\r\n\r\n");
                    // The next request comes after the last answer has left, so the socket has room for the whole head.
                    if !self.stream.write(head.as_bytes()).is_ok_and(|sent| sent == head.len()) {
                        return false;
                    }
                    self.owed += ANSWER;
                }
            }
            Got::Nothing => {}
            Got::End => return false,
        }
        while self.sent < self.owed {
            let from = self.sent % self.chunk.len();
            match self.stream.write(&self.chunk[from..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

const UPLOAD: usize = 4 * 1024 * 1024;
const RECEIVED: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nreceived";

/// Answers when 4 MiB have arrived behind the head of a request.
pub struct Upload<S> {
    stream: S,
    left: usize,
}

impl<S> Upload<S> {
    pub fn new(stream: S) -> Self {
        Upload { stream, left: 0 }
    }
}

impl<S: Read + Write> Connection for Upload<S> {
    fn ready(&mut self, buffer: &mut [u8]) -> bool {
        loop {
            let count = match read(&mut self.stream, buffer) {
                Got::Bytes(count) => count,
                Got::Nothing => return true,
                Got::End => return false,
            };
            if self.left == 0 {
                let Some(head) = buffer[..count].windows(4).position(|four| four == b"\r\n\r\n") else {
                    return false;
                };
                self.left = UPLOAD + head + 4;
            }
            self.left -= count;
            if self.left == 0 && !self.stream.write(RECEIVED).is_ok_and(|sent| sent == RECEIVED.len()) {
                return false;
            }
            if count < buffer.len() {
                return true;
            }
        }
    }
}
