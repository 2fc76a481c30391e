//! The methods that UDP sockets and Unix datagram sockets have in common.

/// Implements the methods of datagram sockets for a struct with a field `io: Io<…>`, whose addresses are of the
/// type `$address`.
macro_rules! datagram_methods {
    ($socket:ident, $address:ty) => {
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
                self.io
                    .run(Direction::Read, |socket| socket.recv(buffer).inspect(|len| note_received(*len)))
                    .await
            }

            /// Receives one datagram, and returns its length and sender. Bytes that do not fit into `buffer`
            /// are lost.
            ///
            /// # Errors
            /// Those of `recvfrom(2)`.
            pub async fn recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, $address)> {
                self.io
                    .run(Direction::Read, |socket| {
                        socket.recv_from(buffer).inspect(|(len, _)| note_received(*len))
                    })
                    .await
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
                self.io
                    .try_run(Direction::Read, |socket| socket.recv(buffer).inspect(|len| note_received(*len)))
            }

            /// As `recv_from`, without waiting.
            ///
            /// # Errors
            /// `WouldBlock` if nothing is there; else as `recv_from`.
            pub fn try_recv_from(&self, buffer: &mut [u8]) -> io::Result<(usize, $address)> {
                self.io.try_run(Direction::Read, |socket| {
                    socket.recv_from(buffer).inspect(|(len, _)| note_received(*len))
                })
            }
        }
    };
}

pub(super) use datagram_methods;
