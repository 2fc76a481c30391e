//! The transports of pipes, FIFOs and character devices: [`read`] and [`write`], each for one end.

mod fd_holder;
pub(crate) mod read;
pub(crate) mod write;
