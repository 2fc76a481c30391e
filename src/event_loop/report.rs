//! Errors that no caller gets: to the loop's exception handler, and where that fails, to `sys.unraisablehook`.

use super::core::Core;
use super::handle::layout::{Handle, HandleRef, Parts};
use super::unraisable::unraisable;
use crate::capi::error::{handling, take_unless_fatal};
use crate::capi::fallible::string_or_none;
use crate::capi::imports::support;
use crate::capi::object::interpreter_ends;
use crate::capi::{Borrowed, Fatal, Raised, Ref};

impl Core {
    /// Hands an error of a handle's callback to the loop's exception handler, and empties the handle. A fatal error
    /// stays set.
    #[cold]
    pub(crate) fn report_handle(&self, handle: &HandleRef, raised: Raised) -> Result<(), Fatal> {
        let Raised = raised;
        let object = handle.object();
        // In debug mode the log may have to name it yet, if it was slow.
        let owners = if self.is_debug() { 0 } else { object.refcount() };
        let reported = take_unless_fatal().and_then(|exception| {
            let arguments = [self.borrow(), object.borrow(), exception.borrow()];
            self.report(&exception, "callback_failed", &arguments)
        });
        handle.reported(owners);
        reported
    }

    /// The same for a callback that never had a Handle: it gets one now, for the report.
    #[cold]
    pub(crate) fn report_call(
        &self,
        callback: Ref,
        argument: Option<Ref>,
        context: Ref,
        raised: Raised,
    ) -> Result<(), Fatal> {
        let Raised = raised;
        let exception = take_unless_fatal()?;
        let argument = argument.as_ref().map(Ref::borrow);
        let parts = Parts { event_loop: self.loop_ref(), callback, arguments: argument.as_slice(), context };
        match Handle::create(parts) {
            Ok(handle) => {
                let arguments = [self.borrow(), handle.object().borrow(), exception.borrow()];
                let reported = self.report(&exception, "bare_callback_failed", &arguments);
                handle.reported(1);
                reported
            }
            Err(raised) => self.unraisable(raised),
        }
    }

    /// The same for a step of a transport, which calls its protocol in the middle of its own work. The report names the
    /// method of asyncio's transport that does the same, because log filters know that one.
    #[cold]
    pub(crate) fn report_step(
        &self,
        transport: &Ref,
        step: &str,
        argument: Option<&Ref>,
        context: &Ref,
        raised: Raised,
    ) -> Result<(), Fatal> {
        let Raised = raised;
        let exception = take_unless_fatal()?;
        let step = string_or_none(step);
        let mut arguments = vec![self.borrow()];
        arguments.extend([transport, &step, context, &exception].map(Ref::borrow));
        arguments.extend(argument.map(Ref::borrow));
        self.report(&exception, "step_failed", &arguments)
    }

    /// Calls a function of `wakeloop._support`. Its errors can only be printed, unless they are fatal.
    #[cold]
    pub(crate) fn support(&self, function: &str, arguments: &[Borrowed<'_>]) -> Result<(), Fatal> {
        call_support(self.borrow(), function, arguments).or_else(|raised| self.unraisable(raised))
    }

    /// The same for a function that reports `exception`. As in asyncio, it is called where the exception is handled, and
    /// an error of its own leaves run_forever: a loop's class may have a `call_exception_handler` that raises, such as
    /// one for tests.
    #[cold]
    pub(crate) fn report(
        &self,
        exception: &Ref,
        function: &str,
        arguments: &[Borrowed<'_>],
    ) -> Result<(), Fatal> {
        handling(exception, || call_support(self.borrow(), function, arguments).map_err(|Raised| Fatal))
    }

    /// The last resort for an error: `sys.unraisablehook`. A fatal one stays set.
    #[cold]
    pub(crate) fn unraisable(&self, raised: Raised) -> Result<(), Fatal> {
        unraisable(&self.this(), raised)
    }
}

fn call_support(event_loop: Borrowed<'_>, function: &str, arguments: &[Borrowed<'_>]) -> Result<(), Raised> {
    if interpreter_ends() {
        // The modules are being taken apart, and there is no handler any more.
        return Ok(());
    }
    let function = Ref::from(support(event_loop.py(), function)?);
    function.call(arguments).map(drop)
}
