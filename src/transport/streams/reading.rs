//! The reading methods of asyncio's StreamReader, without the waiting.
//!
//! Each function removes the requested data from the reader's store, or returns `None` if more data is needed. Errors
//! are those of asyncio's method. No function waits: [`super::call`] does.

use std::cell::Cell;

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::ffi;

use super::errors::{incomplete, item_too_long, line_too_long};
use super::reader::Reader;
use crate::capi::buffer::concat;
use crate::capi::inspect::integer;
use crate::capi::section::FREE_THREADED;
use crate::capi::{Exception, Raised, Ref};
use crate::framing::{ItemEnd, find_delimiter, find_line};

/// `if self._exception is not None: raise self._exception`.
#[inline(always)]
pub(super) fn check(reader: &Reader) -> Result<(), Raised> {
    match reader.exception.get() {
        None => Ok(()),
        Some(exception) => {
            // SAFETY: a live exception, or an exception class.
            unsafe {
                if exception.is_exception() {
                    ffi::PyErr_SetObject(exception.kind().cast(), exception.as_ptr());
                } else if exception.is_exception_class() {
                    ffi::PyErr_SetNone(exception.as_ptr());
                } else {
                    return Err(Exception::TypeError.raise("exceptions must derive from BaseException"));
                }
            }
            Err(Raised)
        }
    }
}

#[inline(always)]
pub(super) fn read_exactly(reader: &Reader, size: usize) -> Result<Option<Ref>, Raised> {
    let length = reader.store().len();
    if length >= size {
        return take(reader, size).map(Some);
    }
    if !reader.eof.get() {
        return Ok(None);
    }
    Err(incomplete(&reader.take(length)?, &integer(size as i64)?))
}

#[inline(always)]
pub(super) fn read_some(reader: &Reader, size: usize, resumed: bool) -> Result<Option<Ref>, Raised> {
    let length = reader.store().len();
    if length == 0 && !reader.eof.get() && !resumed {
        return Ok(None);
    }
    take(reader, size.min(length)).map(Some)
}

/// Reads blocks of at most the limit, until one is empty.
pub(super) fn read_all(
    reader: &Reader,
    blocks: &mut Vec<Ref>,
    mut resumed: bool,
) -> Result<Option<Ref>, Raised> {
    loop {
        if !resumed {
            check(reader)?;
        }
        let Some(block) = read_some(reader, reader.bytes.get(), resumed)? else { return Ok(None) };
        if block.exact_bytes().unwrap_or_default().is_empty() {
            return join(blocks).map(Some);
        }
        blocks.push(block);
        resumed = false;
    }
}

/// `b"".join(blocks)`. Empties `blocks`.
pub(super) fn join(blocks: &mut Vec<Ref>) -> Result<Ref, Raised> {
    if blocks.len() == 1
        && let Some(only) = blocks.pop()
    {
        return Ok(only);
    }
    let joined = concat(blocks.iter().filter_map(|block| block.exact_bytes()))?;
    blocks.clear();
    Ok(joined)
}

/// Finds the end of the first separator. Without separators, finds a newline. The search continues at `offset`.
#[inline(always)]
fn find_end(reader: &Reader, separators: &[Ref], offset: &Cell<u32>) -> ItemEnd {
    let mut searched = offset.get() as usize;
    let limit = reader.bytes.get();
    let mut find = |data: &[u8]| {
        if separators.is_empty() {
            return find_line(data, &mut searched, limit);
        }
        let separators = separators.iter().map(|one| one.exact_bytes().unwrap_or(b"\n"));
        find_delimiter(data, separators, &mut searched, limit)
    };
    let shared = if FREE_THREADED { reader.store().shared() } else { None };
    let end = match shared {
        Some(shared) => shared.with_content(find),
        None => find(reader.store().as_slice()),
    };
    offset.set(u32::try_from(searched).unwrap_or(u32::MAX));
    end
}

pub(super) fn read_until(
    reader: &Reader,
    separators: &[Ref],
    offset: &Cell<u32>,
) -> Result<Option<Ref>, Raised> {
    match find_end(reader, separators, offset) {
        ItemEnd::Found { len, .. } => take(reader, len).map(Some),
        ItemEnd::TooLong(item) => Err(item_too_long(item)),
        ItemEnd::Missing { .. } if reader.eof.get() => {
            Err(incomplete(&reader.take(reader.store().len())?, &Ref::none()))
        }
        ItemEnd::Missing { .. } => Ok(None),
    }
}

#[inline(always)]
pub(super) fn read_line(reader: &Reader, offset: &Cell<u32>) -> Result<Option<Ref>, Raised> {
    match find_end(reader, &[], offset) {
        ItemEnd::Found { len, .. } => take(reader, len).map(Some),
        ItemEnd::TooLong(line) => {
            reader.discard(line.end.unwrap_or(reader.store().len()))?;
            reader.maybe_resume()?;
            Err(line_too_long(line))
        }
        ItemEnd::Missing { .. } if reader.eof.get() => reader.take(reader.store().len()).map(Some),
        ItemEnd::Missing { .. } => Ok(None),
    }
}

/// Removes the first `size` bytes from the store, and returns them. The store has at least that many.
#[inline(always)]
fn take(reader: &Reader, size: usize) -> Result<Ref, Raised> {
    let data = reader.take(size)?;
    reader.maybe_resume()?;
    Ok(data)
}

/// The result of `__anext__`: an empty line is the end of the iteration.
pub(super) fn not_empty(line: Ref) -> Result<Ref, Raised> {
    if line.exact_bytes().unwrap_or_default().is_empty() {
        return Err(PyStopAsyncIteration::new_err(()).into());
    }
    Ok(line)
}
