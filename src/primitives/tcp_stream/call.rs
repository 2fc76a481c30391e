//! One awaitable call on a stream: a read of some kind, or a write.
//!
//! Both try at once: a read looks into the buffers, a write into the socket. Only what is not here yet, or does not
//! fit, waits: a read for the task that reads ahead, a write for an operation of its own that sends the rest.

use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::ffi;
use pyo3::prelude::*;

use super::data::Data;
use super::{Open, TcpStream};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::runtime;
use crate::bridge::waiter::Waiter;
use crate::capi::buffer::bytes_from;
use crate::capi::call::call;
use crate::capi::coroutine::{self, Step, Steps};
use crate::capi::error::{raise, raise_io, raise_message, restore};
use crate::capi::freelist::Freelist;
use crate::capi::imports::imports;
use crate::capi::types::{TypeSpec, visit_instance};
use crate::capi::{Raised, Ref, Slot};
use crate::runtime::net::{Taken, Want};

/// How many dead calls are kept for reuse.
const FREELIST: usize = 64;

/// What is to be done.
#[derive(Debug)]
pub(super) enum Action {
    Read {
        want: Want,
        /// The end of the stream ends an iteration.
        next: bool,
    },
    Write(Data),
    Done,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct StreamCall {
    base: ffi::PyObject,
    /// The stream, until the call is over.
    stream: Slot,
    action: UnsafeCell<Action>,
    /// What a read waits for.
    future: Slot,
    /// What sends the rest of a write.
    sending: Slot,
    /// The collector knows the object.
    tracked: Cell<bool>,
}

static TYPE: AtomicPtr<ffi::PyTypeObject> = AtomicPtr::new(null_mut());

static FREE: Freelist<FREELIST> = Freelist::new();

impl StreamCall {
    /// # Safety
    /// `stream` is a TcpStream.
    pub(super) unsafe fn create(stream: *mut ffi::PyObject, action: Action) -> Result<Ref, Raised> {
        // Relaxed: stored under the GIL, at import.
        let kind = TYPE.load(Ordering::Relaxed);
        // SAFETY: a dead object of this type, or fresh memory of its size; either has a collector's header, and
        // every field is written before the object is seen.
        unsafe {
            let object = FREE.new_gc(kind);
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<StreamCall>();
            (&raw mut (*call).stream).write(Slot::new(Some(Ref::from_borrowed(stream))));
            (&raw mut (*call).action).write(UnsafeCell::new(action));
            (&raw mut (*call).future).write(Slot::empty());
            (&raw mut (*call).sending).write(Slot::empty());
            (&raw mut (*call).tracked).write(Cell::new(false));
            Ok(owned)
        }
    }

    /// # Safety
    /// `object` is a StreamCall and outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a StreamCall {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    fn read(&self, stream: &TcpStream, want: &Want, next: bool) -> Result<Step, Raised> {
        // SAFETY: tasks step with the GIL held.
        let py = unsafe { Python::assume_attached() };
        let waited = !self.future.is_empty();
        drop(stream.open(waited)?);
        if !waited && stream.reading.get() {
            // SAFETY: reading a static of the interpreter.
            let kind = unsafe { ffi::PyExc_RuntimeError };
            raise_message(kind, "another task is already reading from this stream");
            return Err(Raised);
        }
        let mut first = !waited;
        loop {
            {
                let mut open = stream.open(waited)?;
                let reader = &mut open.reader;
                if std::mem::take(&mut first) {
                    reader.begin();
                }
                let started = reader.is_started();
                match reader.take(want) {
                    Taken::Item(bytes) => return bytes_from(bytes).map(Step::Done),
                    Taken::Rest(bytes) => return rest(bytes_from(bytes)?, bytes.len(), want, next),
                    Taken::TooLong(len) => return Err(too_long(py, want, len, open.limit)),
                    Taken::Failed(error) => return Err(raise_io(&error)),
                    Taken::Nothing if !started => {
                        reader.start(&runtime::handle().map_err(|error| raise_io(&error))?);
                        continue;
                    }
                    Taken::Nothing => {}
                }
            }
            // Outside of the borrow: making a future may run Python code.
            let (waiter, future) = Waiter::new(py)?;
            let waker = Waker::from(Arc::new(WakeOnce(Mutex::new(Some(waiter)))));
            let waiting = stream.open(waited)?.reader.wait(want, waker);
            if waiting {
                stream.reading.set(true);
                self.future.set(Some(future.clone_ref()));
                self.track();
                return Ok(Step::Wait(future));
            }
        }
    }

