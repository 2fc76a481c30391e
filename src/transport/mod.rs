//! asyncio's transports.
//!
//! - [`base`]: what transports of every kind have in common.
//! - [`stream`]: TCP and Unix stream sockets, and the listeners that accept them.
//! - [`datagram`]: UDP and Unix datagram sockets.
//! - [`pipe`]: pipes, FIFOs and character devices.
//! - [`connect`]: a connection to a numeric address, until a stream transport takes it over.
//! - [`tls`]: TLS on top of a stream transport.
//! - [`streams`]: native stream readers and writers; [`reader_feed`] is a shorter way to asyncio's own StreamReader.

pub(crate) mod base;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod pipe;
pub(crate) mod reader_feed;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod tls;
