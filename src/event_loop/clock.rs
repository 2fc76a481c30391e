//! The loop's clock, and how often somebody may have put another one in its place.
//!
//! asyncio's loop asks `time.monotonic` whenever it wants to know the time, so tools that freeze time replace that
//! function, at times in the middle of a coroutine. A loop of ours asks the kernel; it looks for a replacement when it
//! is made, when it begins to run, and when Python's `time` module has changed since.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::getattr;
use crate::capi::imports::imports;
use crate::capi::module_dict;
pub(crate) use crate::capi::module_dict::changes;
use crate::capi::pristine::Once;
use crate::capi::{Fallible, Raised, Ref};

/// The clock of `loop.time()`: CLOCK_MONOTONIC in seconds, computed as `time.monotonic()` does.
#[inline(always)]
pub(crate) fn monotonic() -> f64 {
    monotonic_nanos() as f64 / 1e9
}

/// CLOCK_MONOTONIC in nanoseconds.
#[inline(always)]
pub(crate) fn monotonic_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid clock and a valid place; this cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Begins to count the changes of the `time` module. Called once, by the module's initialisation.
pub(crate) fn learn(py: Python<'_>, native: NativeTiming) -> PyResult<()> {
    NATIVE.set(native);
    let time = py.import(Fallible("time"))?;
    // There are few watchers in a process. Without one, a clock replaced in the middle of a run is seen at the next.
    module_dict::watch(&time.dict());
    TIME.set(time.into_any().into());
    Ok(())
}

/// The addresses of the loop's native methods, by which the loop's own are known from replacements.
#[derive(Debug)]
pub(crate) struct NativeTiming {
    pub(crate) time: usize,
    pub(crate) call_at: usize,
}

static NATIVE: Once<NativeTiming> = Once::new();

/// Python's `time` module.
static TIME: Once<Ref> = Once::new();

/// Whether the time is somebody else's - overridden, put on the loop, or a patched `time.monotonic` -, and whether
/// `call_at` is. An error is one of the loop's own `__getattr__`, or of whoever took the function away.
pub(crate) fn custom_timing(event_loop: &Ref) -> Result<(bool, bool), Raised> {
    let Some(native) = NATIVE.get() else { return Ok((false, false)) };
    let names = imports();
    let own_time = is_own(event_loop, &names.time, native.time)?
        && match TIME.get() {
            Some(time) => {
                let monotonic = getattr(time.as_ptr(), names.monotonic.as_ptr())?;
                // SAFETY: a live object.
                unsafe { ffi::PyCFunction_Check(monotonic.as_ptr()) != 0 }
            }
            None => true,
        };
    Ok((!own_time, !is_own(event_loop, &names.call_at, native.call_at)?))
}

/// Is the loop's method of this name the native function? Asked by way of the loop, so that what stands on its class and
/// what was put on itself are both seen.
fn is_own(event_loop: &Ref, name: &Ref, function: usize) -> Result<bool, Raised> {
    let found = getattr(event_loop.as_ptr(), name.as_ptr())?;
    // SAFETY: a live object, which is asked for what a function of C's has if it is one.
    unsafe {
        Ok(ffi::PyCFunction_Check(found.as_ptr()) != 0
            && ffi::PyCFunction_GetSelf(found.as_ptr()) == event_loop.as_ptr()
            && ffi::PyCFunction_GetFunction(found.as_ptr()).is_some_and(|it| it as usize == function))
    }
}