    fn write(&self, stream: &TcpStream, data: &mut Data) -> Result<Step, Raised> {
        // SAFETY: tasks step with the GIL held.
        let py = unsafe { Python::assume_attached() };
        let (socket, turn) = {
            let open = stream.open(false)?;
            // Free: nobody else's bytes wait to be sent.
            if open.turn.available() > 0 {
                match send(&open, data) {
                    Ok(true) => return Ok(Step::Done(Ref::none())),
                    Ok(false) => {}
                    Err(error) => return Err(raise_io(&error)),
                }
            }
            (open.stream.clone(), open.turn.clone())
        };
        let rest = std::mem::take(data).into_sendable(py);
        let sending = Operation::create(py, "write", async move {
            let turn = turn.acquire(1).await;
            let sent = socket.write_all(rest.as_slice()).await;
            drop(turn);
            match sent {
                Ok(()) => Outcome::Nothing,
                Err(error) => Outcome::Error(error),
            }
        });
        self.sending.set(Some(sending.map_err(|error| restore(py, error))?.into()));
        self.track();
        self.send_on()
    }

    /// One step of the operation that sends the rest.
    fn send_on(&self) -> Result<Step, Raised> {
        let sending = self.sending.get().ok_or(Raised)?;
        // SAFETY: `write` put an Operation there.
        unsafe { Operation::of(sending.as_ptr()) }.step()
    }

    /// Shows the call to the collector, from its first wait on: the future leads to the task, and the task to us.
    fn track(&self) {
        if !self.tracked.replace(true) {
            // SAFETY: a live object with a collector's header that is not tracked yet; its fields are filled.
            unsafe { ffi::PyObject_GC_Track(std::ptr::from_ref(self).cast_mut().cast()) }
        }
    }

    fn go_on(&self) -> Result<Step, Raised> {
        if !self.sending.is_empty() {
            return self.send_on();
        }
        let Some(stream) = self.stream.get() else {
            // SAFETY: reading a static of the interpreter.
            let kind = unsafe { ffi::PyExc_RuntimeError };
            raise_message(kind, "cannot reuse already awaited coroutine");
            return Err(Raised);
        };
        // SAFETY: `create` put a TcpStream there; nobody else touches the action while a step is under way, as a
        // coroutine is stepped by one task. (`finish` in the midst of it would replace a read's action: what it
        // wants was cloned then.)
        unsafe {
            let stream = TcpStream::of(stream.as_ptr());
            match &mut *self.action.get() {
                Action::Read { want, next } => self.read(stream, want, *next),
                Action::Write(data) => self.write(stream, data),
                Action::Done => Err(Raised),
            }
        }
    }
}

// SAFETY: `repr(C)`, and `base` comes first.
unsafe impl Steps for StreamCall {
    fn step(&self) -> Result<Step, Raised> {
        let step = self.go_on()?;
        if matches!(step, Step::Done(_)) {
            self.finish();
        }
        Ok(step)
    }

    fn finish(&self) {
        let stream = self.stream.take();
        if !self.future.is_empty() {
            self.future.clear();
            if let Some(stream) = &stream {
                // SAFETY: as in `go_on`.
                unsafe { TcpStream::of(stream.as_ptr()) }.end_read();
            }
        }
        self.sending.clear();
        // SAFETY: GIL held, no borrow of the action is alive: a step ends before the call is over.
        drop(unsafe { std::mem::replace(&mut *self.action.get(), Action::Done) });
    }
}

