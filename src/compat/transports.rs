//! Finds patches of the methods of asyncio's transports.
//!
//! Some projects' tests patch `BaseTransport.get_extra_info` with a mock, on the class that defines it or on one that
//! inherits it. Our transports define these methods natively, so they would never call the mock. Each of the native
//! methods therefore asks [`patch_of`] first, by [`patchable!`]. It looks at the asyncio class that our transport
//! replaces, where patches of all base classes are seen too.

use pyo3::prelude::*;

use super::class::Class;
use crate::capi::once::Once;
use crate::capi::{Arguments, Borrowed, Fallible, Raised, Ref};

macro_rules! methods {
    ($($method:ident = $name:literal,)*) => {
        /// A method that may be patched.
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

/// Our transports, each with the module and the name of the asyncio class that it replaces.
const KINDS: [(&str, &str, &str); 4] = [
    ("StreamTransport", "asyncio.selector_events", "_SelectorSocketTransport"),
    ("DatagramTransport", "asyncio.selector_events", "_SelectorDatagramTransport"),
    ("ReadPipeTransport", "asyncio.unix_events", "_UnixReadPipeTransport"),
    ("WritePipeTransport", "asyncio.unix_events", "_UnixWritePipeTransport"),
];

/// Our transport types, each with asyncio's class.
type Kinds = Vec<(Ref, Class)>;

static CLASSES: Once<Kinds> = Once::new();

/// Records asyncio's classes. Called once, by the module's initialisation, after our types were created.
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

/// The patch of asyncio's method that a transport of ours has to call instead of its own, if there is one.
#[inline(always)]
pub(crate) fn patch_of(transport: Borrowed<'_>, method: Method) -> Option<Patch> {
    let (_, class) = CLASSES.get()?.iter().find(|(ours, _)| transport.is_exactly(ours))?;
    // SAFETY: the class has the patch, and no Python code has run since it was found.
    class.patch_of(method as usize).map(|found| Patch(unsafe { Ref::from_borrowed(found) }))
}

/// The value that a program has put in place of a method.
#[derive(Debug)]
pub(crate) struct Patch(Ref);

impl Patch {
    /// Calls the patch as a method of the transport.
    #[cold]
    pub(crate) fn call(self, transport: Borrowed<'_>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
        let patch = self.0.as_ptr();
        // SAFETY: live objects; the slot belongs to the type of the patch. It returns an owned reference, or null with
        // an error.
        let bound = unsafe {
            match (*self.0.kind()).tp_descr_get {
                Some(get) => Ref::from_owned(get(patch, transport.as_ptr(), transport.kind().cast())),
                None => Some(self.0),
            }
        };
        bound.ok_or(Raised)?.pass_on(&[], arguments)
    }
}

/// Makes a native method of a transport that calls the patch of asyncio's method, if there is one. The arguments are
/// the calling convention (`no_args` or `fast`), the type of the transport, the native function and the [`Method`].
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
