//! What asyncio's reading methods do with the data that is there: one look at it each.
//!
//! A look finds what was asked for and takes it out of the reader's store, or says that more has to come, or
//! raises what asyncio's method of the same name raises. It never waits: that is [`super::call`]'s business.

use std::cell::Cell;

use pyo3::ffi;

use super::reader::Reader;
use crate::capi::buffer::{RawBytes, bytes_slice};
use crate::capi::call::call;
use crate::capi::error::raise_message;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::{Raised, Ref};

/// What a look at the data came to.
pub(super) enum Look {
    Found(Ref),
    Wait,
}

/// `if self._exception is not None: raise self._exception`.
#[inline(always)]
pub(super) fn check(reader: &Reader) -> Result<(), Raised> {
    match reader.exception.get() {
        None => Ok(()),
        Some(exception) => {
            // SAFETY: a live object: an exception, a class of them, or what raising it would complain of.
            unsafe {
                if ffi::PyExceptionInstance_Check(exception.as_ptr()) != 0 {
                    ffi::PyErr_SetObject(ffi::Py_TYPE(exception.as_ptr()).cast(), exception.as_ptr());
                } else if ffi::PyExceptionClass_Check(exception.as_ptr()) != 0 {
                    ffi::PyErr_SetNone(exception.as_ptr());
                } else {
                    raise_message(ffi::PyExc_TypeError, "exceptions must derive from BaseException");
                }
            }
            Err(Raised)
        }
    }
}

#[inline(always)]
pub(super) fn read_exactly(reader: &Reader, size: usize) -> Result<Look, Raised> {
    let store = reader.store();
    if store.len() < size {
        if !reader.eof.get() {
            return Ok(Look::Wait);
        }
        let partial = store.take(store.len())?;
        return Err(incomplete(&partial, &integer(size as i64)?));
    }
    let data = store.take(size)?;
    reader.maybe_resume()?;
    Ok(Look::Found(data))
}

#[inline(always)]
pub(super) fn read_some(reader: &Reader, size: usize, resumed: bool) -> Result<Look, Raised> {
    let store = reader.store();
    if store.len() == 0 && !reader.eof.get() && !resumed {
        return Ok(Look::Wait);
    }
    let data = store.take(size.min(store.len()))?;
    reader.maybe_resume()?;
    Ok(Look::Found(data))
}

/// Reads of the limit's size, until one is empty.
pub(super) fn read_all(reader: &Reader, blocks: &mut Vec<Ref>, resumed: bool) -> Result<Look, Raised> {
    let mut resumed = resumed;
    loop {
        if !resumed {
            check(reader)?;
        }
        match read_some(reader, reader.bytes.get(), resumed)? {
            Look::Wait => return Ok(Look::Wait),
            // SAFETY: bytes.
            Look::Found(block) if unsafe { ffi::PyBytes_Size(block.as_ptr()) } == 0 => {
                return join(blocks).map(Look::Found);
            }
            Look::Found(block) => blocks.push(block),
        }
        resumed = false;
    }
}

/// `b"".join(blocks)`; the blocks are gone then.
pub(super) fn join(blocks: &mut Vec<Ref>) -> Result<Ref, Raised> {
    if blocks.len() == 1
        && let Some(only) = blocks.pop()
    {
        return Ok(only);
    }
    // SAFETY: bytes that the list keeps alive.
    let slices: Vec<&[u8]> = blocks.iter().map(|block| unsafe { bytes_slice(block.as_ptr()) }).collect();
    let size = slices.iter().map(|slice| slice.len()).sum();
    let mut joined = RawBytes::with_capacity(size)?;
    let mut place = joined.as_mut_ptr();
    for slice in slices {
        // SAFETY: the object has room for all of them, one behind the other.
        unsafe {
            std::ptr::copy_nonoverlapping(slice.as_ptr(), place, slice.len());
            place = place.add(slice.len());
        }
    }
    blocks.clear();
    // SAFETY: all of it was written.
    unsafe { joined.finish(size) }
}

/// Where a separator ends the data.
enum Search {
    /// The separator's start and end.
    Found(usize, usize),
    Wait,
    Ended,
    /// More than the limit, without a separator.
    Overrun(usize),
}

