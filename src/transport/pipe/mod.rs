//! The transports of pipes, FIFOs and character devices: [`read`] for the reading end, and [`write`](mod@write) for the
//! writing end.

mod fd_holder;
pub(crate) mod read;
pub(crate) mod write;
