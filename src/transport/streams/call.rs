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
use super::reading::{
    Look, check, join, not_empty, read_all, read_exactly, read_line, read_some, read_until,
};
use super::waiter::result_of;
use super::{CLASSES, inherited, plain_reader, writer};
use crate::capi::buffer::bytes_from;
use crate::capi::call::{guard, method};
use crate::capi::collected::{Collected, clear, traverse};
use crate::capi::coroutine::{self, Named, check_given, itself, raise_given, raise_stop, warn_never_awaited};
use crate::capi::error::{raise, raise_message, take_exception};
use crate::capi::freelist::Freelist;
use crate::capi::future::set_blocking;
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::object::Borrowed;
use crate::capi::stop::{end_await, forget_value};
use crate::capi::types::{Method, TypeSpec};
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
    /// Python code may step the object.
    by_hand: Cell<bool>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

static CALLS: Freelist<FREELIST> = Freelist::new();

/// What a step came to: the result, or what the awaiting task has to wait for.
enum Step {
    Return(Ref),
    Yield(Ref),
}

impl Call {
    #[inline(always)]
    pub(super) fn create(owner: *mut ffi::PyObject, kind: Kind) -> Result<Ref, Raised> {
        // Relaxed: stored once, at import.
        let class = TYPE.load(Ordering::Relaxed);
        // SAFETY: a dead object of this type, or fresh memory for one; every field is written before it is seen.
        unsafe {
            let object = CALLS.new_gc(class);
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<Call>();
            (&raw mut (*call).owner).write(Slot::new(Some(Ref::from_borrowed(owner))));
            (&raw mut (*call).waiter).write(Slot::empty());
            (&raw mut (*call).kind).write(UnsafeCell::new(kind));
            (&raw mut (*call).offset).write(Cell::new(0));
            (&raw mut (*call).phase).write(Cell::new(Phase::Fresh));
            (&raw mut (*call).tracked).write(Cell::new(false));
            (&raw mut (*call).by_hand).write(Cell::new(false));
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
            Kind::ReadAll(blocks) => {
                // Out of the call: a transport of Python's that is resumed could step this very call.
                let mut own = std::mem::take(blocks);
                let look = read_all(reader, &mut own, resumed);
                if let Kind::ReadAll(blocks) = self.kind() {
                    *blocks = own;
                }
                look
            }
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
        set_blocking(&future)?;
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
            Kind::Read(size) => (&classes.asyncio_reader, Some(integer(*size as i64)?)),
            Kind::ReadAll(_) => (&classes.asyncio_reader, Some(integer(-1)?)),
            Kind::Exactly(size) => (&classes.asyncio_reader, Some(integer(*size as i64)?)),
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
            ffi::PySendResult::PYGEN_RETURN => {
                let by_hand = Call::of(object).by_hand.get();
                let value = Ref::from_owned(result).unwrap_or_else(Ref::none);
                end_await(Borrowed::from_ptr(object), by_hand, value);
                null_mut()
            }
            _ => result,
        }
    }
}

unsafe extern "C" fn send(object: *mut ffi::PyObject, value: *mut ffi::PyObject) -> *mut ffi::PyObject {
    let mut result = null_mut();
    // SAFETY: a Call and a place for the result.
    match unsafe { am_send(object, value, &mut result) } {
        ffi::PySendResult::PYGEN_RETURN => {
            // SAFETY: a result that is ours.
            raise_stop(unsafe { Ref::from_owned(result) }.unwrap_or_else(Ref::none));
            null_mut()
        }
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
        if check_given(arguments).is_err() {
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

/// `__await__()`, called by Python code. The `await` expression uses the slot.
unsafe extern "C" fn await_by_hand(object: *mut ffi::PyObject, _: *mut ffi::PyObject) -> *mut ffi::PyObject {
    // SAFETY: the method sits on Call, and its object is alive.
    unsafe {
        Call::of(object).by_hand.set(true);
        itself(object)
    }
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

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a Call without references.
    unsafe {
        let call = Call::of(object);
        if call.tracked.get() {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        if call.phase.get() == Phase::Fresh {
            warn_never_awaited(object, call.name());
        }
        forget_value();
        call.finish();
        std::ptr::drop_in_place(call.kind.get());
        CALLS.free_gc(object);
    }
}

// SAFETY: `repr(C)`, `base` comes first, and what changes is in cells.
unsafe impl Named for Call {
    fn name(&self) -> &'static str {
        self.name()
    }
}

// SAFETY: as above.
unsafe impl Collected for Call {
    fn held(&self) -> impl Iterator<Item = &Slot> {
        [&self.owner, &self.waiter].into_iter()
    }

    fn let_go(&self) {
        self.finish();
    }
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
            Method::BesideSlot(
                c"__await__",
                await_by_hand,
                c"Return an iterator to be used in await expression.",
            ),
        ],
        attributes: &coroutine::names::<Call>(),
        weaklist_offset: None,
        dict_offset: None,
        objects: &[],
        slots: &[
            (ffi::Py_tp_dealloc, dealloc as *mut c_void),
            (ffi::Py_tp_traverse, traverse::<Call> as *mut c_void),
            (ffi::Py_tp_clear, clear::<Call> as *mut c_void),
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
