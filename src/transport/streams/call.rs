//! What the waiting methods give: an awaitable, a coroutine in all but name.
//!
//! It does what the coroutine of asyncio's method of the same name does, step by step: nothing before it is first
//! awaited, then as much as can be done without waiting. When it has to wait, the awaiting task sees the future
//! that is also the reader's `_waiter`, and goes on when that is done. What turns out to be Python's
//! business, at the start or after a wait, is handed to asyncio's coroutine.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::reader::Reader;
use super::{CLASSES, inherited, plain_reader, writer};
use crate::capi::buffer::{RawBytes, bytes_from, bytes_slice};
use crate::capi::call::{call, guard, method};
use crate::capi::coroutine::{raise_given, raise_stop};
use crate::capi::error::{raise, raise_message, take_exception};
use crate::capi::imports::imports;
use crate::capi::types::{Attribute, Method, TypeSpec};
use crate::capi::{Args, Raised, Ref, Slot};

/// How many dead calls are kept for reuse.
const FREELIST: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Kind {
    Read(usize),
    /// With the blocks that were read so far.
    ReadAll(Vec<Ref>),
    Exactly(isize),
    Line,
    Next,
    /// Up to one of the separators, the shortest first; a newline if there are none.
    Until(Vec<Ref>),
    Drain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Fresh,
    /// For the future in `waiter`.
    Waiting,
    /// For asyncio's coroutine in `waiter`.
    PassedOn,
    Done,
}

#[repr(C)]
pub(super) struct Call {
    base: ffi::PyObject,
    /// The reader, or for a drain the writer.
    owner: Slot,
    waiter: Slot,
    kind: UnsafeCell<Kind>,
    /// Where in the data the search for a separator goes on.
    offset: Cell<usize>,
    phase: Cell<Phase>,
    /// The collector knows the object.
    tracked: Cell<bool>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

/// Dead objects waiting for reuse. Guarded by the GIL.
struct Freelist(UnsafeCell<Vec<*mut ffi::PyObject>>);
// SAFETY: touched only with the GIL held, and never across a call that could release it.
unsafe impl Sync for Freelist {}
static CALLS: Freelist = Freelist(UnsafeCell::new(Vec::new()));

/// What a step came to: the result, or what the awaiting task has to wait for.
enum Step {
    Return(Ref),
    Yield(Ref),
}

/// What a look at the data came to.
enum Look {
    Found(Ref),
    Wait,
}

impl Call {
    #[inline(always)]
    pub(super) fn create(owner: *mut ffi::PyObject, kind: Kind) -> Result<Ref, Raised> {
        // Relaxed: stored once, at import.
        let class = TYPE.load(Ordering::Relaxed);
        // SAFETY: a dead object of this type, or fresh memory for one; every field is written before it is seen.
        unsafe {
            let object = match (*CALLS.0.get()).pop() {
                Some(object) => ffi::PyObject_Init(object, class),
                None => ffi::PyObject_GC_New::<ffi::PyObject>(class),
            };
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<Call>();
            (&raw mut (*call).owner).write(Slot::new(Some(Ref::from_borrowed(owner))));
            (&raw mut (*call).waiter).write(Slot::empty());
            (&raw mut (*call).kind).write(UnsafeCell::new(kind));
            (&raw mut (*call).offset).write(Cell::new(0));
            (&raw mut (*call).phase).write(Cell::new(Phase::Fresh));
            (&raw mut (*call).tracked).write(Cell::new(false));
            Ok(owned)
        }
    }

    /// # Safety
    /// `object` is a Call and outlives the result.
    #[inline(always)]
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a Call {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    #[allow(clippy::mut_from_ref, reason = "GIL-guarded cell; no borrow is held while Python code can run")]
    #[inline(always)]
    fn kind(&self) -> &mut Kind {
        // SAFETY: see the reason above.
        unsafe { &mut *self.kind.get() }
    }

    fn name(&self) -> &'static str {
        match self.kind() {
            Kind::Read(_) | Kind::ReadAll(_) => "StreamReader.read",
            Kind::Exactly(_) => "StreamReader.readexactly",
            Kind::Line => "StreamReader.readline",
            Kind::Next => "StreamReader.__anext__",
            Kind::Until(_) => "StreamReader.readuntil",
            Kind::Drain => "StreamWriter.drain",
        }
    }

