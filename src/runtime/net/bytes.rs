//! The traits of byte streams, and the functions built on them.
//!
//! The traits take `&self`, as the sockets' methods do: one task may read while another writes.

use std::future::Future;
use std::io::{self, IoSlice, IoSliceMut};
use std::sync::Arc;

use crate::runtime::coop::Shares;

/// Something to read bytes from.
pub trait ReadBytes {
    /// Reads at most `buffer.len()` bytes; 0 means the end. Cancel-safe.
    fn read(&self, buffer: &mut [u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Reads into several buffers in one system call, one after the other.
    fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>])
    -> impl Future<Output = io::Result<usize>> + Send;
}

/// Something to write bytes to.
pub trait WriteBytes {
    /// Writes as much as fits now, and returns how much that was. Cancel-safe.
    fn write(&self, data: &[u8]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Writes several buffers in one system call, as much as fits.
    fn write_vectored(&self, data: &[IoSlice<'_>]) -> impl Future<Output = io::Result<usize>> + Send;

    /// Ends this direction: the peer sees the end of the stream.
    ///
    /// # Errors
    /// `NotConnected` if the peer is gone already.
    fn finish(&self) -> io::Result<()>;

    /// Writes all. Not cancel-safe: if the future is dropped midway, an unknown part was written.
    fn write_all(&self, mut data: &[u8]) -> impl Future<Output = io::Result<()>> + Send
    where
        Self: Sync,
    {
        async move {
            while !data.is_empty() {
                match self.write(data).await? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    n => data = &data[n..],
                }
            }
            Ok(())
        }
    }

    /// Writes all of several buffers, in as few system calls as the socket allows. The slices are consumed. Not
    /// cancel-safe, as `write_all`.
    fn write_all_vectored(&self, mut data: &mut [IoSlice<'_>]) -> impl Future<Output = io::Result<()>> + Send
    where
        Self: Sync,
    {
        async move {
            // Empty slices at the front would make a result of 0 ambiguous.
            IoSlice::advance_slices(&mut data, 0);
            while !data.is_empty() {
                match self.write_vectored(data).await? {
                    0 => return Err(io::ErrorKind::WriteZero.into()),
                    n => IoSlice::advance_slices(&mut data, n),
                }
            }
            Ok(())
        }
    }
}

/// Implements the traits for pointers to a stream.
macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<S: ReadBytes + Send + Sync + ?Sized> ReadBytes for $pointer {
            async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                (**self).read(buffer).await
            }

            async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                (**self).read_vectored(buffers).await
            }
        }

        impl<S: WriteBytes + Send + Sync + ?Sized> WriteBytes for $pointer {
            async fn write(&self, data: &[u8]) -> io::Result<usize> {
                (**self).write(data).await
            }

            async fn write_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
                (**self).write_vectored(data).await
            }

            fn finish(&self) -> io::Result<()> {
                (**self).finish()
            }
        }
    )*};
}

through! { &S, Arc<S>, Box<S> }

/// The buffer of [`copy`]: large enough that the system calls do not matter, small enough for thousands of
/// connections.
const COPY_BUFFER: usize = 16 << 10;

/// Copies from `from` to `to` until the end, and returns the number of bytes. Does not finish `to`.
///
/// # Errors
/// The first error of either side. Bytes that were read and not written are lost then.
pub async fn copy<R: ReadBytes + Sync, W: WriteBytes + Sync>(from: &R, to: &W) -> io::Result<u64> {
    let mut buffer = vec![0; COPY_BUFFER];
    let mut copied = 0;
    loop {
        match from.read(&mut buffer).await? {
            0 => return Ok(copied),
            n => {
                to.write_all(&buffer[..n]).await?;
                copied += n as u64;
            }
        }
    }
}

/// Copies in both directions at once, until both have ended. The end of a direction is passed on by
/// [`WriteBytes::finish`]. Returns the bytes from `a` to `b`, and from `b` to `a`. A proxy does this for each
/// connection.
///
/// # Errors
/// The first error. The other direction is dropped then.
pub async fn copy_both_ways<A, B>(a: &A, b: &B) -> io::Result<(u64, u64)>
where
    A: ReadBytes + WriteBytes + Sync,
    B: ReadBytes + WriteBytes + Sync,
{
    async fn one_way<R: ReadBytes + Sync, W: WriteBytes + Sync>(from: &R, to: &W) -> io::Result<u64> {
        let copied = copy(from, to).await?;
        match to.finish() {
            // The peer has closed the connection already, with the same effect.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(copied),
            result => result.map(|()| copied),
        }
    }
    let mut there = std::pin::pin!(one_way(a, b));
    let mut back = std::pin::pin!(one_way(b, a));
    let (mut sent, mut received) = (None, None);
    std::future::poll_fn(|cx| {
        use std::task::Poll;
        let shares = Shares::new();
        if sent.is_none()
            && let Poll::Ready(result) = there.as_mut().poll(cx)
        {
            sent = Some(result?);
        }
        if received.is_none()
            && let Poll::Ready(result) = shares.poll(|| back.as_mut().poll(cx))
        {
            received = Some(result?);
        }
        match (sent, received) {
            (Some(sent), Some(received)) => Poll::Ready(Ok((sent, received))),
            _ => Poll::Pending,
        }
    })
    .await
}

/// Collects small writes and sends them together.
///
/// It sends nothing before the buffer is full or [`BufWriter::flush`] is called. Dropping it without a flush
/// loses what is in the buffer.
#[derive(Debug)]
pub struct BufWriter<W> {
    to: W,
    buffer: Vec<u8>,
    /// How much of the buffer was already sent by a flush that was dropped midway.
    sent: usize,
}

impl<W: WriteBytes + Sync> BufWriter<W> {
    /// Creates a writer with a buffer of 8 KiB.
    pub fn new(to: W) -> BufWriter<W> {
        BufWriter::with_capacity(8 << 10, to)
    }

    /// Creates a writer with a buffer of `capacity` bytes.
    pub fn with_capacity(capacity: usize, to: W) -> BufWriter<W> {
        BufWriter { to, buffer: Vec::with_capacity(capacity.max(1)), sent: 0 }
    }

    /// Buffers `data`. If they do not fit, sends the buffer and `data` in one system call. Not cancel-safe.
    ///
    /// # Errors
    /// As [`WriteBytes::write`].
    pub async fn write_all(&mut self, data: &[u8]) -> io::Result<()> {
        if self.buffer.len() + data.len() <= self.buffer.capacity() {
            self.buffer.extend_from_slice(data);
            return Ok(());
        }
        let mut slices = [IoSlice::new(&self.buffer[self.sent..]), IoSlice::new(data)];
        self.to.write_all_vectored(&mut slices).await?;
        self.buffer.clear();
        self.sent = 0;
        Ok(())
    }

    /// Sends the buffer. Cancel-safe: the next flush continues where this one was dropped.
    ///
    /// # Errors
    /// As [`WriteBytes::write`]; `WriteZero` if the system takes nothing.
    pub async fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.buffer.len() {
            match self.to.write(&self.buffer[self.sent..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                n => self.sent += n,
            }
        }
        self.buffer.clear();
        self.sent = 0;
        Ok(())
    }

    /// How many bytes wait in the buffer.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// The stream. Bytes written to it directly overtake the buffer.
    pub fn get_ref(&self) -> &W {
        &self.to
    }

    /// Returns the stream. The bytes in the buffer are lost.
    pub fn into_inner(self) -> W {
        self.to
    }
}
