//! The transport of TCP and Unix stream sockets.

pub(crate) mod accept;
pub(crate) mod address;
pub(crate) mod clients;
mod extra;
pub(crate) mod methods;
pub(crate) mod python;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod send_file;
mod start;
pub(crate) mod transport;