    /// The name as asyncio has it in its message about a second read at the same time.
    fn waits_in(&self) -> &'static str {
        match self.kind() {
            Kind::Read(_) | Kind::ReadAll(_) => "read",
            Kind::Exactly(_) => "readexactly",
            _ => "readuntil",
        }
    }

    /// One step of the coroutine; `value` is what was sent into it.
    #[inline(always)]
    fn step(&self, value: *mut ffi::PyObject) -> Result<Step, Raised> {
        match self.phase.get() {
            Phase::Fresh => self.begin(),
            Phase::Waiting => self.resume(),
            Phase::PassedOn => self.send_on(value),
            Phase::Done => {
                // SAFETY: reading a static of the interpreter.
                raise_message(unsafe { ffi::PyExc_RuntimeError }, "cannot reuse already awaited coroutine");
                Err(Raised)
            }
        }
    }

    #[inline(always)]
    fn begin(&self) -> Result<Step, Raised> {
        let Some(owner) = self.owner.get() else { return Err(Raised) };
        if let Kind::Drain = self.kind() {
            return if writer::is_drained(owner.as_ptr())? {
                Ok(Step::Return(Ref::none()))
            } else {
                self.pass_on(&owner)
            };
        }
        let Some(reader) = plain_reader(owner.as_ptr()) else { return self.pass_on(&owner) };
        if let Kind::Exactly(size) = *self.kind()
            && size < 0
        {
            raise_message(
                // SAFETY: reading a static of the interpreter.
                unsafe { ffi::PyExc_ValueError },
                "readexactly size can not be less than zero",
            );
            return Err(Raised);
        }
        if self.may_handle(reader) {
            return self.pass_on(&owner);
        }
        check(reader)?;
        if let Kind::Exactly(0) | Kind::Read(0) = self.kind() {
            return bytes_from(&[]).map(Step::Return);
        }
        self.go_on(reader, false)
    }

    /// The future that was waited for is done.
    fn resume(&self) -> Result<Step, Raised> {
        let (Some(owner), Some(waiter)) = (self.owner.get(), self.waiter.get()) else { return Err(Raised) };
        // SAFETY: the owner of a call that waits for a future is a reader of ours.
        let reader = unsafe { Reader::of(owner.as_ptr()) };
        let result = result_of(&waiter);
        self.stop_waiting(reader);
        if let Err(Raised) = result {
            if !self.may_handle(reader) {
                return Err(Raised);
            }
            drop(take_exception());
            return self.pass_on(&owner);
        }
        if plain_reader(owner.as_ptr()).is_some() {
            return self.go_on(reader, true);
        }
        self.pass_on(&owner)
    }

    /// Looks at the data, and waits if that is not enough.
    #[inline(always)]
    fn go_on(&self, reader: &Reader, resumed: bool) -> Result<Step, Raised> {
        let look = match self.kind() {
            Kind::Exactly(size) => read_exactly(reader, *size as usize),
            Kind::Read(size) => read_some(reader, *size, resumed),
            Kind::ReadAll(blocks) => read_all(reader, blocks, resumed),
            Kind::Line => read_line(reader, &self.offset),
            Kind::Next => read_line(reader, &self.offset).and_then(|look| match look {
                Look::Found(line) => not_empty(line).map(Look::Found),
                Look::Wait => Ok(Look::Wait),
            }),
            Kind::Until(separators) => read_until(reader, separators, &self.offset),
            Kind::Drain => Ok(Look::Found(Ref::none())),
        };
        match look? {
            Look::Found(data) => Ok(Step::Return(data)),
            Look::Wait => self.wait(reader),
        }
    }

