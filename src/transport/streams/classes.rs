//! The Python subclasses of the native classes, and the check whether an object is *plain*: an unpatched instance of
//! exactly such a class.

use std::marker::PhantomData;

use pyo3::prelude::*;

use super::reader::Reader;
use super::writer::Writer;
use crate::capi::fallible::string;
use crate::capi::native::Native;
use crate::capi::once::Once;
use crate::capi::{Arguments, Exception, Raised, Ref, This};
use crate::compat::Class;

/// The Python subclasses, the native transport class, and asyncio's base classes.
#[derive(Debug)]
pub(crate) struct Classes {
    pub(super) reader: Derived<Reader>,
    pub(super) writer: Derived<Writer>,
    pub(super) transport: Class,
    pub(super) protocol: Class,
    pub(super) asyncio_reader: Ref,
    pub(super) asyncio_writer: Ref,
}

/// A Python subclass of the native class of `T`.
#[derive(Debug)]
pub(super) struct Derived<T>(Class, PhantomData<fn(T)>);

impl<T: Native> Derived<T> {
    /// As [`Class::init`]. Raises TypeError if the class is not a subclass of `T`'s.
    pub(super) fn init(kind: Bound<'_, PyAny>, methods: &[&str]) -> Result<Derived<T>, Raised> {
        if !T::class().is_base_of(&kind) {
            return Err(Exception::TypeError.raise("expected a subclass of the native class"));
        }
        Ok(Derived(Class::init(kind, methods, &[])?, PhantomData))
    }

    /// The fields of an object. `None` if it is not an instance of exactly this class, or if the class is patched.
    #[inline(always)]
    #[track_caller]
    pub(super) fn fields<'a>(&self, object: &'a Ref) -> Option<&'a T> {
        if !self.0.is_class_of(object) || !self.0.is_unpatched() {
            return None;
        }
        // SAFETY: `init` has checked that the class is a subclass of `T`'s.
        Some(unsafe { This::<T>::from_ptr(object.as_ptr()) }.fields())
    }
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

/// The fields of a plain reader. The caller is in a section of it.
#[inline(always)]
pub(crate) fn plain_reader(object: &Ref) -> Option<&Reader> {
    CLASSES.get()?.plain_reader(object)
}

impl Classes {
    #[inline(always)]
    pub(super) fn plain_reader<'a>(&self, object: &'a Ref) -> Option<&'a Reader> {
        self.reader.fields(object).filter(|reader| reader.is_plain(object))
    }

    /// The fields of a plain writer.
    #[inline(always)]
    pub(super) fn plain_writer<'a>(&self, object: &'a Ref) -> Option<&'a Writer> {
        self.writer.fields(object).filter(|writer| writer.is_plain(object))
    }
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
        return Err(Exception::RuntimeError.raise("wakeloop is not fully imported"));
    };
    let method = class(classes).getattr(&string(name)?)?;
    method.pass_on(&[object.borrow()], arguments)
}
