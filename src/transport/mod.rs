//! asyncio's transports.
//!
//! - [`base`]: the base of all kinds of transports.
//! - [`stream`]: TCP and Unix stream sockets, and the listeners that accept them.
//! - [`datagram`]: UDP and Unix datagram sockets.
//! - [`pipe`]: pipes, FIFOs and character devices.
//! - [`connect`]: connects to a numeric address. A stream transport then takes over the connection.
//! - [`tls`]: TLS on top of a stream transport.
//! - [`streams`]: native stream readers and writers. [`reader_feed`] feeds asyncio's own StreamReader without calling
//!   Python.
//!
//! **The path of a byte** from a stream socket to the protocol and back:
//! 1. `stream/transport.rs`: the poller reports the descriptor, and the transport handles the event.
//! 2. `stream/receive.rs`: the data is received.
//! 3. `base/protocol_sink.rs`: the protocol is called.
//! 4. `stream/methods.rs`: the protocol calls `write`.
//! 5. `stream/send.rs`: the data is sent when the protocol returns.
//! 6. `base/write_buffer.rs`: data that the socket does not accept waits here.
//!
//! Calls go in one direction: poller, transport, protocol, write. The functions for reading and writing return what
//! happened, and the transport acts on that.

mod attributes;
pub(crate) mod base;
pub(crate) mod connect;
pub(crate) mod datagram;
pub(crate) mod pipe;
pub(crate) mod reader_feed;
pub(crate) mod stream;
pub(crate) mod streams;
pub(crate) mod tls;
