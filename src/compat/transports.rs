//! Methods of asyncio's transports that programs patch on asyncio's classes.
//!
//! Tests of other people's put a mock in the place of `BaseTransport.get_extra_info`, on the class where it is defined
//! or on one that inherits it. Our transports define these methods natively, so they would never see the mock. Each of
//! the native methods therefore asks [`patch_of`] first, by way of [`patchable!`]. The question is put to the class of
//! asyncio that our transport stands for, which sees patches on all its bases.

use std::ptr::null_mut;

use pyo3::ffi;
use pyo3::prelude::*;

use super::class::Class;
use crate::capi::call::{call_plain, guard};
use crate::capi::once::Once;
use crate::capi::{Fallible, Raised, Ref};

macro_rules! methods {
    ($($method:ident = $name:literal,)*) => {
        /// A method that asks for patches.
        #[derive(Clone, Copy, Debug)]
        pub(crate) enum Method {
            $($method,)*
        }

        const METHODS: &[&str] = &[$($name),*];
    };
}

methods! {
    Abort = "abort",
    Close = "close",
    GetExtraInfo = "get_extra_info",
    GetProtocol = "get_protocol",
    GetWriteBufferLimits = "get_write_buffer_limits",
    GetWriteBufferSize = "get_write_buffer_size",
    IsClosing = "is_closing",
    IsReading = "is_reading",
    PauseReading = "pause_reading",
    ResumeReading = "resume_reading",
    SetProtocol = "set_protocol",
    SetWriteBufferLimits = "set_write_buffer_limits",
    Writelines = "writelines",
}

/// Our transports, and the classes of asyncio that they stand for.
const KINDS: [(&str, &str, &str); 4] = [
    ("StreamTransport", "asyncio.selector_events", "_SelectorSocketTransport"),
    ("DatagramTransport", "asyncio.selector_events", "_SelectorDatagramTransport"),
    ("ReadPipeTransport", "asyncio.unix_events", "_UnixReadPipeTransport"),
    ("WritePipeTransport", "asyncio.unix_events", "_UnixWritePipeTransport"),
];

/// A type of ours, and asyncio's class.
type Kinds = Vec<(Ref, Class)>;

static CLASSES: Once<Kinds> = Once::new();

/// Notes asyncio's classes as they are. Called once, by the module's initialisation, when our types are made.
pub(crate) fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let mut kinds = Vec::new();
    for (ours, home, class) in KINDS {
        let class = Ref::from(py.import(Fallible(home))?.getattr(Fallible(class))?);
        let class = Class::of(class, METHODS, false).map_err(|Raised| crate::capi::error::fetch(py))?;
        kinds.push((module.getattr(Fallible(ours))?.into(), class));
    }
    CLASSES.set(kinds);
    Ok(())
}

/// The patch in the place of a method of asyncio's, for a transport of ours.
#[inline(always)]
pub(crate) fn patch_of(transport: *mut ffi::PyObject, method: Method) -> Option<Patch> {
    // SAFETY: a live object.
    let kind = unsafe { ffi::Py_TYPE(transport) }.cast();
    let (_, class) = CLASSES.get()?.iter().find(|(ours, _)| ours.as_ptr() == kind)?;
    // SAFETY: the class has the patch, and no Python code has run since it was found.
    class.patch_of(method as usize).map(|found| Patch(unsafe { Ref::from_borrowed(found) }))
}

/// What stands in the place of a method.
#[derive(Debug)]
pub(crate) struct Patch(Ref);

impl Patch {
    /// Calls it as a method of the transport.
    ///
    /// # Safety
    /// `values` points to `count` live objects and then one for each of `names`, a tuple of strings or null.
    #[cold]
    pub(crate) unsafe fn call(
        self,
        transport: *mut ffi::PyObject,
        values: *const *mut ffi::PyObject,
        count: usize,
        names: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject {
        guard(|| {
            // SAFETY: live objects; the slot is that of the patch's own type.
            let bound = unsafe {
                let kind = ffi::Py_TYPE(self.0.as_ptr());
                match (*kind).tp_descr_get {
                    Some(get) => {
                        Ref::from_owned(get(self.0.as_ptr(), transport, ffi::Py_TYPE(transport).cast()))
                    }
                    None => Some(self.0),
                }
            };
            let Some(bound) = bound else { return null_mut() };
            // SAFETY: the caller's word.
            unsafe { call_plain(&bound, values, count, names) }.map_or(null_mut(), Ref::into_ptr)
        })
    }
}

/// A native method of a transport, which calls the patch in the place of asyncio's method, if there is one. After the
/// calling convention, `no_args` or `fast`, come the native function, with the bound of its parameter if it is generic,
/// and the [`Method`].
macro_rules! patchable {
    ($convention:ident, $function:ident::<$kind:ident: $bound:path>, $method:ident) => {
        $crate::compat::transports::patchable!(@$convention [<$kind: $bound>] [::<$kind>] $function::<$kind>, $method)
    };
    ($convention:ident, $function:expr, $method:ident) => {
        $crate::compat::transports::patchable!(@$convention [] [] $function, $method)
    };
    (@no_args [$($generic:tt)*] [$($parameter:tt)*] $function:expr, $method:ident) => {{
        unsafe extern "C" fn method $($generic)* (
            object: *mut ffi::PyObject,
            unused: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(object, Method::$method) {
                // SAFETY: this very call.
                None => unsafe { $function(object, unused) },
                // SAFETY: no arguments.
                Some(patch) => unsafe { patch.call(object, std::ptr::null(), 0, std::ptr::null_mut()) },
            }
        }
        method $($parameter)*
    }};
    (@fast [$($generic:tt)*] [$($parameter:tt)*] $function:expr, $method:ident) => {{
        unsafe extern "C" fn method $($generic)* (
            object: *mut ffi::PyObject,
            values: *const *mut ffi::PyObject,
            count: ffi::Py_ssize_t,
            names: *mut ffi::PyObject,
        ) -> *mut ffi::PyObject {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(object, Method::$method) {
                // SAFETY: this very call.
                None => unsafe { $function(object, values, count, names) },
                // SAFETY: the arguments of this call.
                Some(patch) => unsafe { patch.call(object, values, count as usize, names) },
            }
        }
        method $($parameter)*
    }};
}

pub(crate) use patchable;
