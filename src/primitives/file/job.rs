//! What a thread of the blocking pool does for a file, without the GIL.

use std::io;
use std::mem::MaybeUninit;
use std::slice;

use pyo3::prelude::*;

use super::buffered::{self, How, Want};
use super::cancel::Cancelled;
use super::shared::SharedFile;
use super::sys;
use crate::bridge::drop_on_loop::DropOnLoop;
use crate::bridge::loop_handle::LoopHandle;
use crate::capi::buffer::RawBytes;
use crate::capi::threads::{Unattached, try_attach};
use crate::capi::{Fallible, Raised, Ref};
use crate::primitives::data::Sendable;

/// A result of this length is made into a `bytes` object on the pool's thread, because that would keep the loop too
/// long.
pub(super) const LONG: usize = 512 * 1024;

/// An operation that may wait.
pub(super) enum Job {
    Read(Want, Option<Cancelled>),
    /// Reads so many bytes of a regular file, or all. It does not move the position.
    ReadLong(Option<usize>),
    /// Reads the rest of an object. It does not move the position.
    Fill(Begun),
    ReadAt(usize, i64),
    Write(DropOnLoop<Sendable>),
    /// As `Write`, also all of it if the file is unbuffered.
    WriteAll(DropOnLoop<Sendable>),
    WriteAt(DropOnLoop<Sendable>, i64),
    Seek(i64, i32),
    End,
    Truncate(Option<i64>),
    Flush,
    /// Flushes, and gives up what was read ahead.
    Settle,
    Sync,
    Close,
}

/// The result of a job.
pub(super) enum Reply {
    Nothing,
    /// All lines are written.
    Lines,
    /// The file is flushed, or not, and the loop's thread has to close it: this one has no state in the interpreter.
    Unclosed(io::Result<()>),
    Number(i64),
    /// What was wanted is in the file's buffer, and so long. The object, if there is one, has the same content.
    Item(usize, Option<DropOnLoop<Py<PyAny>>>),
    Bytes(Vec<u8>),
    /// The bytes behind the position.
    Filled(Begun),
    /// The bytes of a read at an offset.
    Object(DropOnLoop<Py<PyAny>>),
    /// The bytes behind the position, and how many.
    Long(DropOnLoop<Py<PyAny>>, usize),
}

pub(super) enum Failure {
    System(io::Error),
    Python(DropOnLoop<PyErr>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::System(error)
    }
}

impl Job {
    /// Need it not be done if nobody waits for it?
    pub(super) fn is_read(&self) -> bool {
        matches!(self, Job::Read(..) | Job::ReadLong(_) | Job::Fill(_) | Job::ReadAt(..))
    }

    /// Will its thread need the GIL?
    pub(super) fn attaches(&self) -> bool {
        match self {
            Job::Close | Job::Read(Want::All, _) | Job::ReadLong(_) => true,
            Job::Read(Want::Bytes(count) | Want::Exactly(count), _) | Job::ReadAt(count, _) => *count >= LONG,
            _ => false,
        }
    }

    /// Runs the job on this thread. `raw` is the `io.FileIO` that owns the descriptor.
    pub(super) fn run(self, shared: &SharedFile, raw: &DropOnLoop<Py<PyAny>>) -> Result<Reply, Failure> {
        Ok(match self {
            Job::Read(want, cancel) => {
                let mut state = shared.lock();
                match state.ready(want, How::Blocking(cancel.as_ref()))? {
                    Some(length) => {
                        let data = &state.ahead()[..length];
                        let copy = |place: &mut [MaybeUninit<u8>]| {
                            place.write_copy_of_slice(data);
                            Ok(length)
                        };
                        let long = (length >= LONG).then(|| filled(length, raw, copy)).transpose()?;
                        Reply::Item(length, long)
                    }
                    None => Reply::Nothing,
                }
            }
            Job::ReadLong(count) => {
                let (here, rest) = shared.lock().rest()?;
                let length = count.unwrap_or(rest).min(rest);
                if length < LONG {
                    return Job::Read(count.map_or(Want::All, Want::Bytes), None).run(shared, raw);
                }
                let mut read = 0;
                let object = filled(length, raw, |place| {
                    read = buffered::fill_at(shared.fd, place, here)?;
                    Ok(read)
                })?;
                Reply::Long(object, read)
            }
            Job::Fill(mut begun) => {
                let (here, _) = shared.lock().rest()?;
                begun.fill(shared, here)?;
                Reply::Filled(begun)
            }
            Job::ReadAt(count, offset) => {
                shared.lock().flush()?;
                if shared.regular {
                    let rest = usize::try_from(sys::size(shared.fd)?.saturating_sub(offset)).unwrap_or(0);
                    let length = count.min(rest);
                    if length >= LONG && offset >= 0 {
                        let fill = |place: &mut [_]| buffered::fill_at(shared.fd, place, offset);
                        return Ok(Reply::Object(filled(length, raw, fill)?));
                    }
                }
                Reply::Bytes(buffered::read_at(shared.fd, count, offset)?)
            }
            Job::Write(data) => {
                Reply::Number(shared.lock().write(data.get().map_or(&[], Sendable::as_slice))? as i64)
            }
            Job::WriteAll(data) => {
                let (data, mut written) = (data.get().map_or(&[][..], Sendable::as_slice), 0);
                while written < data.len() {
                    written += shared.lock().write(&data[written..])?;
                }
                Reply::Lines
            }
            Job::WriteAt(data, offset) => {
                let data = data.get().map_or(&[][..], Sendable::as_slice);
                shared.lock().write_at(data, offset)?;
                Reply::Number(data.len() as i64)
            }
            Job::Seek(offset, whence) => Reply::Number(shared.lock().seek(offset, whence)?),
            Job::End => Reply::Number(shared.lock().end()?),
            Job::Truncate(size) => Reply::Number(shared.lock().truncate(size)?),
            Job::Flush => {
                shared.lock().flush()?;
                Reply::Nothing
            }
            Job::Settle => {
                let mut state = shared.lock();
                state.flush()?;
                state.rewind()?;
                Reply::Nothing
            }
            Job::Sync => {
                shared.lock().sync()?;
                Reply::Nothing
            }
            Job::Close => {
                let flushed = shared.lock().flush();
                // As in io, the descriptor is closed even if the data could not be written.
                if close(raw)? == Err(Unattached::NoMemory) {
                    return Ok(Reply::Unclosed(flushed));
                }
                flushed?;
                Reply::Nothing
            }
        })
    }
}

