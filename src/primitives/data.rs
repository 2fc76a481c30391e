//! Bytes that Python code wants to send.

use pyo3::prelude::*;

use crate::capi::buffer::Buffer;
use crate::capi::{Borrowed, Raised, Ref};

/// What is to be sent, and how much of it was sent. A `bytes` object is kept, as it cannot change; everything else is
/// copied.
#[derive(Debug)]
pub(crate) struct Data {
    source: Source,
    sent: usize,
}

#[derive(Debug)]
enum Source {
    Object(Ref),
    Copy(Vec<u8>),
}

impl Default for Data {
    fn default() -> Data {
        Data::from(Vec::new())
    }
}

impl From<Vec<u8>> for Data {
    fn from(bytes: Vec<u8>) -> Data {
        Data { source: Source::Copy(bytes), sent: 0 }
    }
}

impl Data {
    /// The content of any bytes-like object.
    ///
    /// # Errors
    /// Raises TypeError for anything else.
    pub(crate) fn from_python(object: Borrowed<'_>) -> Result<Data, Raised> {
        if object.exact_bytes().is_some() {
            return Ok(Data { source: Source::Object(object.to_owned()), sent: 0 });
        }
        Ok(Data::from(Buffer::readable(object.as_ptr())?.as_slice().to_vec()))
    }

    /// What is left to be sent.
    pub(crate) fn rest(&self) -> &[u8] {
        match &self.source {
            Source::Object(object) => object.exact_bytes().map_or(&[], |bytes| &bytes[self.sent..]),
            Source::Copy(bytes) => &bytes[self.sent..],
        }
    }

    pub(crate) fn advance(&mut self, sent: usize) {
        self.sent += sent;
    }

    /// The rest, in a form that other threads can read.
    pub(crate) fn into_sendable(self, py: Python<'_>) -> Sendable {
        let (address, len) = (self.rest().as_ptr(), self.rest().len());
        match self.source {
            Source::Object(object) => {
                Sendable { _owner: Owner::Object(object.bind(py).unbind()), address, len }
            }
            Source::Copy(bytes) => Sendable { _owner: Owner::Copy(bytes), address, len },
        }
    }
}

/// Bytes that stay where they are for as long as this lives, on any thread.
#[derive(Debug)]
pub(crate) struct Sendable {
    _owner: Owner,
    address: *const u8,
    len: usize,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum Owner {
    Object(Py<PyAny>),
    Copy(Vec<u8>),
}

// SAFETY: the bytes are immutable and kept alive by their owner, which may be dropped on any thread.
unsafe impl Send for Sendable {}
// SAFETY: as above: immutable.
unsafe impl Sync for Sendable {}

impl Sendable {
    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: a bytes object or a vector of ours keeps them in place, and no code writes to them.
        unsafe { std::slice::from_raw_parts(self.address, self.len) }
    }
}
