//! Reports errors that cannot be raised to a caller: to the loop's exception handler or to `sys.unraisablehook`.

use super::core::Core;
use super::handle::layout::{Handle, HandleRef, Parts};
use super::support::call_support;
use super::unraisable::unraisable;
use crate::capi::error::{handling, take_unless_fatal};
use crate::capi::fallible::string_or_none;
use crate::capi::inspect::clear_error;
use crate::capi::object::interpreter_ends;
use crate::capi::{Borrowed, Fatal, Raised, Ref};

impl Core {
    /// Passes the error of a handle's callback to the loop's exception handler, and empties the handle. A fatal error
    /// stays set.
    #[cold]
    pub(crate) fn report_handle(&self, handle: &HandleRef, raised: Raised) -> Result<(), Fatal> {
        let Raised = raised;
        let object = handle.object();
        // In debug mode the log may still have to name the callback, if it was slow.
        let owners = if self.is_debug() { 0 } else { object.refcount() };
        let reported = take_unless_fatal().and_then(|exception| {
            let arguments = [self.borrow(), object.borrow(), exception.borrow()];
            self.report(&exception, "callback_failed", &arguments)
        });
        handle.reported(owners);
        reported
    }

    /// The same for a callback without a Handle. It gets a Handle for the report.
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

    /// The same for a transport whose protocol has raised. The report names the corresponding method (`step`) of
    /// asyncio's transport, because existing log filters look for it.
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

    /// Calls a function of `wakeloop._support`. Its errors are printed, unless they are fatal.
    #[cold]
    pub(crate) fn support(&self, function: &str, arguments: &[Borrowed<'_>]) -> Result<(), Fatal> {
        call_reporter(self.borrow(), function, arguments).or_else(|raised| self.unraisable(raised))
    }

    /// Calls a function of `wakeloop._support`. Its errors leave run_forever.
    #[cold]
    pub(crate) fn support_or_leave(&self, function: &str, arguments: &[Borrowed<'_>]) -> Result<(), Fatal> {
        call_reporter(self.borrow(), function, arguments).map_err(|Raised| Fatal)
    }

    /// Calls a function of `wakeloop._support` that reports `exception`. As in asyncio, `exception` is the one being
    /// handled during the call, and an error of the function leaves run_forever: some loop classes override
    /// `call_exception_handler` with a method that raises, for example in tests.
    #[cold]
    pub(crate) fn report(
        &self,
        exception: &Ref,
        function: &str,
        arguments: &[Borrowed<'_>],
    ) -> Result<(), Fatal> {
        handling(exception, || call_reporter(self.borrow(), function, arguments).map_err(|Raised| Fatal))
    }

    /// Passes an error to `sys.unraisablehook`. A fatal error stays set.
    #[cold]
    pub(crate) fn unraisable(&self, raised: Raised) -> Result<(), Fatal> {
        unraisable(&self.this(), raised)
    }
}

fn call_reporter(event_loop: Borrowed<'_>, function: &str, arguments: &[Borrowed<'_>]) -> Result<(), Raised> {
    call_support(event_loop.py(), function, arguments).map(drop).or_else(|Raised| {
        if !interpreter_ends() {
            return Err(Raised);
        }
        // The interpreter finalizes. What the report needs of Python's modules may be cleared.
        clear_error();
        Ok(())
    })
}
