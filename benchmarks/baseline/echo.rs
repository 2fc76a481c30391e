//! Sends back all bytes that it receives.

use std::io::{Read, Write};

use crate::streams::{Connection, Got, Rest, read};

pub struct Echo<S> {
    stream: S,
    rest: Rest,
}

impl<S> Echo<S> {
    pub fn new(stream: S) -> Self {
        Echo { stream, rest: Rest::default() }
    }
}

impl<S: Read + Write> Connection for Echo<S> {
    fn ready(&mut self, buffer: &mut [u8]) -> bool {
        if self.rest.flush(&mut self.stream).is_err() {
            return false;
        }
        while self.rest.is_empty() {
            let count = match read(&mut self.stream, buffer) {
                Got::Bytes(count) => count,
                Got::Nothing => return true,
                Got::End => return false,
            };
            if self.rest.send(&mut self.stream, &buffer[..count]).is_err() {
                return false;
            }
            // A short read has drained the socket; epoll reports the next bytes.
            if count < buffer.len() {
                return true;
            }
        }
        true
    }
}
