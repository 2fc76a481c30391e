//! The transport of UDP and Unix datagram sockets.
//!
//! The path of a datagram:
//! 1. [`transport`]: the poller reports the descriptor.
//! 2. [`receive`]: datagrams are received, several per system call when several wait, and the protocol is called.
//! 3. [`send`]: the first datagram that the protocol sends in a turn leaves at once, the others at its end.
//!
//! [`state`] has the fields, [`peers`] the addresses of recent senders.

mod peers;
mod receive;
mod send;
mod state;
pub(crate) mod transport;
