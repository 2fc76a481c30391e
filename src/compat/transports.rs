//! Finds patches of the methods of asyncio's transports.
//!
//! Some projects' tests patch `BaseTransport.get_extra_info` with a mock, on the class that defines it or on one that
//! inherits it. Our transports define these methods natively, so they would never call the mock. Each of the native
//! methods therefore asks [`patch_of`] first. It looks at the asyncio class that our transport replaces, where patches
//! of all base classes are seen too.

use pyo3::prelude::*;

use super::class::Class;
use crate::capi::imports::defined_class;
use crate::capi::once::Once;
use crate::capi::{Arguments, Borrowed, Raised, Ref};

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

/// An asyncio class that a transport of ours replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Replaced {
    Socket,
    Datagram,
    ReadPipe,
    WritePipe,
}

/// The module and the name of each.
const REPLACED: [(&str, &str); 4] = [
    ("asyncio.selector_events", "_SelectorSocketTransport"),
    ("asyncio.selector_events", "_SelectorDatagramTransport"),
    ("asyncio.unix_events", "_UnixReadPipeTransport"),
    ("asyncio.unix_events", "_UnixWritePipeTransport"),
];

static CLASSES: Once<[Class; REPLACED.len()]> = Once::new();

/// Records asyncio's classes. Called once, by the module's initialisation.
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    let class = |(module, name)| -> PyResult<Class> {
        Ok(Class::of(Ref::from(defined_class(py, module, name)?), METHODS, false)?)
    };
    let [socket, datagram, read_pipe, write_pipe] = REPLACED.map(class);
    CLASSES.set([socket?, datagram?, read_pipe?, write_pipe?]);
    Ok(())
}

/// The patch of asyncio's method that a transport of ours has to call instead of its own, if there is one.
#[inline(always)]
pub(crate) fn patch_of(replaced: Replaced, method: Method) -> Option<Patch> {
    CLASSES.get()?[replaced as usize].patch_of(method as usize).map(Patch)
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
