//! How a transport calls its protocol, and how it reports what fails: in asyncio's words, which people's log filters know.

use super::transport::TransportKind;
use crate::capi::call::call0;
use crate::capi::error::{raise, take_exception, take_unless_fatal};
use crate::capi::fallible::string_or_none;
use crate::capi::imports::imports;
use crate::capi::{Borrowed, Fatal, Raised, Ref, This};
use crate::event_loop::core::Core;

/// The caller of a protocol's method in asyncio. The report of a failure names it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// The loop, as a callback.
    Loop,
    /// The transport, when it reads.
    Reading,
    /// The transport, when the socket has room for what waits.
    Sending,
    /// The transport, in its last step, which has the method's argument.
    Ending,
}

/// Calls a method of the protocol from the loop, in the transport's context. What the method raises is reported, and the
/// transport lives on.
#[inline(always)]
pub(crate) fn notify<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    caller: Caller,
    name: &Ref,
    arguments: &[Borrowed<'_>],
) -> Result<(), Fatal> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    match this.base().in_context(|| protocol.call_method(name, arguments)) {
        Ok(_) => Ok(()),
        Err(raised) => report_call(this, core, caller, (&protocol, name), arguments, raised),
    }
}

/// Reports a call of the protocol that failed.
#[cold]
pub(crate) fn report_call<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    caller: Caller,
    (protocol, name): (&Ref, &Ref),
    arguments: &[Borrowed<'_>],
    raised: Raised,
) -> Result<(), Fatal> {
    let context = this.base().context.get().unwrap_or_else(Ref::none);
    let first = arguments.first().map(|argument| &**argument);
    let (step, argument) = match caller {
        Caller::Loop => {
            let exception = take_unless(raised)?;
            let callback = protocol.getattr(name).unwrap_or_else(|Raised| {
                drop(take_exception());
                protocol.clone_ref()
            });
            raise(exception);
            return core.report_call(callback, first.map(Ref::clone_ref), context, Raised);
        }
        Caller::Reading => ("_read_ready", None),
        Caller::Sending => ("_sendto_ready", None),
        Caller::Ending => ("_call_connection_lost", first),
    };
    core.report_step(&this.object(), step, argument, &context, raised)
}

/// The exception that is set, unless it has to leave the loop.
fn take_unless(raised: Raised) -> Result<Ref, Fatal> {
    let Raised = raised;
    take_unless_fatal()
}

/// Calls `connection_made(transport)`. `made` is the bound method.
pub(super) fn notify_made<T: TransportKind>(this: This<'_, T>, core: &Core, made: &Ref) -> Result<(), Fatal> {
    let called = this.base().in_context(|| made.call(&[this.object()]));
    called.map(drop).or_else(|raised| {
        let context = this.base().context.get().unwrap_or_else(Ref::none);
        core.report_call(made.clone_ref(), Some(this.object().to_owned()), context, raised)
    })
}

/// Calls `pause_writing()`: from a write, hence in the writer's own context.
pub(super) fn notify_pause<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    match protocol.call_method(&imports().pause_writing, &[]) {
        Ok(_) => Ok(()),
        Err(raised) => Ok(report_failure(this, raised, "protocol.pause_writing() failed")?),
    }
}

/// Calls `resume_writing()`: from the loop, hence in the transport's context.
pub(super) fn notify_resume<T: TransportKind>(this: This<'_, T>) -> Result<(), Fatal> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    let called = protocol
        .getattr(&imports().resume_writing)
        .and_then(|resume| this.base().in_context(|| call0(&resume)));
    match called {
        Ok(_) => Ok(()),
        Err(raised) => report_failure(this, raised, "protocol.resume_writing() failed"),
    }
}

/// Reports the error that is set, which a method of the protocol has raised. The connection goes on.
#[cold]
fn report_failure<T: TransportKind>(this: This<'_, T>, raised: Raised, message: &str) -> Result<(), Fatal> {
    report_exception(this, &take_unless(raised)?, message, "protocol_failed")
}

/// Reports an exception, with the transport and its protocol, by a function of `wakeloop._support`.
#[cold]
pub(super) fn report_exception<T: TransportKind>(
    this: This<'_, T>,
    exception: &Ref,
    message: &str,
    function: &str,
) -> Result<(), Fatal> {
    let core = this.base().core();
    let message = string_or_none(message);
    let protocol = this.protocol().get().unwrap_or_else(Ref::none);
    core.report(
        exception,
        function,
        &[core.borrow(), this.object(), protocol.borrow(), exception.borrow(), message.borrow()],
    )
}

/// Reports that the descriptor could not be closed, with the error that is set.
#[cold]
pub(super) fn report_close<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    raised: Raised,
) -> Result<(), Fatal> {
    let exception = take_unless(raised)?;
    let arguments = [core.borrow(), this.object(), exception.borrow()];
    core.report(&exception, "close_failed", &arguments)
}

/// Debug mode: writes a line to asyncio's log.
pub(crate) fn log_in_debug<T: TransportKind>(this: This<'_, T>, function: &str) -> Result<(), Fatal> {
    let core = this.base().core();
    if core.is_debug() { core.support(function, &[this.object()]) } else { Ok(()) }
}