    /// `_wait_for_data`.
    fn wait(&self, reader: &Reader) -> Result<Step, Raised> {
        if !reader.waiter.is_empty() {
            let name = self.waits_in();
            raise_message(
                // SAFETY: reading a static of the interpreter.
                unsafe { ffi::PyExc_RuntimeError },
                &format!("{name}() called while another coroutine is already waiting for incoming data"),
            );
            return Err(Raised);
        }
        if reader.paused.get() {
            // Waiting while the transport is paused would be for ever.
            reader.resume()?;
        }
        let event_loop = reader.event_loop.get().unwrap_or_else(Ref::none);
        let future = method(&event_loop, imports().create_future.as_ptr(), &[])?;
        reader.waiter.set(Some(future.clone_ref()));
        reader.wanted.set(match self.kind() {
            Kind::Exactly(size) => *size as usize,
            _ => 0,
        });
        self.waiter.set(Some(future.clone_ref()));
        self.phase.set(Phase::Waiting);
        self.track();
        blocking(&future)?;
        Ok(Step::Yield(future))
    }

    /// The `finally` of a wait.
    fn stop_waiting(&self, reader: &Reader) {
        self.waiter.clear();
        reader.wanted.set(0);
        reader.waiter.clear();
    }

    /// An exception was set on the reader, and `readline` makes something else of some.
    fn may_handle(&self, reader: &Reader) -> bool {
        matches!(self.kind(), Kind::Line | Kind::Next) && !reader.exception.is_empty()
    }

    /// Hands the call to asyncio's coroutine and takes its first step.
    #[cold]
    fn pass_on(&self, owner: &Ref) -> Result<Step, Raised> {
        let coroutine = self.coroutine(owner)?;
        self.waiter.set(Some(coroutine));
        self.phase.set(Phase::PassedOn);
        self.track();
        // SAFETY: the address of `None`.
        self.send_on(unsafe { ffi::Py_None() })
    }

    fn coroutine(&self, owner: &Ref) -> Result<Ref, Raised> {
        let Some(classes) = CLASSES.get() else { return Err(Raised) };
        let (class, argument) = match self.kind() {
            Kind::Drain => (&classes.asyncio_writer, None),
            Kind::Line | Kind::Next => (&classes.asyncio_reader, None),
            Kind::Read(size) => (&classes.asyncio_reader, Some(integer(*size as isize)?)),
            Kind::ReadAll(_) => (&classes.asyncio_reader, Some(integer(-1)?)),
            Kind::Exactly(size) => (&classes.asyncio_reader, Some(integer(*size)?)),
            Kind::Until(separators) => (&classes.asyncio_reader, tuple_of(separators)?),
        };
        let name = self.name();
        let name = name.split_once('.').map_or(name, |(_, name)| name);
        let values = argument.as_ref().map(Ref::as_ptr);
        let values = values.as_slice();
        // SAFETY: borrowed values, alive for the call.
        let arguments = unsafe { Args::new(values.as_ptr(), values.len() as ffi::Py_ssize_t, null_mut()) };
        inherited(class, name, owner.as_ptr(), arguments)
    }

    fn send_on(&self, value: *mut ffi::PyObject) -> Result<Step, Raised> {
        let Some(coroutine) = self.waiter.get() else { return Err(Raised) };
        let mut result = null_mut();
        // SAFETY: a coroutine and a live value; the result is owned, or null with an error.
        unsafe {
            match ffi::PyIter_Send(coroutine.as_ptr(), value, &mut result) {
                ffi::PySendResult::PYGEN_RETURN => {
                    Ref::from_owned(result).map(|value| Step::Return(self.joined(value))).ok_or(Raised)
                }
                ffi::PySendResult::PYGEN_NEXT => Ref::from_owned(result).map(Step::Yield).ok_or(Raised),
                ffi::PySendResult::PYGEN_ERROR => Err(Raised),
            }
        }
    }

