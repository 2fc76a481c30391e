//! The base of all kinds of transports.
//!
//! The files in reading order:
//! - [`transport`]: the common fields, and the trait that each kind implements
//! - [`phase`]: the phases of a transport, from `connection_made` to `connection_lost`
//! - [`opening`], [`closing`]: how a transport begins and ends
//! - [`watching`]: its registration in the poller; [`events`]: when it handles an event
//! - [`flow_control`], [`water_marks`]: `pause_writing` and `resume_writing`
//! - [`reporting`]: calls the protocol, and reports its errors
//! - [`class`], [`methods`]: the Python class
//! - [`protocol_sink`]: delivers received data to a protocol; [`write_buffer`]: data that is not sent yet
//! - [`write_habit`]: when a write leaves
//! - [`sizes`]: of receives and sends; [`heap`]: the memory of large messages

pub(crate) mod class;
pub(crate) mod closing;
pub(crate) mod events;
pub(crate) mod flow_control;
pub(crate) mod heap;
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
pub(crate) mod write_habit;
