//! The driver: waits for sockets and timers together.
//!
//! [`Driver`] is the half that waits; at most one thread at a time has it. [`Handle`] is the half that all
//! threads use to register a socket, to arm or cancel a timer, or to end the wait.
//!
//! A driver starts closed, and is opened when a socket or a timer is first used. So a runtime that uses neither
//! opens no descriptors.
//!
//! Arming a timer that is due before the wait ends also ends the wait, so that the next wait can be shorter.
//! One lock guards both the heap and whether, and until when, a thread waits, so no deadline is missed.

mod handle;
#[cfg(all(test, wakeloop_loom))]
#[path = "../../../tests/models/driver/reactor.rs"]
mod model_reactor;
mod registered;
mod registration;
mod timers;
mod wait;

#[cfg(all(test, any(wakeloop_loom, wakeloop_shuttle)))]
#[path = "../../../tests/models/driver/readiness_and_timers.rs"]
mod model;

pub(super) use handle::Handle;
pub(super) use registered::Registration;
pub(super) use registration::Direction;
pub(super) use timers::{Armed, TimerEntry};
pub(super) use wait::{Driver, note_received};
