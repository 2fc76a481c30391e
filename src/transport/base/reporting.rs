//! Calls the protocol, and reports its errors with asyncio's messages, because existing log filters look for them.

use super::transport::TransportKind;
use crate::capi::call::call0;
use crate::capi::error::{raise, take_exception, take_unless_fatal};
use crate::capi::fallible::string_or_none;
use crate::capi::imports::imports;
use crate::capi::{Borrowed, Fatal, Raised, Ref, This};
use crate::kernel::core::Core;
use crate::kernel::observe::recording;

/// Where asyncio calls a protocol's method. The report of an error names it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Caller {
    /// The loop, as a callback.
    Loop,
    /// The transport, in `_read_ready`.
    Reading,
    /// The transport, in `_sendto_ready`.
    Sending,
    /// The transport, in `_call_connection_lost`, whose argument is that of the method.
    Ending,
}

/// Calls a method of the protocol from the loop, in the transport's context. An error of the method is reported, and
/// the transport stays open.
#[inline(always)]
pub(crate) fn notify<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    caller: Caller,
    name: &Ref,
    arguments: &[Borrowed<'_>],
) -> Result<(), Fatal> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    if core.probe.recorder.is_on() {
        recording::call(core, &protocol);
    }
    let called = this.base().in_context(|| protocol.call_method(name, arguments));
    called.map(drop).or_else(|raised| report_call(this, core, caller, (&protocol, name), arguments, raised))
}

/// Reports an error of a protocol's method.
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
            let exception = take_exception_unless_fatal(raised)?;
            let callback = protocol.getattr(name).unwrap_or_else(|Raised| {
                drop(take_exception());
                protocol.clone_ref()
            });
            let raised = raise(exception);
            return core.report_call(callback, first.map(Ref::clone_ref), context, raised);
        }
        Caller::Reading => ("_read_ready", None),
        Caller::Sending => ("_sendto_ready", None),
        Caller::Ending => ("_call_connection_lost", first),
    };
    core.report_step(&this.object(), step, argument, &context, raised)
}

/// Takes the exception that is set. If it is fatal, it stays set.
fn take_exception_unless_fatal(raised: Raised) -> Result<Ref, Fatal> {
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

/// Calls `pause_writing()`, in the context of the code that writes.
pub(super) fn notify_pause<T: TransportKind>(this: This<'_, T>) -> Result<(), Raised> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    let called = protocol.call_method(&imports().pause_writing, &[]).map(drop);
    called.or_else(|raised| Ok(report_failure(this, raised, "protocol.pause_writing() failed")?))
}

/// Calls `resume_writing()`, in the transport's context.
pub(super) fn notify_resume<T: TransportKind>(this: This<'_, T>) -> Result<(), Fatal> {
    let Some(protocol) = this.protocol().get() else { return Ok(()) };
    let called = protocol
        .getattr(&imports().resume_writing)
        .and_then(|resume| this.base().in_context(|| call0(&resume)));
    called.map(drop).or_else(|raised| report_failure(this, raised, "protocol.resume_writing() failed"))
}

/// Reports the error that a method of the protocol has raised. The connection stays open.
#[cold]
fn report_failure<T: TransportKind>(this: This<'_, T>, raised: Raised, message: &str) -> Result<(), Fatal> {
    report_exception(this, &take_exception_unless_fatal(raised)?, message, "protocol_failed")
}

/// Passes an exception, with the transport and its protocol, to a function of `wakeloop._support` that reports it.
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

/// Reports that the descriptor could not be closed, with the error that is set: most likely the program has closed it
/// already. `lost_exception` is the argument of `connection_lost`.
#[cold]
pub(super) fn report_close<T: TransportKind>(
    this: This<'_, T>,
    core: &Core,
    lost_exception: &Ref,
    raised: Raised,
) -> Result<(), Fatal> {
    let context = this.base().context.get().unwrap_or_else(Ref::none);
    core.report_step(&this.object(), "_call_connection_lost", Some(lost_exception), &context, raised)
}

/// Reports the error that is set: the poller does not take the descriptor. The transport stays open.
#[cold]
pub(super) fn report_unwatched<T: TransportKind>(this: This<'_, T>, raised: Raised) -> Result<(), Fatal> {
    let exception = take_exception_unless_fatal(raised)?;
    let core = this.base().core();
    let context = this.base().context.get().unwrap_or_else(Ref::none);
    let arguments = [core.borrow(), this.object(), context.borrow(), exception.borrow()];
    core.report(&exception, "cannot_watch", &arguments)
}

/// In debug mode, writes a line to asyncio's log.
pub(crate) fn log_in_debug<T: TransportKind>(this: This<'_, T>, function: &str) -> Result<(), Fatal> {
    let core = this.base().core();
    if core.is_debug() { core.support(function, &[this.object()]) } else { Ok(()) }
}
