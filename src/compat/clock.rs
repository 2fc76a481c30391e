//! Checks whether a program has replaced a loop's clock.
//!
//! asyncio's loop calls its method `time` whenever it needs the time, and that calls `time.monotonic`. Tools that freeze
//! time replace one of the two, sometimes while a coroutine runs. Other tools override `time` or `call_at` on the loop
//! or on its class. Our loop reads the kernel's clock instead. It looks for a replacement when it first needs the time,
//! when it begins to run, and when its class (or a base class) or `time.monotonic` has changed since the last look.

use pyo3::prelude::*;

use super::class::Class;
use super::function::Function;
pub(crate) use super::module_name::changes;
use crate::capi::function::is_method;
use crate::capi::imports::imports;
use crate::capi::once::Once;
use crate::capi::{Raised, Ref};

/// The addresses of the loop's native methods.
#[derive(Debug)]
pub(crate) struct NativeTiming {
    pub(crate) time: usize,
    pub(crate) call_at: usize,
}

/// What native code replaces, and with what.
#[derive(Debug)]
struct Clock {
    monotonic: Function,
    /// The `time` of asyncio's loop.
    method: Class,
    /// The module `time`, as the code of asyncio's loop sees it.
    module: Function,
    native: NativeTiming,
}

static CLOCK: Once<Clock> = Once::new();

/// The parts of a loop's clock that a program has replaced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Replaced {
    /// `time` is replaced by an override, by a patch, by an attribute of the loop, or by a patched `time.monotonic`.
    pub(crate) time: bool,
    pub(crate) call_at: bool,
}

/// Watches `time.monotonic`. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>, native: NativeTiming) -> PyResult<()> {
    let monotonic = Function::in_module(py, "time", "monotonic")?;
    let module = Function::in_module(py, "asyncio.base_events", "time")?;
    let method = Class::of(imports().selector_event_loop.clone_ref(), &["time"], false)?;
    CLOCK.set(Clock { monotonic, method, module, native });
    Ok(())
}

/// Is the answer of [`replaced`] valid until [`changes`] returns another number?
pub(crate) fn has_settled() -> bool {
    CLOCK.get().is_none_or(|clock| clock.monotonic.has_settled() && clock.module.has_settled())
}

/// Finds out which parts of a loop's clock are replaced. An error comes from the loop's own `__getattr__`, or from a
/// deleted `time.monotonic`.
pub(crate) fn replaced(event_loop: &Ref) -> Result<Replaced, Raised> {
    let Some(clock) = CLOCK.get() else { return Ok(Replaced::default()) };
    let names = imports();
    let native_time = is_native(event_loop, &names.time, clock.native.time)?
        && clock.method.patch_of(0).is_none()
        && clock.monotonic.is_unpatched()?
        && clock.module.is_unpatched()?;
    let native_call_at = is_native(event_loop, &names.call_at, clock.native.call_at)?;
    Ok(Replaced { time: !native_time, call_at: !native_call_at })
}

/// Is the loop's method of this name the native function? The lookup starts at the loop, so it finds an attribute of
/// the instance and an override in a class.
fn is_native(event_loop: &Ref, name: &Ref, function: usize) -> Result<bool, Raised> {
    Ok(is_method(&event_loop.getattr(name)?, event_loop, function))
}
