//! The transport of TCP and Unix stream sockets.
//!
//! The path of a byte: [`transport`] is told by the poller, [`receive`] takes the data and calls the protocol, [`methods`]
//! are what the protocol calls, [`send`] sends what it has written. [`state`] has the fields, [`create`] makes a
//! transport, [`accept`] makes them of what arrives at a listening socket, and [`clients`] tells asyncio's server of
//! them ([`counted`] counts them). [`send_file`] sends a file in between, [`extra`] and [`address`] know who is connected.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod clients;
mod counted;
pub(crate) mod create;
mod extra;
mod methods;
mod receive;
pub(crate) mod send;
pub(crate) mod send_file;
pub(crate) mod state;
mod transport;

pub(crate) use counted::ClientCount;
