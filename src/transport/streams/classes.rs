//! The Python subclasses of the native classes, and the check whether an object is *plain*: an unpatched instance of
//! exactly such a class.

use super::reader::Reader;
use crate::capi::fallible::string;
use crate::capi::once::Once;
use crate::capi::{Arguments, Exception, Raised, Ref};
use crate::compat::Class;

/// The Python subclasses, the native transport class, and asyncio's base classes.
#[derive(Debug)]
pub(crate) struct Classes {
    pub(super) reader: Class,
    pub(super) writer: Class,
    pub(super) transport: Class,
    pub(super) protocol: Class,
    pub(super) asyncio_reader: Ref,
    pub(super) asyncio_writer: Ref,
}

pub(super) static CLASSES: Once<Classes> = Once::new();

/// Is `protocol` an instance of our StreamReaderProtocol?
#[inline(always)]
pub(crate) fn is_protocol(protocol: &Ref) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
}

/// Our StreamReaderProtocol.
#[inline(always)]
pub(crate) fn protocol_class() -> Option<&'static Class> {
    CLASSES.get().map(|classes| &classes.protocol)
}

/// The fields of a plain reader.
#[inline(always)]
pub(crate) fn plain_reader(object: &Ref) -> Option<&Reader> {
    let classes = CLASSES.get()?;
    if !classes.reader.is_class_of(object) || !classes.reader.is_unpatched() {
        return None;
    }
    let reader = object.downcast::<Reader>()?.fields();
    reader.is_plain().then_some(reader)
}

/// Calls a method of asyncio's class with one of our objects as `self`. `class` selects the class.
#[cold]
pub(super) fn inherited(
    class: impl FnOnce(&'static Classes) -> &'static Ref,
    name: &str,
    object: &Ref,
    arguments: Arguments<'_>,
) -> Result<Ref, Raised> {
    let Some(classes) = CLASSES.get() else {
        return Err(Exception::RuntimeError.raise("wakeloop is not imported completely"));
    };
    let method = class(classes).getattr(&string(name)?)?;
    method.pass_on(&[object.borrow()], arguments)
}