    /// What asyncio's `read()` has read, behind what we had read before it took over.
    fn joined(&self, rest: Ref) -> Ref {
        match self.kind() {
            Kind::ReadAll(blocks) if !blocks.is_empty() => {
                blocks.push(rest);
                join(blocks).unwrap_or_else(|Raised| {
                    drop(take_exception());
                    Ref::none()
                })
            }
            _ => rest,
        }
    }

    /// Shows the call to the collector, from its first wait on: the future leads to the task, and the task to
    /// us. A call that ends at once never costs that.
    fn track(&self) {
        if !self.tracked.replace(true) {
            // SAFETY: a live object with a collector's header that is not tracked yet; its fields are filled.
            unsafe { ffi::PyObject_GC_Track(std::ptr::from_ref(self).cast_mut().cast()) }
        }
    }

    /// Nothing will be done any more.
    #[inline(always)]
    fn finish(&self) {
        if self.phase.get() == Phase::Waiting
            && let Some(owner) = self.owner.get()
        {
            // SAFETY: the owner of a call that waits for a future is a reader of ours.
            self.stop_waiting(unsafe { Reader::of(owner.as_ptr()) });
        }
        self.phase.set(Phase::Done);
        self.waiter.clear();
        self.owner.clear();
    }
}

// -- what the methods do -------------------------------------------------------------------------------

