//! The methods that TCP and Unix streams have in common.

use std::io;

/// No system takes more buffers than this in one call. If a call left some out, its short result would look
/// like a full or empty socket, and the caller would wait for an event that does not come.
pub(super) const MAX_BUFFERS: usize = 1024;

/// The result of a write of `len` bytes, and whether the socket is full: a short write means that no more fits.
pub(super) fn sent(result: io::Result<usize>, len: usize) -> io::Result<(usize, bool)> {
    result.map(|sent| (sent, sent < len))
}

/// Implements the byte-stream methods for a struct with a field `io: Io<…>`. `$receive` reads into a slice of
/// buffers, and returns how many bytes it read and whether it exhausted the socket.
macro_rules! stream_methods {
    ($stream:ident, $receive:path) => {
        impl $stream {
            /// Reads at most `buffer.len()` bytes. 0 means that the peer has ended its direction (or that the
            /// buffer is empty).
            ///
            /// # Errors
            /// Those of `recv(2)`.
            pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                let buffers = &mut [IoSliceMut::new(buffer)];
                self.io.run_until(Direction::Read, |source| $receive(source, buffers)).await
            }

            /// Fills `buffer`. Not cancel-safe: bytes that were read by then are lost.
            ///
            /// # Errors
            /// `UnexpectedEof` if the stream ends before that; else as `read`.
            pub async fn read_exact(&self, mut buffer: &mut [u8]) -> io::Result<()> {
                while !buffer.is_empty() {
                    match self.read(buffer).await? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        n => buffer = &mut buffer[n..],
                    }
                }
                Ok(())
            }

            /// Writes as much as fits into the socket's buffer, and returns how much that was.
            ///
            /// # Errors
            /// Those of `send(2)`. A closed peer is an error, never a signal.
            pub async fn write(&self, data: &[u8]) -> io::Result<usize> {
                self.io.run_until(Direction::Write, |mut source| sent(source.write(data), data.len())).await
            }

            /// Writes all. Not cancel-safe: if the future is dropped midway, an unknown part was written.
            ///
            /// # Errors
            /// As `write`; `WriteZero` if the system takes nothing.
            pub async fn write_all(&self, data: &[u8]) -> io::Result<()> {
                WriteBytes::write_all(self, data).await
            }

            /// Writes several buffers in one system call, and returns how many bytes of them were written.
            ///
            /// # Errors
            /// As `write`.
            pub async fn write_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
                let data = &data[..data.len().min(MAX_BUFFERS)];
                let len = data.iter().map(|slice| slice.len()).sum();
                self.io.run_until(Direction::Write, |mut source| sent(source.write_vectored(data), len)).await
            }

            /// Reads into several buffers in one system call, one after the other. Returns the number of bytes.
            ///
            /// # Errors
            /// As `read`.
            pub async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                let most = buffers.len().min(MAX_BUFFERS);
                let buffers = &mut buffers[..most];
                self.io.run_until(Direction::Read, |source| $receive(source, buffers)).await
            }

            /// Reads what is there, without waiting; 0 as in `read`.
            ///
            /// # Errors
            /// `WouldBlock` if nothing is there; else as `read`.
            pub fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                let buffers = &mut [IoSliceMut::new(buffer)];
                self.io.try_until(Direction::Read, |source| $receive(source, buffers))
            }

            /// Writes as much as fits, without waiting.
            ///
            /// # Errors
            /// `WouldBlock` if nothing fits; else as `write`.
            pub fn try_write(&self, data: &[u8]) -> io::Result<usize> {
                self.io.try_until(Direction::Write, |mut source| sent(source.write(data), data.len()))
            }

            /// Returns two halves for two tasks, by reference. (The stream's own methods take `&self`; halves
            /// keep the directions apart in the types.)
            pub fn split(&self) -> (ReadHalf<&$stream>, WriteHalf<&$stream>) {
                (ReadHalf { stream: self }, WriteHalf { stream: self })
            }

            /// Returns two halves for two tasks that own them. The socket is closed when both are dropped.
            pub fn into_split(self) -> (ReadHalf<Arc<$stream>>, WriteHalf<Arc<$stream>>) {
                let stream = Arc::new(self);
                (ReadHalf { stream: stream.clone() }, WriteHalf { stream })
            }

            /// Ends one direction or both. Does not wait.
            ///
            /// # Errors
            /// `NotConnected` if the peer is gone already.
            pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
                self.io.source().shutdown(how)
            }
        }

        impl ReadBytes for $stream {
            async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
                $stream::read(self, buffer).await
            }

            async fn read_vectored(&self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
                $stream::read_vectored(self, buffers).await
            }
        }

        impl WriteBytes for $stream {
            async fn write(&self, data: &[u8]) -> io::Result<usize> {
                $stream::write(self, data).await
            }

            async fn write_vectored(&self, data: &[IoSlice<'_>]) -> io::Result<usize> {
                $stream::write_vectored(self, data).await
            }

            fn finish(&self) -> io::Result<()> {
                self.shutdown(Shutdown::Write)
            }
        }
    };
}

pub(super) use stream_methods;
