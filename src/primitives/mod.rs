//! What Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

pub(crate) mod blocking;
pub(crate) mod echo;
pub(crate) mod lookup;
pub(crate) mod metrics;
pub(crate) mod sleep;
