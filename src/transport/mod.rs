//! asyncio's transports.
//!
//! [`stream`] is the TCP and Unix socket transport: its life from connection_made to connection_lost.
//! [`receive`] brings bytes to the protocol, [`write_buffer`] takes them from it, [`accept`] makes
//! transports of what arrives at a listening socket, [`methods`] is what Python sees.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod methods;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod stream;
pub(crate) mod write_buffer;
