//! The transport of UDP and Unix datagram sockets.
//!
//! The path of a datagram: [`transport`] is told by the poller, [`receive`] brings datagrams to the protocol, several per
//! system call when several wait, and [`send`] takes them from it, at once or, from the second one of a turn on, together
//! at its end. [`peers`] remembers who was heard of last, [`state`] has the fields.

mod peers;
mod receive;
mod send;
mod state;
pub(crate) mod transport;
