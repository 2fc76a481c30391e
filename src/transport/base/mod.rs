//! What transports of every kind have in common: one type, one life, one table of methods.
//!
//! In the order in which a reader wants them: [`transport`] is the type and [`phase`] its life, [`opening`] and [`closing`]
//! its two ends. [`watching`] is what the poller is asked, [`events`] when its answers are acted on. [`flow_control`]
//! compares what is unsent with the [`water_marks`]. [`reporting`] calls the protocol and reports what fails. [`class`]
//! and [`methods`] are what Python sees. [`protocol_sink`] and [`write_buffer`] are the two ends of a stream of bytes.

pub(crate) mod class;
pub(crate) mod closing;
pub(crate) mod events;
pub(crate) mod flow_control;
pub(crate) mod methods;
pub(crate) mod opening;
pub(crate) mod phase;
pub(crate) mod protocol_sink;
pub(crate) mod reporting;
pub(crate) mod sizes;
pub(crate) mod transport;
pub(crate) mod watching;
pub(crate) mod water_marks;
pub(crate) mod write_buffer;
