//! How a connection begins: `connection_made`, and the news that comes before its protocol may hear it.

use super::transport::{ARRIVED, Stream, Transport, stream_of};
use crate::capi::call::call1;
use crate::capi::error::{Outcome, raise_io};
use crate::capi::{Fatal, Ref};
use crate::event_loop::completion::complete;
use crate::event_loop::core::Core;
use crate::event_loop::source::Source;
use crate::reactor::{Interest, Readiness};
use crate::transport::base::watching::UNWATCHED;

/// The first step: `connection_made`, then reading, then whoever waits for the connection. A fatal error in
/// the first leaves when the other two are done: the connection goes on in the next run.
pub(crate) fn start(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a transport.
    let stream = unsafe { stream_of(object.as_ptr()) };
    let mut outcome = Outcome::default();
    if let Some(made) = stream.made.take() {
        let result = stream.in_context(|| call1(&made, object.as_ptr()));
        outcome.note(result.map(drop).or_else(|raised| {
            let context = stream.context.get().unwrap_or_else(Ref::none);
            core.report_call(&made, Some(object), &context, raised)
        }));
    }
    let waiter = stream.waiter.take();
    // What is in the poller already has news in this very turn, before the task that waits has its step: it may
    // have to tell the protocol where the data goes. Until then all news is kept.
    let held = stream.registered && waiter.is_some();
    stream.started.set(!held);
    if stream.conn_lost.get() == 0
        && let Err(error) = register(stream, core)
    {
        outcome.note(stream.end_with(object, raise_io(&error), UNWATCHED, "protocol_failed"));
    }
    if let Some(waiter) = &waiter {
        outcome.note(complete(core, waiter));
    }
    if held {
        // What is there by now is received behind the first step of whoever waits, before what that schedules.
        core.note_io();
        core.call_native(object.clone_ref(), release);
    } else if let Some(news) = early(stream) {
        core.requeue(stream.token.get(), news);
    }
    outcome.finish()
}

/// The news that was kept is acted upon, and what comes from now on at once.
fn release(object: &Ref, core: &Core) -> Result<(), Fatal> {
    // SAFETY: the step was queued with a transport.
    let stream = unsafe { stream_of(object.as_ptr()) };
    stream.started.set(true);
    if stream.is_reading() && stream.has_just_resumed(core) {
        stream.resume();
        return Ok(());
    }
    early(stream).map_or(Ok(()), |news| Transport::on_ready(object, core, news))
}

/// News of a transport that does not act upon it yet; or does from now on.
#[cold]
pub(crate) fn not_started(
    object: &Ref,
    stream: &Stream,
    core: &Core,
    readiness: Readiness,
) -> Result<(), Fatal> {
    let readiness = stream.early.get() | readiness;
    if !stream.resuming.get() || stream.has_just_resumed(core) {
        stream.early.set(readiness);
        return Ok(());
    }
    stream.early.set(Readiness::EMPTY);
    stream.resuming.set(false);
    stream.started.set(true);
    Transport::on_ready(object, core, readiness)
}

/// Takes the news that was kept, if it is any to this transport.
fn early(stream: &Stream) -> Option<Readiness> {
    let early = stream.early.replace(Readiness::EMPTY);
    let news = early.intersects(ARRIVED) || (stream.blocked.get() && !early.is_empty());
    (news && stream.conn_lost.get() == 0).then_some(early)
}

fn register(stream: &Stream, core: &Core) -> std::io::Result<()> {
    if stream.registered {
        return Ok(());
    }
    let Some(poller) = core.poller() else { return Ok(()) };
    let (fd, token) = (stream.descriptor(), stream.token.get());
    match poller.register_edge(fd, token, Interest::BOTH) {
        // The descriptor is known from a `sock_connect` that waited on it.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            poller.reregister_edge(fd, token, Interest::BOTH)
        }
        other => other,
    }
}
