//! What transports of every kind have in common.

pub(crate) mod endpoint;
pub(crate) mod flow_control;
pub(crate) mod methods;
pub(crate) mod object;
pub(crate) mod protocol_sink;
pub(crate) mod watching;
pub(crate) mod write_buffer;
