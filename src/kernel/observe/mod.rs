//! What looks at a loop while it runs. Nothing here decides what a loop does.
//!
//! The files in reading order. Each file uses only files above it in this list.
//!
//! - [`naming`], [`recording`]: what the flight recorder sees of a loop
//! - [`slow`]: the turns' lengths, and what makes a turn slow
//! - [`gauges`], [`figures`]: the gauges, and what Python sees of the metrics
//! - [`busy_waits`]: the task or callback for which a loop waits busily
//! - [`labels`]: the processor time by label
//! - [`probe`]: the hooks that the kernel calls
//!
//! The state that they write is [`core::probe`](super::core::probe).

mod busy_waits;
pub(crate) mod figures;
pub(crate) mod gauges;
pub(crate) mod labels;
mod naming;
pub(crate) mod probe;
pub(crate) mod recording;
mod slow;
