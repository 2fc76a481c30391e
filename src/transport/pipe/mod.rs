//! The transports of pipes, FIFOs and character devices: one that reads, one that writes.

pub(crate) mod read;
pub(crate) mod write;