/// Sends what fits; true if that was all.
fn send(open: &Open, data: &mut Data) -> io::Result<bool> {
    loop {
        let rest = data.rest();
        if rest.is_empty() {
            return Ok(true);
        }
        match open.stream.try_write(rest) {
            Ok(count) => data.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// What the end of the stream means for a read that wanted more.
fn rest(bytes: Ref, len: usize, want: &Want, next: bool) -> Result<Step, Raised> {
    if next && len == 0 {
        // SAFETY: a static of the interpreter; the GIL is held.
        unsafe { ffi::PyErr_SetNone(ffi::PyExc_StopAsyncIteration) };
        return Err(Raised);
    }
    let expected = match want {
        Want::Some(_) | Want::All | Want::Line => return Ok(Step::Done(bytes)),
        Want::Exact(expected) => Some(*expected),
        Want::Until(_) => None,
        Want::Frame(_) => Some(4),
    };
    let expected = match expected {
        // SAFETY: making an int; null on lack of memory.
        Some(count) => unsafe { Ref::from_owned(ffi::PyLong_FromSize_t(count)) }.ok_or(Raised)?,
        None => Ref::none(),
    };
    raise(call(&imports().incomplete_read, &[bytes.as_ptr(), expected.as_ptr()])?);
    Err(Raised)
}

#[cold]
fn too_long(py: Python<'_>, want: &Want, len: usize, limit: usize) -> Raised {
    let text = match want {
        Want::Frame(most) => format!("a frame of {len} bytes is longer than the limit of {most}"),
        _ => format!("no end is found within the limit of {limit} bytes"),
    };
    let text = pyo3::types::PyString::new(py, &text);
    // SAFETY: making an int; null on lack of memory.
    let raised = unsafe { Ref::from_owned(ffi::PyLong_FromSize_t(len)) }
        .ok_or(Raised)
        .and_then(|len| call(&imports().limit_overrun, &[text.as_ptr(), len.as_ptr()]));
    if let Ok(exception) = raised {
        raise(exception);
    }
    Raised
}

/// The waker of a waiting read.
struct WakeOnce(Mutex<Option<Waiter>>);

impl Wake for WakeOnce {
    fn wake(self: Arc<Self>) {
        // Taking leaves no half-way state behind a panic.
        let waiter = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a StreamCall without references. A dead object goes to the freelist with
    // its memory as it is; the reference to the type is given back either way.
    unsafe {
        let call = StreamCall::of(object);
        if call.tracked.get() {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        call.finish();
        FREE.free_gc(object);
    }
}

unsafe extern "C" fn traverse(
    object: *mut ffi::PyObject,
    visit: ffi::visitproc,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: the collector's call for one of our objects; a heap type is visited by its instances.
    unsafe {
        let call = StreamCall::of(object);
        visit_instance(object, [&call.stream, &call.future, &call.sending], visit, argument)
    }
}

unsafe extern "C" fn clear(object: *mut ffi::PyObject) -> c_int {
    // SAFETY: the collector's call for one of our objects.
    unsafe { StreamCall::of(object) }.finish();
    0
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let mut slots = vec![
        (ffi::Py_tp_dealloc, dealloc as *mut c_void),
        (ffi::Py_tp_traverse, traverse as *mut c_void),
        (ffi::Py_tp_clear, clear as *mut c_void),
    ];
    slots.extend(coroutine::slots::<StreamCall>());
    let kind = TypeSpec {
        name: c"wakeloop._core.StreamCall",
        size: size_of::<StreamCall>(),
        flags: ffi::Py_TPFLAGS_DEFAULT | ffi::Py_TPFLAGS_HAVE_GC | ffi::Py_TPFLAGS_DISALLOW_INSTANTIATION,
        methods: &coroutine::methods::<StreamCall>(),
        attributes: &[],
        weaklist_offset: None,
        dict_offset: None,
        objects: &[],
        slots: &slots,
        bases: None,
    }
    .build(py)?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    Ok(())
}
