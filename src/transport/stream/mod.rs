//! The transport of TCP and Unix stream sockets.
//!
//! The path of a byte:
//! 1. [`transport`]: the poller reports the descriptor.
//! 2. [`receive`]: the data is received, and the protocol is called with it.
//! 3. [`methods`]: the protocol calls `write`.
//! 4. [`send`]: the data is sent when the protocol returns.
//!
//! [`state`] has the fields. [`create`] creates a transport, [`accept`] creates one for each connection of a listening
//! socket. [`clients`] attaches transports to asyncio's server and detaches them, [`counted`] counts them.
//! [`sharing`] decides how several processes share the connections of a listening socket, by what they tell each other with
//! [`shared_load`]. [`low_water`] lets the kernel wait for all of a long read. [`send_file`] is `loop.sendfile`. [`extra`] is `get_extra_info`, [`address`] has system calls for addresses and
//! sockets.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod clients;
mod counted;
pub(crate) mod create;
mod extra;
pub(crate) mod low_water;
mod methods;
mod receive;
pub(crate) mod send;
pub(crate) mod send_file;
mod shared_load;
mod sharing;
pub(crate) mod state;
mod transport;

pub(crate) use counted::ClientCount;