/// A `bytes` object that no other code has seen, of which a first part was written.
pub(super) struct Begun {
    object: DropOnLoop<Py<PyAny>>,
    /// The content of the object.
    place: *mut u8,
    length: usize,
    filled: usize,
}

// SAFETY: `place` is valid as long as `object`, and only this value refers to that, so one thread at a time writes there.
unsafe impl Send for Begun {}

impl Begun {
    pub(super) fn new(
        py: Python<'_>,
        mut bytes: RawBytes,
        length: usize,
        filled: usize,
        home: &LoopHandle,
    ) -> Begun {
        let place = bytes.as_mut_ptr();
        let object = DropOnLoop::new(Ref::bind(&bytes.hidden(), py).unbind(), home);
        Begun { object, place, length, filled }
    }

    fn fill(&mut self, shared: &SharedFile, start: i64) -> io::Result<()> {
        // SAFETY: the object has `length` bytes, of which `filled` were written.
        let rest = unsafe {
            slice::from_raw_parts_mut(self.place.add(self.filled).cast(), self.length - self.filled)
        };
        self.filled += buffered::fill_at(shared.fd, rest, start.saturating_add(self.filled as i64))?;
        Ok(())
    }

    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The object, cut to what was written.
    pub(super) fn finish(self, py: Python<'_>) -> Result<Ref, Raised> {
        let object = Ref::from(self.object.into_inner().ok_or(Raised)?.into_bound(py));
        // SAFETY: the only reference to a `bytes` object, of which so many bytes were written.
        unsafe {
            let bytes = RawBytes::again(object);
            if self.filled == self.length { Ok(bytes.whole()) } else { bytes.finish(self.filled) }
        }
    }
}

/// Closes the descriptor, if the thread can attach. The interpreter releases the GIL for the call itself.
fn close(raw: &DropOnLoop<Py<PyAny>>) -> Result<Result<(), Unattached>, Failure> {
    let closed = try_attach(|py| match raw.get() {
        Some(object) => object.bind(py).call_method0(Fallible("close")).map(drop),
        None => Ok(()),
    });
    match closed {
        Ok(closed) => closed.map(Ok).map_err(|error| Failure::Python(raw.beside(error))),
        Err(reason) => Ok(Err(reason)),
    }
}

/// A `bytes` object of at most this length, filled without the GIL.
fn filled(
    length: usize,
    raw: &DropOnLoop<Py<PyAny>>,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> io::Result<usize> + Send,
) -> Result<DropOnLoop<Py<PyAny>>, Failure> {
    let failure = |raised: Raised| Failure::Python(raw.beside(PyErr::from(raised)));
    let made = try_attach(|py| {
        let mut bytes = RawBytes::with_capacity(length).map_err(failure)?;
        // SAFETY: the object has so many bytes, and nothing else refers to it.
        let place = unsafe { slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), length) };
        let count = py.detach(|| fill(place))?;
        // SAFETY: so many bytes were written.
        let bytes =
            unsafe { if count == length { bytes.whole() } else { bytes.finish(count).map_err(failure)? } };
        Ok(raw.beside(Ref::bind(&bytes, py).unbind()))
    });
    made.unwrap_or_else(|reason| Err(io::Error::from(reason).into()))
}
