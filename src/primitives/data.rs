//! Bytes that Python code wants to send.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::capi::buffer::{Buffer, bytes_from, concat};
use crate::capi::{Borrowed, Raised, Ref};

/// Data to be sent, as a `bytes` object, and how much of it was sent.
#[derive(Debug)]
pub(crate) struct Data {
    bytes: Ref,
    sent: usize,
}

impl Clone for Data {
    fn clone(&self) -> Data {
        Data { bytes: self.bytes.clone_ref(), sent: self.sent }
    }
}

impl Data {
    /// The content of any bytes-like object. If the object is not exactly `bytes`, its content is copied, because it
    /// can change.
    ///
    /// # Errors
    /// Raises TypeError for anything else.
    pub(crate) fn from_python(object: Borrowed<'_>) -> Result<Data, Raised> {
        let bytes = match object.exact_bytes() {
            Some(_) => object.to_owned(),
            None => bytes_from(Buffer::readable(&object)?.as_slice())?,
        };
        Ok(Data { bytes, sent: 0 })
    }

    /// The content of several pieces, one after the other.
    pub(crate) fn joined<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Data, Raised> {
        Ok(Data { bytes: concat(pieces)?, sent: 0 })
    }

    /// What is left to be sent.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.exact_bytes().map_or(&[], |bytes| &bytes[self.sent..])
    }

    pub(crate) fn advance(&mut self, sent: usize) {
        self.sent += sent;
    }

    /// The rest, in a form that other threads can read.
    pub(crate) fn to_sendable(&self, py: Python<'_>) -> Sendable {
        // SAFETY: `bytes` is a `bytes` object.
        let bytes = unsafe { self.bytes.bind(py).cast_into_unchecked::<PyBytes>() };
        Sendable { bytes: PyBackedBytes::from(bytes), sent: self.sent }
    }
}

/// Bytes that stay where they are for as long as this lives, on any thread.
#[derive(Debug)]
pub(crate) struct Sendable {
    bytes: PyBackedBytes,
    sent: usize,
}

impl Sendable {
    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }
}
