//! Methods of asyncio's transports that programs patch on asyncio's classes.
//!
//! Tests of other people's put a mock in the place of `BaseTransport.get_extra_info`, on the class where it is defined
//! or on one that inherits it. Our transports define these methods natively, so they would never see the mock. Each of
//! the native methods therefore asks [`patch_of`] first, by way of [`patchable!`]. The question is put to the class of
//! asyncio that our transport stands for, which sees patches on all its bases.

use pyo3::prelude::*;

use super::class::Class;
use crate::capi::once::Once;
use crate::capi::{Arguments, Borrowed, Fallible, Raised, Ref};

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
        let class = Class::of(class, METHODS, false)?;
        kinds.push((module.getattr(Fallible(ours))?.into(), class));
    }
    CLASSES.set(kinds);
    Ok(())
}

/// The patch in the place of a method of asyncio's, for a transport of ours.
#[inline(always)]
pub(crate) fn patch_of(transport: Borrowed<'_>, method: Method) -> Option<Patch> {
    let (_, class) = CLASSES.get()?.iter().find(|(ours, _)| transport.is_exactly(ours))?;
    // SAFETY: the class has the patch, and no Python code has run since it was found.
    class.patch_of(method as usize).map(|found| Patch(unsafe { Ref::from_borrowed(found) }))
}

/// What stands in the place of a method.
#[derive(Debug)]
pub(crate) struct Patch(Ref);

impl Patch {
    /// Calls it as a method of the transport.
    #[cold]
    pub(crate) fn call(self, transport: Borrowed<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
        let patch = self.0.as_ptr();
        // SAFETY: live objects; the slot is that of the patch's own type. An owned reference or null with an error.
        let bound = unsafe {
            match (*self.0.kind()).tp_descr_get {
                Some(get) => Ref::from_owned(get(patch, transport.as_ptr(), transport.kind().cast())),
                None => Some(self.0),
            }
        };
        bound.ok_or(Raised)?.pass_on(&[], arguments)
    }
}

/// A native method of a transport, which calls the patch in the place of asyncio's method, if there is one. After the kind
/// of the row, `no_args` or `fast`, come the transport, the native function and the [`Method`].
macro_rules! patchable {
    (no_args, $kind:ty, $function:expr, $method:ident) => {
        |this: $crate::capi::This<'_, $kind>| {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(this.object(), Method::$method) {
                None => $crate::capi::returned::Returned::into_object(($function)(this)),
                Some(patch) => patch.call(this.object(), $crate::capi::Arguments::NONE),
            }
        }
    };
    (fast, $kind:ty, $function:expr, $method:ident) => {
        |this: $crate::capi::This<'_, $kind>, arguments: $crate::capi::Arguments<'_>| {
            use $crate::compat::transports::{Method, patch_of};
            match patch_of(this.object(), Method::$method) {
                None => $crate::capi::returned::Returned::into_object(($function)(this, arguments)),
                Some(patch) => patch.call(this.object(), arguments),
            }
        }
    };
}

pub(crate) use patchable;
