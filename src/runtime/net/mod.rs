//! Sockets: TCP, Unix and UDP, over the runtime's driver.
//!
//! A socket belongs to the runtime on whose thread it was made and may be used from any task on any runtime. All
//! methods take `&self`: one task may read while another writes, without splitting.
//!
//! Options without a method here (buffer sizes, time to live, broadcast, groups …) are set through
//! `socket2::SockRef::from(&socket)`, because all sockets are `AsFd`, or on a socket of the standard library
//! before `from_std`.
//!
//! A method is cancel-safe unless it says otherwise: if its future is dropped before it is ready, it has done
//! nothing. After the runtime has ended, operations fail.

mod buf_reader;
mod bytes;
mod datagram;
#[cfg(wakeloop_fuzz)]
#[path = "../../../tests/fuzz/targets/framing.rs"]
pub(crate) mod fuzz;
mod halves;
mod io;
mod packets;
mod read_ahead;
mod read_buffer;
mod received;
mod resolve;
mod stream;
mod tcp;
mod udp;
mod unix;

pub use crate::framing::{ReadRequest, TooLong};
pub use crate::resolver::LookupError;
pub use buf_reader::BufReader;
pub use bytes::{BufWriter, ReadBytes, WriteBytes, copy, copy_both_ways};
pub use datagram::UnixDatagram;
pub use halves::{ReadHalf, WriteHalf};
pub use read_ahead::ReadAhead;
pub use received::{ReadProgress, Received};
pub use resolve::Target;
pub use tcp::{TcpListener, TcpStream};
pub use udp::UdpSocket;
pub use unix::{UnixListener, UnixStream};
