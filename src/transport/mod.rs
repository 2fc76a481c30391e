//! asyncio's transports.
//!
//! [`stream`] is the TCP and Unix socket transport: its life from connection_made to connection_lost.
//! [`receive`] brings bytes to the protocol ([`receiver`] knows how it wants them), [`write_buffer`] takes them from it and [`water_mark`] says how many, [`send_file`] sends a file in between, [`accept`] makes
//! transports of what arrives at a listening socket, [`server`] tells asyncio's server of them, [`connect`] is a connection that we ask for, [`methods`] is what Python sees. [`datagram`] is the
//! datagram transport, [`read_pipe`] and [`write_pipe`] are those of pipes, all on [`endpoint`], which is what
//! transports around an object of Python's have in common. [`tls`] is TLS on top of a stream transport.
//! [`reader_feed`] is a shorter way to asyncio's own StreamReader, [`streams`] holds native ones.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod datagram_receive;
pub(crate) mod datagram_send;
pub(crate) mod endpoint;
pub(crate) mod endpoint_methods;
pub(crate) mod endpoint_type;
pub(crate) mod endpoint_watch;
pub(crate) mod methods;
pub(crate) mod read_pipe;
pub(crate) mod reader_feed;
pub(crate) mod receive;
pub(crate) mod receiver;
pub(crate) mod send;
pub(crate) mod send_file;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod tls;
pub(crate) mod water_mark;
pub(crate) mod write_buffer;
pub(crate) mod write_pipe;
