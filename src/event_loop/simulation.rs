//! What `wakeloop.testing` asks a loop: when the next timer is due, and which real things are awaited.
//!
//! Only turns that run in Python ask. Nothing is counted for this: a loop that is not under test pays nothing.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::capi::fallible::list;
use crate::capi::inspect::{float, integer};
use crate::capi::methods::Method;
use crate::capi::native::This;
use crate::capi::{Raised, Ref};
use crate::kernel::core::Core;
use crate::kernel::core::fd_table::Status;
use crate::kernel::watch::selector_events;

fn next_deadline(core: This<'_, Core>) -> Result<Ref, Raised> {
    core.timers.next().map_or_else(|| Ok(Ref::none()), float)
}

/// Does the source wait for an event? One that has paused reading and has nothing to send does not.
fn waits(status: &Status) -> bool {
    !status.detached && (!status.reading_paused || status.unsent > 0)
}

/// Descriptors that are watched for the program. Those that the loop watches for itself do not count.
fn descriptors(core: This<'_, Core>) -> Result<Ref, Raised> {
    let is_watched = |&fd: &i32| {
        let internal = core.fds.watched(fd).is_some_and(|watched| watched.internal.get());
        !internal && selector_events(&core, fd) != 0
    };
    let watched = core.fds.descriptors().iter().filter(|fd| is_watched(fd)).count();
    let sources = core.fds.statuses().iter().filter(|status| waits(status)).count();
    integer((watched + sources) as i64)
}

/// Whatever runs elsewhere and will report to this loop has a reference to its inbox: operations of the runtime, jobs of
/// its pools, lookups. The loop itself has one, and so has each of its tasks that waits for a queue or an event.
fn operations(core: This<'_, Core>) -> Result<Ref, Raised> {
    integer(Arc::strong_count(&core.inbox) as i64 - 1 - i64::from(core.inbox.waiters()))
}

/// The transports and listeners that have a descriptor.
fn sources(core: This<'_, Core>) -> PyResult<Ref> {
    let open = core.fds.sources().into_iter().map(|source| source.bind(core.py()));
    Ok(Ref::from(list(core.py(), open)?.into_any()))
}

/// The methods that are added to the loop class.
pub(crate) const METHODS: &[Method<Core>] = &[
    Method::no_args(
        c"_next_deadline",
        next_deadline,
        c"_next_deadline()\n\nWhen the next timer is due, on the clock of time(). None without a timer.",
    ),
    Method::no_args(
        c"_awaited_descriptors",
        descriptors,
        c"_awaited_descriptors()\n\nHow many descriptors the program waits for.",
    ),
    Method::no_args(
        c"_sources",
        sources,
        c"_sources()\n\nThe native transports and listeners that are open.",
    ),
    Method::no_args(
        c"_awaited_operations",
        operations,
        c"_awaited_operations()\n\nHow many operations of the runtime will report to this loop.",
    ),
];
