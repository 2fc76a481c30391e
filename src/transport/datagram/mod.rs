//! The transport of UDP and Unix datagram sockets.
//!
//! The path of a datagram:
//! 1. [`transport`]: the poller reports the descriptor.
//! 2. [`receive`]: datagrams are received, several per system call if several are waiting, and the protocol is called.
//! 3. [`send`]: the first datagram that the protocol sends in a turn is sent at once, the others at the end of the
//!    turn.
//!
//! [`state`] has the fields, [`peers`] the addresses of recent senders.

mod peers;
mod receive;
mod send;
mod state;
pub(crate) mod transport;