/// `if self._exception is not None: raise self._exception`.
#[inline(always)]
fn check(reader: &Reader) -> Result<(), Raised> {
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
fn read_exactly(reader: &Reader, size: usize) -> Result<Look, Raised> {
    let store = reader.store();
    if store.len() < size {
        if !reader.eof.get() {
            return Ok(Look::Wait);
        }
        let partial = store.take(store.len())?;
        return Err(incomplete(&partial, &integer(size as isize)?));
    }
    let data = store.take(size)?;
    reader.maybe_resume()?;
    Ok(Look::Found(data))
}

#[inline(always)]
fn read_some(reader: &Reader, size: usize, resumed: bool) -> Result<Look, Raised> {
    let store = reader.store();
    if store.len() == 0 && !reader.eof.get() && !resumed {
        return Ok(Look::Wait);
    }
    let data = store.take(size.min(store.len()))?;
    reader.maybe_resume()?;
    Ok(Look::Found(data))
}

/// Reads of the limit's size, until one is empty.
fn read_all(reader: &Reader, blocks: &mut Vec<Ref>, resumed: bool) -> Result<Look, Raised> {
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
fn join(blocks: &mut Vec<Ref>) -> Result<Ref, Raised> {
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

fn read_until(reader: &Reader, separators: &[Ref], offset: &Cell<usize>) -> Result<Look, Raised> {
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
fn read_line(reader: &Reader, offset: &Cell<usize>) -> Result<Look, Raised> {
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
fn not_empty(line: Ref) -> Result<Ref, Raised> {
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
    call(&imports().limit_overrun, &[text.ok_or(Raised)?.as_ptr(), integer(consumed as isize)?.as_ptr()])
}

/// Sets an exception that was just made, or leaves set what came instead.
fn raised(exception: Result<Ref, Raised>) -> Raised {
    if let Ok(exception) = exception {
        // SAFETY: an exception instance.
        unsafe { ffi::PyErr_SetObject(ffi::Py_TYPE(exception.as_ptr()).cast(), exception.as_ptr()) };
    }
    Raised
}

fn integer(value: isize) -> Result<Ref, Raised> {
    // SAFETY: making an int; an owned reference or null with an error.
    unsafe { Ref::from_owned(ffi::PyLong_FromSsize_t(value)) }.ok_or(Raised)
}

/// The argument of `readuntil`; nothing for the default.
fn tuple_of(separators: &[Ref]) -> Result<Option<Ref>, Raised> {
    match separators {
        [] => Ok(None),
        [only] => Ok(Some(only.clone_ref())),
        many => {
            // SAFETY: a fresh tuple, each place of which takes over one reference.
            unsafe {
                let tuple = Ref::from_owned(ffi::PyTuple_New(many.len() as ffi::Py_ssize_t)).ok_or(Raised)?;
                for (index, one) in many.iter().enumerate() {
                    ffi::PyTuple_SET_ITEM(
                        tuple.as_ptr(),
                        index as ffi::Py_ssize_t,
                        one.clone_ref().into_ptr(),
                    );
                }
                Ok(Some(tuple))
            }
        }
    }
}

/// The future as a task expects it from an `await`.
#[inline(always)]
fn blocking(future: &Ref) -> Result<(), Raised> {
    // SAFETY: live objects; the attribute exists on every asyncio future.
    let done = unsafe {
        ffi::PyObject_SetAttr(future.as_ptr(), imports()._asyncio_future_blocking.as_ptr(), ffi::Py_True())
    };
    if done < 0 { Err(Raised) } else { Ok(()) }
}

/// What the end of an `await` does: `future.result()`, or a complaint if it is not done.
#[inline(always)]
fn result_of(future: &Ref) -> Result<(), Raised> {
    // SAFETY: live objects.
    if unsafe { ffi::Py_TYPE(future.as_ptr()).cast() } == imports().future.as_ptr() {
        // asyncio's own future says so by itself when it is not done.
        let result = method(future, imports().result.as_ptr(), &[]);
        return result.map(drop).or_else(|Raised| unless_pending(future));
    }
    let done = method(future, imports().done.as_ptr(), &[])?;
    // SAFETY: `done()` returns a bool; reading a static of the interpreter.
    unsafe {
        if done.as_ptr() != ffi::Py_True() {
            raise_message(ffi::PyExc_RuntimeError, "await wasn't used with future");
            return Err(Raised);
        }
    }
    method(future, imports().result.as_ptr(), &[]).map(drop)
}

/// The error of a `result()`, or the complaint of an `await` about a future that is not done.
#[cold]
fn unless_pending(future: &Ref) -> Result<(), Raised> {
    let error = take_exception();
    let done = method(future, imports().done.as_ptr(), &[])?;
    // SAFETY: `done()` of such a future returns a bool; reading a static of the interpreter.
    unsafe {
        if done.as_ptr() == ffi::Py_True() {
            raise(error);
        } else {
            raise_message(ffi::PyExc_RuntimeError, "await wasn't used with future");
        }
    }
    Err(Raised)
}

// -- the type ------------------------------------------------------------------------------------------

/// `am_send`: what a task or an awaiting coroutine calls. Returns without raising StopIteration.
unsafe extern "C" fn am_send(
    object: *mut ffi::PyObject,
    value: *mut ffi::PyObject,
    result: *mut *mut ffi::PyObject,
) -> ffi::PySendResult {
    let mut outcome = ffi::PySendResult::PYGEN_ERROR;
    let returned = guard(|| {
        // SAFETY: the slot belongs to Call; the caller's reference may be the last but for this one.
        let (_held, call) = unsafe { (Ref::from_borrowed(object), Call::of(object)) };
        match call.step(value) {
            Ok(Step::Return(value)) => {
                call.finish();
                outcome = ffi::PySendResult::PYGEN_RETURN;
                value.into_ptr()
            }
            Ok(Step::Yield(future)) => {
                outcome = ffi::PySendResult::PYGEN_NEXT;
                future.into_ptr()
            }
            Err(Raised) => {
                let exception = take_exception();
                call.finish();
                raise(exception);
                null_mut()
            }
        }
    });
    // SAFETY: the caller's place for the result.
    unsafe { *result = returned };
    outcome
}

/// The same for an `await`, which wants StopIteration.
unsafe extern "C" fn next(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut result = null_mut();
    // SAFETY: a Call and a place for the result; a result is ours.
    unsafe {
        match am_send(object, ffi::Py_None(), &mut result) {
            // No exception is a StopIteration of `None`.
            ffi::PySendResult::PYGEN_RETURN if result == ffi::Py_None() => {
                drop(Ref::from_owned(result));
                null_mut()
            }
            ffi::PySendResult::PYGEN_RETURN => {
                if let Some(value) = Ref::from_owned(result) {
                    stop_with(value);
                }
                null_mut()
            }
            _ => result,
        }
    }
}

/// The StopIteration that carries results out of an `await`. The interpreter takes the value out of it and
/// lets it go at once, so that one object serves them all; making one costs more than many a read.
struct Stop(Slot);
// SAFETY: touched only with the GIL held.
unsafe impl Sync for Stop {}
static STOP: Stop = Stop(Slot::empty());

/// Sets StopIteration with this value. [`forget_value`] has to come when the interpreter has taken it out.
#[inline(always)]
fn stop_with(value: Ref) {
    let held = STOP.0.as_ptr();
    // SAFETY: null or a StopIteration that the slot owns.
    if held.is_null() || unsafe { ffi::Py_REFCNT(held) } != 1 {
        // None so far, or somebody holds it.
        // SAFETY: an owned reference or null with an error.
        match unsafe { Ref::from_owned(ffi::PyObject_CallNoArgs(ffi::PyExc_StopIteration)) } {
            Some(fresh) => STOP.0.set(Some(fresh)),
            None => return,
        }
    }
    let Some(stop) = STOP.0.get() else { return };
    // SAFETY: an instance of exactly StopIteration, whose layout is public; the old value is dropped last.
    let old = unsafe {
        let place = &raw mut (*stop.as_ptr().cast::<ffi::PyStopIterationObject>()).value;
        Ref::from_owned(place.replace(value.into_ptr()))
    };
    raise(stop);
    drop(old);
}

/// Lets go of what was carried last. Called when a call ends its life, which is just after its result
/// was taken.
#[inline(always)]
fn forget_value() {
    let held = STOP.0.as_ptr();
    // SAFETY: null or a StopIteration that the slot owns, and that nobody else holds; the value is dropped last.
    unsafe {
        if !held.is_null() && ffi::Py_REFCNT(held) == 1 {
            let place = &raw mut (*held.cast::<ffi::PyStopIterationObject>()).value;
            let none = Ref::none().into_ptr();
            drop(Ref::from_owned(place.replace(none)));
        }
    }
}

unsafe extern "C" fn send(object: *mut ffi::PyObject, value: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut result = null_mut();
    // SAFETY: a Call and a place for the result.
    match unsafe { am_send(object, value, &mut result) } {
        // SAFETY: a result that is ours.
        ffi::PySendResult::PYGEN_RETURN => unsafe { raise_stop(result) },
        _ => result,
    }
}

/// `throw(type[, value[, traceback]])`: ends the wait and raises.
unsafe extern "C" fn throw(
    object: *mut ffi::PyObject,
    values: *const *mut ffi::PyObject,
    count: ffi::Py_ssize_t,
    names: *mut ffi::PyObject,
) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on Call; the arguments are those of this call.
        let (_held, call, arguments) =
            unsafe { (Ref::from_borrowed(object), Call::of(object), Args::new(values, count, names)) };
        if arguments.at_least(1, "throw", "type").is_err() {
            return null_mut();
        }
        if call.phase.get() == Phase::PassedOn
            && let Some(coroutine) = call.waiter.get()
        {
            let thrown = crate::capi::call::getattr(coroutine.as_ptr(), imports().throw.as_ptr())
                .and_then(|throw| crate::capi::call::call(&throw, arguments.rest(0)));
            return thrown.map_or_else(
                |Raised| {
                    let exception = take_exception();
                    call.finish();
                    raise(exception);
                    null_mut()
                },
                Ref::into_ptr,
            );
        }
        call.finish();
        raise_given(arguments);
        null_mut()
    })
}

unsafe extern "C" fn close(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    guard(|| {
        // SAFETY: the method sits on Call.
        let call = unsafe { Call::of(object) };
        if call.phase.get() == Phase::PassedOn
            && let Some(coroutine) = call.waiter.get()
            && method(&coroutine, imports().close.as_ptr(), &[]).is_err()
        {
            return null_mut();
        }
        call.finish();
        Ref::none().into_ptr()
    })
}

unsafe extern "C" fn itself(object: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: a live object.
    unsafe { Ref::from_borrowed(object) }.into_ptr()
}

unsafe extern "C" fn get_qualname(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: the attribute sits on Call; the GIL is held.
    let (call, py) = unsafe { (Call::of(object), Python::assume_attached()) };
    pyo3::types::PyString::new(py, call.name()).into_ptr()
}

unsafe extern "C" fn get_name(object: *mut ffi::PyObject, _: *mut c_void) -> *mut ffi::PyObject {
    // SAFETY: as above.
    let (call, py) = unsafe { (Call::of(object), Python::assume_attached()) };
    let name = call.name();
    pyo3::types::PyString::new(py, name.split_once('.').map_or(name, |(_, name)| name)).into_ptr()
}

/// A coroutine that nobody has awaited is most often a mistake, and Python says so.
#[cold]
fn warn_never_awaited(object: *mut ffi::PyObject, call: &Call) {
    if crate::capi::object::interpreter_ends() {
        return;
    }
    let text = std::ffi::CString::new(format!("coroutine '{}' was never awaited", call.name()));
    // SAFETY: the GIL is held; an error that is set is kept across the warning.
    unsafe {
        let pending = (!ffi::PyErr_Occurred().is_null()).then(take_exception);
        if ffi::PyErr_WarnEx(ffi::PyExc_RuntimeWarning, text.unwrap_or_default().as_ptr(), 1) < 0 {
            // Not of the object itself, which is as good as gone.
            ffi::PyErr_WriteUnraisable(ffi::Py_TYPE(object).cast());
        }
        if let Some(exception) = pending {
            raise(exception);
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a Call without references.
    unsafe {
        let call = Call::of(object);
        if call.tracked.get() {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        if call.phase.get() == Phase::Fresh {
            warn_never_awaited(object, call);
        }
        forget_value();
        call.finish();
        std::ptr::drop_in_place(call.kind.get());
        let kind = ffi::Py_TYPE(object);
        let list = &mut *CALLS.0.get();
        if list.len() < FREELIST {
            list.push(object);
        } else {
            ffi::PyObject_GC_Del(object.cast());
        }
        ffi::Py_DECREF(kind.cast());
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> std::ffi::c_int {
    // SAFETY: the collector's call for one of our objects; a heap type is visited by its instances.
    unsafe {
        let call = Call::of(object);
        let mut result = visit(ffi::Py_TYPE(object).cast(), argument);
        for slot in [&call.owner, &call.waiter] {
            if result == 0 {
                result = slot.visit(visit, argument);
            }
        }
        result
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> std::ffi::c_int {
    // SAFETY: the collector's call for one of our objects.
    unsafe { Call::of(object) }.finish();
    0
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let kind = TypeSpec {
        name: c"wakeloop._core.StreamCall",
        size: size_of::<Call>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &[
            Method::OneArg(c"send", send, c"Take one step, as a coroutine's send does."),
            Method::Fast(c"throw", throw, c"End the wait and raise, as a coroutine's throw does."),
            Method::NoArgs(c"close", close, c"End the wait."),
        ],
        attributes: &[
            Attribute { name: c"__qualname__", get: get_qualname, set: None },
            Attribute { name: c"__name__", get: get_name, set: None },
        ],
        weaklist_offset: None,
        dict_offset: None,
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_traverse, traverse as *mut c_void),
            (ffi::Py_tp_clear, clear as *mut c_void),
            (ffi::Py_am_await, itself as *mut c_void),
            (ffi::Py_am_send, am_send as *mut c_void),
            (ffi::Py_tp_iter, itself as *mut c_void),
            (ffi::Py_tp_iternext, next as *mut c_void),
        ],
        bases: None,
    }
    .build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    Ok(())
}
