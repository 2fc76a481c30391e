//! asyncio's transports.
//!
//! - [`base`]: what transports of every kind have in common.
//! - [`stream`]: TCP and Unix stream sockets, and the listeners that accept them.
//! - [`datagram`]: UDP and Unix datagram sockets.
//! - [`pipe`]: pipes, FIFOs and character devices.
//! - [`connect`]: a connection to a numeric address, until a stream transport takes it over.
//! - [`tls`]: TLS on top of a stream transport.
//! - [`streams`]: native stream readers and writers; [`reader_feed`] is a shorter way to asyncio's own StreamReader.
//!
//! **The path of a byte** from a stream socket to the protocol and back:
//! 1. `stream/transport.rs`: the poller reports the descriptor, and the transport acts on it.
//! 2. `stream/receive.rs`: one receive.
//! 3. `base/protocol_sink.rs`: the call of the protocol.
//! 4. `stream/methods.rs`: the protocol calls `write`.
//! 5. `stream/send.rs`: the data is kept until the protocol returns, then sent.
//! 6. `base/write_buffer.rs`: what the socket does not take waits here.
//!
//! Calls run one way: poller, transport, protocol, write. Reading and writing return what happened, and the transport acts
//! on it.

mod attributes;
pub(crate) mod base;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod pipe;
pub(crate) mod reader_feed;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod tls;
