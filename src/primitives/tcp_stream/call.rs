//! One awaitable call on a stream: a read of some kind, or a write.
//!
//! Both try at once. Only what is not here yet, or does not fit, waits: a read for a future that whoever receives
//! completes, a write for an operation of its own that sends the rest.

use std::cell::{Cell, UnsafeCell};
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use super::data::{Data, Sendable};
use super::{Open, TcpStream};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::budget;
use crate::bridge::loop_bound::LoopBound;
use crate::bridge::port::Port;
use crate::capi::coroutine::{self, Named, Step, Steps};
use crate::capi::error::{raise_io, raise_message, restore};
use crate::capi::freelist::Freelist;
use crate::capi::{Raised, Ref, Slot};
use crate::runtime::net::Want;

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
    /// All was sent at once, and the loop has a turn before the task goes on.
    Sent,
    Done,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct TcpStreamCall {
    base: ffi::PyObject,
    name: &'static str,
    /// A first step was taken.
    begun: Cell<bool>,
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

impl TcpStreamCall {
    /// # Safety
    /// `stream` is a TcpStream.
    pub(super) unsafe fn create(
        stream: *mut ffi::PyObject,
        name: &'static str,
        action: Action,
    ) -> Result<Ref, Raised> {
        // Relaxed: stored under the GIL, at import.
        let kind = TYPE.load(Ordering::Relaxed);
        // SAFETY: a dead object of this type, or fresh memory of its size; either has a collector's header, and
        // every field is written before the object is seen.
        unsafe {
            let object = FREE.new_gc(kind);
            let owned = Ref::from_owned(object).ok_or(Raised)?;
            let call = object.cast::<TcpStreamCall>();
            (&raw mut (*call).name).write(name);
            (&raw mut (*call).begun).write(Cell::new(false));
            (&raw mut (*call).stream).write(Slot::new(Some(Ref::from_borrowed(stream))));
            (&raw mut (*call).action).write(UnsafeCell::new(action));
            (&raw mut (*call).future).write(Slot::empty());
            (&raw mut (*call).sending).write(Slot::empty());
            (&raw mut (*call).tracked).write(Cell::new(false));
            Ok(owned)
        }
    }

    /// # Safety
    /// `object` is a TcpStreamCall and outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a TcpStreamCall {
        // SAFETY: the caller's word; all fields are cells.
        unsafe { &*object.cast() }
    }

    fn read(&self, stream: &TcpStream, want: &Want, next: bool) -> Result<Step, Raised> {
        let waited = !self.future.is_empty();
        drop(stream.open(waited)?);
        if !waited && stream.reading.get() {
            // SAFETY: reading a static of the interpreter.
            let kind = unsafe { ffi::PyExc_RuntimeError };
            raise_message(kind, "another task is already reading from this stream");
            return Err(Raised);
        }
        if !waited && budget::is_spent() {
            return Ok(Step::Yield);
        }
        let found = stream.look(want, !waited, waited)?;
        if let Some(step) = found.step(want, next, stream.limit)? {
            return Ok(step);
        }
        // A copy: making the future may run Python code, which may end this call and what it wants with it.
        let want = &want.clone();
        loop {
            budget::refill();
            if let Some(future) = stream.wait(want, waited)? {
                stream.reading.set(true);
                self.future.set(Some(future.clone_ref()));
                self.track();
                return Ok(Step::Wait(future));
            }
            let found = stream.look(want, false, waited)?;
            if let Some(step) = found.step(want, next, stream.limit)? {
                return Ok(step);
            }
        }
    }

    fn write(&self, stream: &TcpStream, data: &mut Data) -> Result<Step, Raised> {
        // SAFETY: tasks step with the GIL held.
        let py = unsafe { Python::assume_attached() };
        let turn = {
            let open = stream.open(false)?;
            // Free: nobody else's bytes wait to be sent.
            if open.turn.available() > 0 {
                stream.touch();
                budget::spend_item(data.rest().len());
                match send(&open, data) {
                    Ok(true) if budget::is_spent() => return Ok(Step::Yield),
                    Ok(true) => return Ok(Step::Done(Ref::none())),
                    Ok(false) => {}
                    Err(error) => return Err(raise_io(&error)),
                }
            }
            open.turn.clone()
        };
        // The peer is slower than we are: the rest is sent without the GIL.
        let socket = stream.on_runtime()?;
        let rest = LoopBound::new(std::mem::take(data).into_sendable(py), &Port::running(py)?);
        let sending = Operation::create(py, "TcpStream.write_all", async move {
            let turn = turn.acquire(1).await;
            let sent = socket.write_all(rest.get().map_or(&[], Sendable::as_slice)).await;
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
        // wants is cloned before Python code can run.)
        unsafe {
            let stream = TcpStream::of(stream.as_ptr());
            match &mut *self.action.get() {
                Action::Read { want, next } => self.read(stream, want, *next),
                Action::Write(data) => {
                    let step = self.write(stream, data)?;
                    if matches!(step, Step::Yield) && self.sending.is_empty() {
                        *self.action.get() = Action::Sent;
                    }
                    Ok(step)
                }
                Action::Sent => Ok(Step::Done(Ref::none())),
                Action::Done => Err(Raised),
            }
        }
    }
}

// SAFETY: `repr(C)`, and `base` comes first.
unsafe impl Steps for TcpStreamCall {
    fn step(&self) -> Result<Step, Raised> {
        self.begun.set(true);
        let step = self.go_on()?;
        if matches!(step, Step::Done(_)) {
            self.finish();
        }
        Ok(step)
    }

    fn finish(&self) {
        self.begun.set(true);
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

    fn held(&self) -> impl Iterator<Item = &Slot> {
        [&self.stream, &self.future, &self.sending].into_iter()
    }
}

// SAFETY: as above.
unsafe impl Named for TcpStreamCall {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Sends what fits; true if that was all.
fn send(open: &Open, data: &mut Data) -> io::Result<bool> {
    loop {
        let rest = data.rest();
        if rest.is_empty() {
            return Ok(true);
        }
        match open.try_write(rest) {
            Ok(count) => data.advance(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

unsafe extern "C" fn dealloc(object: *mut ffi::PyObject) {
    // SAFETY: called once by CPython for a TcpStreamCall without references. A dead object goes to the freelist with
    // its memory as it is; the reference to the type is given back either way.
    unsafe {
        let call = TcpStreamCall::of(object);
        if call.tracked.get() {
            ffi::PyObject_GC_UnTrack(object.cast());
        }
        if !call.begun.get() {
            coroutine::warn_never_awaited(object, call.name);
        }
        call.finish();
        FREE.free_gc(object);
    }
}

/// Makes the type. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    let name = c"wakeloop._core.TcpStreamCall";
    let kind = coroutine::make_type::<TcpStreamCall>(
        py,
        name,
        dealloc,
        None,
        &coroutine::names::<TcpStreamCall>(),
        &[],
    )?;
    // Relaxed: published under the GIL.
    TYPE.store(kind, Ordering::Relaxed);
    Ok(())
}
