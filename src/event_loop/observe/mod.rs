//! What looks at a loop while it runs. Nothing here decides what a loop does.
//!
//! The files in reading order. Each file uses only files above it in this list.
//!
//! - [`naming`], [`recording`]: what the flight recorder sees of a loop
//! - [`slow`]: the turns' lengths, and what makes a turn slow
//! - [`publish`], [`figures`]: the gauges, and what Python and readers of the shared page see of the metrics
//! - [`probe`]: the hooks that the kernel calls
//!
//! The state that they write is [`core::probe`](super::core::probe).

pub(crate) mod figures;
mod naming;
pub(in crate::event_loop) mod probe;
pub(in crate::event_loop) mod publish;
pub(crate) mod recording;
mod slow;
