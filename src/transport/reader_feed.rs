//! Data straight into an `asyncio.StreamReader`, without a call of Python's.
//!
//! `StreamReaderProtocol.data_received` finds its reader and calls `feed_data`, which appends the data, wakes
//! whoever waits and looks at the limit. [`feed`] does the same to the same attributes, but only where nobody
//! could tell: protocol and reader are of exactly these classes, neither class nor instance has another
//! method in the place of those that are skipped, and the code of these methods is the one that was read when this
//! was written (`wakeloop._streams` compares what it refers to). Everything out of the ordinary is left
//! to Python: the end of the stream, a reader that is gone, and data that goes beyond the limit, for which the
//! transport has to be paused.

use pyo3::ffi;
use pyo3::prelude::*;

use crate::capi::call::{getattr, method};
use crate::capi::error::{fetch, take_exception};
use crate::capi::imports::imports;
use crate::capi::pristine::{Once, Pristine};
use crate::capi::{Raised, Ref};

/// The two classes.
#[derive(Debug)]
struct Classes {
    protocol: Pristine,
    reader: Pristine,
}

static CLASSES: Once<Classes> = Once::new();

/// Is `protocol` of the class that [`feed`] knows?
pub(crate) fn is_fed(protocol: *mut ffi::PyObject) -> bool {
    CLASSES.get().is_some_and(|classes| classes.protocol.is_class_of(protocol))
}

/// Gives `data` to the reader of a protocol for which [`is_fed`] holds. False if that is Python's business
/// this time: then nothing has happened, and `protocol.data_received` is to be called with the data.
///
/// No Python code runs before the data is copied, but for what a user has put into the place of an attribute.
#[inline(always)]
pub(crate) fn feed(protocol: &Ref, data: &[u8]) -> Result<bool, Raised> {
    let Some((reader, buffer)) = receiving(protocol, data.len()) else { return Ok(false) };
    append(&buffer, data)?;
    wake(&reader)?;
    Ok(true)
}

/// The reader and its buffer, if the reader takes `size` more bytes without further ado.
#[inline(always)]
fn receiving(protocol: &Ref, size: usize) -> Option<(Ref, Ref)> {
    let (classes, names) = (CLASSES.get()?, imports());
    if !classes.protocol.is_intact() || !classes.reader.is_intact() {
        return None;
    }
    let found = (|| {
        if !classes.protocol.is_used_by(protocol.as_ptr(), 0)? {
            return Ok(None);
        }
        let reference = getattr(protocol.as_ptr(), names._stream_reader_wr.as_ptr())?;
        let Some(reader) = referent(&reference) else { return Ok(None) };
        let object = reader.as_ptr();
        if !classes.reader.is_class_of(object)
            || !classes.reader.is_used_by(object, 0)?
            || !classes.reader.is_used_by(object, 1)?
            // SAFETY: comparing with the address of a static.
            || getattr(object, names._eof.as_ptr())?.as_ptr() != unsafe { ffi::Py_False() }
        {
            return Ok(None);
        }
        let buffer = getattr(object, names._buffer.as_ptr())?;
        let limit = getattr(object, names._limit.as_ptr())?;
        Ok(has_room(&buffer, &limit, size)?.then_some((reader, buffer)))
    })();
    found.unwrap_or_else(|Raised| {
        // Python's own code comes to the same error.
        drop(take_exception());
        None
    })
}

/// What an exact weak reference leads to.
#[inline(always)]
fn referent(reference: &Ref) -> Option<Ref> {
    let mut referent = std::ptr::null_mut();
    // SAFETY: a live object, asked only if it is a weak reference; an owned reference or null.
    unsafe {
        if ffi::PyWeakref_CheckRefExact(reference.as_ptr()) == 0 {
            return None;
        }
        ffi::compat::PyWeakref_GetRef(reference.as_ptr(), &mut referent);
        Ref::from_owned(referent)
    }
}

/// Does the buffer stay within what `feed_data` takes without pausing the transport?
#[inline(always)]
fn has_room(buffer: &Ref, limit: &Ref, size: usize) -> Result<bool, Raised> {
    // SAFETY: live objects; each function is called on the type that it is for. -1 may be an error.
    unsafe {
        if ffi::PyByteArray_CheckExact(buffer.as_ptr()) == 0 || ffi::PyLong_CheckExact(limit.as_ptr()) == 0 {
            return Ok(false);
        }
        let limit = ffi::PyLong_AsSsize_t(limit.as_ptr());
        if limit == -1 && !ffi::PyErr_Occurred().is_null() {
            return Err(Raised);
        }
        let length = ffi::PyByteArray_Size(buffer.as_ptr()) as usize;
        Ok(limit > 0 && length.saturating_add(size) <= (limit as usize).saturating_mul(2))
    }
}

/// `buffer.extend(data)`.
#[inline(always)]
fn append(buffer: &Ref, data: &[u8]) -> Result<(), Raised> {
    // SAFETY: a bytearray, resized before the copy; nothing else sees it in between.
    unsafe {
        let length = ffi::PyByteArray_Size(buffer.as_ptr());
        if ffi::PyByteArray_Resize(buffer.as_ptr(), length + data.len() as ffi::Py_ssize_t) < 0 {
            return Err(Raised);
        }
        let end = ffi::PyByteArray_AsString(buffer.as_ptr()).add(length as usize);
        std::ptr::copy_nonoverlapping(data.as_ptr(), end.cast(), data.len());
    }
    Ok(())
}

/// `reader._wakeup_waiter()`.
#[inline(always)]
fn wake(reader: &Ref) -> Result<(), Raised> {
    let names = imports();
    let waiter = getattr(reader.as_ptr(), names._waiter.as_ptr())?;
    // SAFETY: live objects; -1 with an error set means failure.
    unsafe {
        let none = ffi::Py_None();
        if waiter.as_ptr() == none {
            return Ok(());
        }
        if ffi::PyObject_SetAttr(reader.as_ptr(), names._waiter.as_ptr(), none) < 0 {
            return Err(Raised);
        }
        let cancelled = method(&waiter, names.cancelled.as_ptr(), &[])?;
        match ffi::PyObject_IsTrue(cancelled.as_ptr()) {
            0 => method(&waiter, names.set_result.as_ptr(), &[none]).map(drop),
            1 => Ok(()),
            _ => Err(Raised),
        }
    }
}

/// From now on, readers of these classes are fed natively. Called by `wakeloop._streams`, which has
/// made sure that their methods are what this file stands in for.
#[pyfunction]
pub(crate) fn feed_readers(
    py: Python<'_>,
    protocol: Bound<'_, PyAny>,
    reader: Bound<'_, PyAny>,
) -> PyResult<()> {
    let names = |names: &[&str]| -> Vec<Ref> {
        names.iter().map(|name| pyo3::types::PyString::intern(py, name).into_any().into()).collect()
    };
    let error = |Raised| fetch(py);
    CLASSES.set(Classes {
        protocol: Pristine::new(protocol.into(), &names(&["data_received", "_stream_reader"]))
            .map_err(error)?,
        reader: Pristine::new(reader.into(), &names(&["feed_data", "_wakeup_waiter"])).map_err(error)?,
    });
    Ok(())
}
