//! Whether a loop's clock is the native one.
//!
//! asyncio's loop calls `time.monotonic` whenever it needs the time, so tools that freeze time replace that function, at
//! times in the middle of a coroutine. Others override `time` or `call_at` on the loop or on its class. Our loop asks the
//! kernel. It looks for a replacement when it is made, when it begins to run, and when its class or `time.monotonic` has
//! been changed since.

use pyo3::ffi;
use pyo3::prelude::*;

use super::function::Function;
pub(crate) use super::module_name::changes;
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};

/// The addresses of the loop's native methods.
#[derive(Debug)]
pub(crate) struct NativeTiming {
    pub(crate) time: usize,
    pub(crate) call_at: usize,
}

/// What native code does in the place of asyncio's clock.
#[derive(Debug)]
struct Clock {
    monotonic: Function,
    native: NativeTiming,
}

static CLOCK: Once<Clock> = Once::new();

/// What is not native about a loop's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replaced {
    /// `time`, by an override, an attribute of the loop, or a patched `time.monotonic`.
    pub(crate) time: bool,
    pub(crate) call_at: bool,
}

/// Watches `time.monotonic`. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>, native: NativeTiming) -> PyResult<()> {
    CLOCK.set(Clock { monotonic: Function::in_module(py, "time", "monotonic")?, native });
    Ok(())
}

/// Does the answer of [`replaced`] hold until [`changes`] gives another number?
pub(crate) fn has_settled() -> bool {
    CLOCK.get().is_none_or(|clock| clock.monotonic.has_settled())
}

/// Looks at the clock of a loop. Errors are those of the loop's own `__getattr__`, or come from a `time.monotonic` that
/// was deleted.
pub(crate) fn replaced(event_loop: &Ref) -> Result<Replaced, Raised> {
    let Some(clock) = CLOCK.get() else { return Ok(Replaced::default()) };
    let names = imports();
    let native_time =
        is_native(event_loop, &names.time, clock.native.time)? && clock.monotonic.is_unpatched()?;
    let native_call_at = is_native(event_loop, &names.call_at, clock.native.call_at)?;
    Ok(Replaced { time: !native_time, call_at: !native_call_at })
}

/// Is the loop's method of this name the native function? The lookup goes through the loop, so that it sees an override
/// on the class and an attribute of the instance.
fn is_native(event_loop: &Ref, name: &Ref, function: usize) -> Result<bool, Raised> {
    let found = event_loop.getattr(name)?;
    // SAFETY: a live object, whose function and receiver are read only if it is a function of C.
    unsafe {
        Ok(ffi::PyCFunction_Check(found.as_ptr()) != 0
            && ffi::PyCFunction_GetSelf(found.as_ptr()) == event_loop.as_ptr()
            && ffi::PyCFunction_GetFunction(found.as_ptr()).is_some_and(|it| it as usize == function))
    }
}
