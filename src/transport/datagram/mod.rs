//! The transport of UDP and Unix datagram sockets.

pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod transport;
