//! The two directions of a stream, as separate values.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Deref;

use super::bytes::{ReadBytes, WriteBytes};

/// Reads from a stream. `S` is a reference or an `Arc` of it.
#[derive(Debug)]
pub struct ReadHalf<S> {
    pub(super) stream: S,
}

/// Writes to a stream. `S` is a reference or an `Arc` of it.
///
/// Dropping it does not end the direction while the other half is alive: call [`WriteBytes::finish`] for that.
#[derive(Debug)]
pub struct WriteHalf<S> {
    pub(super) stream: S,
}

impl<S> ReadHalf<S> {
    /// The whole stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S> WriteHalf<S> {
    /// The whole stream.
    pub fn stream(&self) -> &S {
        &self.stream
    }
}

impl<S: Deref<Target: ReadBytes + Sync> + Sync> ReadBytes for ReadHalf<S> {
    async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer).await
    }

    async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.stream.read_vectored(buffers).await
    }
}

impl<S: Deref<Target: WriteBytes + Sync> + Sync> WriteBytes for WriteHalf<S> {
    async fn write(&self, data: &[u8]) -> io::Result<usize> {
        self.stream.write(data).await
    }

    async fn write_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
        self.stream.write_vectored(data).await
    }

    fn finish(&self) -> io::Result<()> {
        self.stream.finish()
    }
}
