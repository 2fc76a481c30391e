//! The methods that UDP sockets and Unix datagram sockets have in common.

/// Implements the methods of connected datagram sockets for a struct with a field `io: Io<$source>`, whose addresses are
/// of the type `$address`.
macro_rules! datagram_methods {
    ($socket:ident, $source:ty, $address:ty) => {
        impl $socket {
            /// As `send_to`, to the connected peer.
            ///
            /// # Errors
            /// As `send_to`; `ConnectionRefused` if the peer refused an earlier datagram.
            pub async fn send(&self, data: &[u8]) -> io::Result<usize> {
                self.io.run(Direction::Write, |socket| socket.send(data)).await
            }

            /// As `recv_from`, from the connected peer.
            ///
            /// # Errors
            /// As `recv_from`.
            pub async fn recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.io.run(Direction::Read, |socket| socket.recv(buffer)).await
            }

            /// Receives one datagram, and returns its length and sender. Bytes that do not fit into `buffer`
            /// are lost.
            ///
            /// # Errors
            /// What `recvfrom(2)` says.
            pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, $address)> {
                self.io.run(Direction::Read, |socket| socket.recv_from(buffer)).await
            }

            /// As `send`, without waiting.
            ///
            /// # Errors
            /// `WouldBlock` if there is no room; else as `send`.
            pub fn try_send(&self, data: &[u8]) -> io::Result<usize> {
                self.io.try_run(Direction::Write, |socket| socket.send(data))
            }

            /// As `recv`, without waiting.
            ///
            /// # Errors
            /// `WouldBlock` if nothing is there; else as `recv`.
            pub fn try_recv(&self, buffer: &mut [u8]) -> io::Result<usize> {
                self.io.try_run(Direction::Read, |socket| socket.recv(buffer))
            }

            /// As `recv_from`, without waiting.
            ///
            /// # Errors
            /// `WouldBlock` if nothing is there; else as `recv_from`.
            pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, $address)> {
                self.io.try_run(Direction::Read, |socket| socket.recv_from(buffer))
            }

            /// Waits until there is something to receive. Then call `try_recv` or `try_recv_from`, which need a
            /// buffer only during that call. May return early. Cancel-safe.
            ///
            /// # Errors
            /// After the runtime was shut down.
            pub async fn readable(&self) -> io::Result<()> {
                self.io.ready(Direction::Read).await
            }

            /// As `readable`, for `try_send` and `try_send_to`.
            ///
            /// # Errors
            /// As `readable`.
            pub async fn writable(&self) -> io::Result<()> {
                self.io.ready(Direction::Write).await
            }

            /// Returns this socket's address.
            ///
            /// # Errors
            /// What `getsockname(2)` says.
            pub fn local_addr(&self) -> io::Result<$address> {
                self.io.source().local_addr()
            }

            /// Returns the address of the connected peer.
            ///
            /// # Errors
            /// `NotConnected` if there is none.
            pub fn peer_addr(&self) -> io::Result<$address> {
                self.io.source().peer_addr()
            }

            /// Puts a socket on the runtime of the current thread and makes it non-blocking.
            ///
            /// # Errors
            /// If there is no runtime, or if the socket cannot be registered.
            pub fn from_std(socket: $source) -> io::Result<$socket> {
                socket.set_nonblocking(true)?;
                Ok($socket { io: Io::new(socket, First::Try)? })
            }

            /// Takes the socket off the runtime. It stays non-blocking.
            pub fn into_std(self) -> $source {
                self.io.into_source()
            }
        }

        impl AsFd for $socket {
            fn as_fd(&self) -> BorrowedFd<'_> {
                self.io.source().as_fd()
            }
        }

        impl AsRawFd for $socket {
            fn as_raw_fd(&self) -> RawFd {
                self.io.source().as_raw_fd()
            }
        }
    };
}

pub(super) use datagram_methods;