/// One round of the loop of `readuntil`.
#[inline(always)]
fn search(reader: &Reader, separators: &[Ref], offset: &Cell<usize>) -> Search {
    let store = reader.store();
    // SAFETY: bytes that the call keeps alive.
    let slice = |separator: &Ref| -> &[u8] { unsafe { bytes_slice(separator.as_ptr()) } };
    let shortest = separators.first().map_or(1, |separator| slice(separator).len());
    let longest = separators.last().map_or(1, |separator| slice(separator).len());
    if store.len() >= offset.get() + shortest {
        let mut found: Option<(usize, usize)> = None;
        let mut take = |separator: &[u8]| {
            if let Some(start) = store.find(separator, offset.get()) {
                let end = start + separator.len();
                if found.is_none_or(|(_, before)| end < before) {
                    found = Some((start, end));
                }
            }
        };
        if separators.is_empty() {
            take(b"\n")
        } else {
            separators.iter().for_each(|one| take(slice(one)))
        }
        if let Some((start, end)) = found {
            return Search::Found(start, end);
        }
        offset.set((store.len() + 1).saturating_sub(longest));
        if offset.get() > reader.bytes.get() {
            return Search::Overrun(offset.get());
        }
    }
    if reader.eof.get() { Search::Ended } else { Search::Wait }
}

const NOT_FOUND: &str = "Separator is not found, and chunk exceed the limit";
const TOO_LONG: &str = "Separator is found, but chunk is longer than limit";

pub(super) fn read_until(reader: &Reader, separators: &[Ref], offset: &Cell<usize>) -> Result<Look, Raised> {
    let store = reader.store();
    match search(reader, separators, offset) {
        Search::Wait => Ok(Look::Wait),
        Search::Found(start, _) if start > reader.bytes.get() => Err(raised(overrun(TOO_LONG, start))),
        Search::Found(_, end) => {
            let data = store.take(end)?;
            reader.maybe_resume()?;
            Ok(Look::Found(data))
        }
        Search::Overrun(consumed) => Err(raised(overrun(NOT_FOUND, consumed))),
        Search::Ended => Err(incomplete(&store.take(store.len())?, &Ref::none())),
    }
}

#[inline(always)]
pub(super) fn read_line(reader: &Reader, offset: &Cell<usize>) -> Result<Look, Raised> {
    let store = reader.store();
    let (message, consumed, lost) = match search(reader, &[], offset) {
        Search::Wait => return Ok(Look::Wait),
        Search::Found(start, end) if start <= reader.bytes.get() => {
            let data = store.take(end)?;
            reader.maybe_resume()?;
            return Ok(Look::Found(data));
        }
        Search::Ended => return store.take(store.len()).map(Look::Found),
        Search::Found(start, end) => (TOO_LONG, start, end),
        Search::Overrun(consumed) => (NOT_FOUND, consumed, store.len()),
    };
    store.discard(lost)?;
    reader.maybe_resume()?;
    Err(raised(overrun(message, consumed).and_then(|cause| {
        // SAFETY: reading a static of the interpreter; making a string.
        let (kind, text) = unsafe {
            let text =
                ffi::PyUnicode_FromStringAndSize(message.as_ptr().cast(), message.len() as ffi::Py_ssize_t);
            (Ref::from_borrowed(ffi::PyExc_ValueError), Ref::from_owned(text).ok_or(Raised)?)
        };
        let error = call(&kind, &[text.as_ptr()])?;
        // SAFETY: an exception and the one it was raised in; the reference is given away.
        unsafe { ffi::PyException_SetContext(error.as_ptr(), cause.into_ptr()) };
        Ok(error)
    })))
}

/// The end of the iteration.
pub(super) fn not_empty(line: Ref) -> Result<Ref, Raised> {
    // SAFETY: bytes; reading a static of the interpreter.
    unsafe {
        if ffi::PyBytes_Size(line.as_ptr()) == 0 {
            ffi::PyErr_SetNone(ffi::PyExc_StopAsyncIteration);
            return Err(Raised);
        }
    }
    Ok(line)
}

#[cold]
fn incomplete(partial: &Ref, expected: &Ref) -> Raised {
    raised(call(&imports().incomplete_read, &[partial.as_ptr(), expected.as_ptr()]))
}

#[cold]
fn overrun(message: &str, consumed: usize) -> Result<Ref, Raised> {
    // SAFETY: making a string; an owned reference or null with an error.
    let text = unsafe {
        Ref::from_owned(ffi::PyUnicode_FromStringAndSize(
            message.as_ptr().cast(),
            message.len() as ffi::Py_ssize_t,
        ))
    };
    call(&imports().limit_overrun, &[text.ok_or(Raised)?.as_ptr(), integer(consumed as i64)?.as_ptr()])
}

/// Sets an exception that was just made, or leaves set what came instead.
fn raised(exception: Result<Ref, Raised>) -> Raised {
    if let Ok(exception) = exception {
        // SAFETY: an exception instance.
        unsafe { ffi::PyErr_SetObject(ffi::Py_TYPE(exception.as_ptr()).cast(), exception.as_ptr()) };
    }
    Raised
}
