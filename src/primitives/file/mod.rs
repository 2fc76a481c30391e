//! `wakeloop.File`: a file that tasks read and write.
//!
//! | file | what it is |
//! |---|---|
//! | `buffered` | a descriptor with data that was read ahead, or that waits to be written |
//! | `call` | one awaitable operation |
//! | `job` | the part of an operation that a thread of the blocking pool does |
//! | `methods` | the methods that make the operations |
//! | `sys` | the system calls |
//! | `turn` | whose turn it is to use the file |
//!
//! A read first looks into the buffer, then asks the system for what is in the page cache, on the loop's thread. What
//! is not there, and everything that is not a regular file, is read by a thread of the blocking pool, without the GIL.
//! A write goes to the buffer, and a thread of the pool writes the buffer when it is full.
//!
//! The descriptor belongs to an `io.FileIO`, which has opened it and closes it. Every job keeps it alive.

mod buffered;
mod call;
mod job;
mod methods;
mod sys;
mod turn;

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::bridge::budget;
use crate::bridge::io_error::raise_io;
use crate::capi::class::add_methods;
use crate::capi::fallible::{interned, string};
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::native_class;
use crate::capi::raised::{check_signals, ignored_while_finalizing, undisturbed, unless_raised};
use crate::capi::threads::released;
use crate::capi::{Borrowed, Exception, Fallible, Raised, Ref, Slot};
use crate::fork::Owner;

use buffered::Buffered;
use turn::{Turn, TurnGuard};

/// The part of a file that threads of the pool use.
#[derive(Debug)]
pub(super) struct Shared {
    fd: RawFd,
    regular: bool,
    /// Locked by the one whose turn it is, so nobody waits for the lock. Reads at an offset share a turn, but do not
    /// hold the lock while they wait.
    state: Mutex<Buffered>,
    turn: Turn,
    /// `close` has had its turn. Relaxed: the turn orders the operations.
    closed: AtomicBool,
    /// A ResourceWarning about the file was issued. Relaxed: written by the thread that frees the file.
    warned: AtomicBool,
    /// The process that uses the file.
    owner: Owner,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Buffered> {
        // The lock may be poisoned: a read or write that panics leaves a buffer that can be used.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn try_lock(&self) -> Option<MutexGuard<'_, Buffered>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Shared {
    /// Writes what was kept, as io does for a file that nobody has closed: without the GIL, and it does not wait for
    /// room in a non-blocking descriptor. A signal may have ended a wait, so `goes_on` is asked before the next one.
    fn finish(&mut self, goes_on: impl Fn() -> bool) -> io::Result<()> {
        let is_closed = std::mem::replace(self.closed.get_mut(), true);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        while !is_closed && state.is_dirty() {
            match released(|| state.flush_some()) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ if goes_on() => {}
                _ => return Err(io::ErrorKind::Interrupted.into()),
            }
        }
        Ok(())
    }
}

/// The last one that has the file is a job, if the file itself was freed before.
impl Drop for Shared {
    fn drop(&mut self) {
        // There is nobody to report an error to.
        let _ = self.finish(|| true);
    }
}

/// A binary file that tasks read and write. Made by wakeloop.open.
///
/// The methods do what those of io.BufferedReader, io.BufferedWriter and io.BufferedRandom do, and raise what they
/// raise. Several tasks may use a file: operations are done one after the other, in the order in which they were
/// awaited; only reads by pread run beside each other. A read that is cancelled moves nothing and loses nothing. A
/// write that is cancelled has not begun, or will be done as a whole. Not thread-safe: for use in the thread of one
/// event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct File {
    // Dropped before `raw`, which closes the descriptor.
    shared: Arc<Shared>,
    /// The `io.FileIO`, which the collector must not see: it would close the descriptor first, and then free the file,
    /// which still has something to write. An `io.FileIO` refers to nothing but its name.
    raw: Slot,
    readable: bool,
    writable: bool,
    capacity: usize,
    /// The turn that [`File::end_turn`] ends.
    held: Arc<Mutex<Option<TurnGuard>>>,
    /// Its operations are done in the turn that is held. See [`File::inside`].
    inside: bool,
}

// SAFETY: `raw` does not change before the file is deallocated, by an attached thread. The rest is `Send`.
unsafe impl Send for File {}
// SAFETY: `raw` does not change, and is used by attached threads only. The rest is `Sync`.
unsafe impl Sync for File {}

// `add_to` sets the class, and says where the fields are.
native_class!(unsafe File);

/// Writes what was kept, unless a job will do that when it is over.
impl Drop for File {
    fn drop(&mut self) {
        if !self.inside {
            drop(self.hold(None));
        }
        let Some(shared) = Arc::get_mut(&mut self.shared) else { return };
        let (is_unclosed, warned) = (!*shared.closed.get_mut(), *shared.warned.get_mut());
        undisturbed(|| {
            if let Err(error) = shared.finish(|| check_signals().is_ok()) {
                match error.kind() {
                    // The handler of the signal has raised.
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => drop(would_block()),
                    _ => drop(raise_io(&error)),
                }
                if let Some(raw) = self.raw.get() {
                    ignored_while_finalizing(&raw);
                }
            }
        });
        if is_unclosed {
            undisturbed(|| unless_raised(self.close_raw(warned)));
        }
    }
}

impl File {
    /// Closes the descriptor of a file that nobody has closed. If there was no ResourceWarning, the buffered file of io
    /// that this one is like issues it: it is made for that, and freed unclosed.
    fn close_raw(&self, warned: bool) -> Result<(), Raised> {
        let Some(raw) = self.raw.get() else { return Ok(()) };
        if warned {
            return raw.getattr(&interned("close")?)?.call(&[]).map(drop);
        }
        let class = match (self.readable, self.writable) {
            // The io.FileIO warns itself.
            _ if self.capacity == 0 => return Ok(()),
            (true, true) => &imports().buffered_random,
            (true, false) => &imports().buffered_reader,
            _ => &imports().buffered_writer,
        };
        class.call(&[raw.borrow()]).map(drop)
    }

    /// `_dealloc_warn(source)`, as the files of io have it.
    fn warn_unclosed(&self, source: Borrowed<'_>) -> Result<(), Raised> {
        let Some(raw) = self.raw.get().filter(|_| !self.shared.is_closed()) else { return Ok(()) };
        self.shared.warned.store(true, Ordering::Relaxed);
        raw.getattr(&interned("_dealloc_warn")?)?.call(&[source]).map(drop)
    }
}

/// `BlockingIOError`, as a buffered file of io raises it.
#[cold]
fn would_block() -> Raised {
    let made = string("write could not complete without blocking").and_then(|text| {
        let class = Exception::BlockingIOError.class();
        class.call(&[integer(libc::EAGAIN)?.borrow(), text.borrow(), integer(0)?.borrow()])
    });
    made.map_or_else(|raised| raised, crate::capi::error::raise)
}

impl File {
    /// Raises ValueError if the file is closed, with the words of io for the operation.
    fn check_open(&self, operation: &str) -> Result<(), Raised> {
        if self.shared.is_closed() { Err(self.closed_error(operation)) } else { Ok(()) }
    }

    #[cold]
    fn closed_error(&self, operation: &str) -> Raised {
        let buffered = self.capacity > 0;
        Exception::ValueError.raise(match operation.trim_start_matches("File.") {
            "readlines" | "writelines" | "__aenter__" => "I/O operation on closed file.",
            "flush" if !buffered || !self.writable => "I/O operation on closed file.",
            "read" | "read1" if buffered => "read of closed file",
            "readline" | "__anext__" if buffered => "readline of closed file",
            "readinto" if buffered => "readinto of closed file",
            "peek" if buffered => "peek of closed file",
            "seek" if buffered => "seek of closed file",
            "truncate" if buffered => "truncate of closed file",
            "flush" => "flush of closed file",
            "write" if buffered => "write to closed file",
            _ => "I/O operation on closed file",
        })
    }

    /// Raises RuntimeError in a forked child, if an operation was under way at the fork: the thread that does it, and
    /// the task that would pass the turn on, are the parent's.
    fn check_process(&self) -> Result<(), Raised> {
        if self.shared.owner.is_this_process() {
            return Ok(());
        }
        if self.shared.try_lock().is_none() || self.shared.turn.is_taken() {
            return Err(Exception::RuntimeError.raise("this file is in use by the parent process"));
        }
        self.shared.owner.adopt();
        Ok(())
    }

    /// Keeps a turn for [`File::_end_turn`], or none. Returns the one that was kept, which the caller drops.
    fn hold(&self, turn: Option<TurnGuard>) -> Option<TurnGuard> {
        std::mem::replace(&mut *self.held.lock().unwrap_or_else(PoisonError::into_inner), turn)
    }

    /// Is it what an `io.BufferedReader` or an `io.BufferedRandom` is?
    fn is_buffered_reader(&self) -> bool {
        self.capacity > 0 && self.readable
    }

    /// Can it do this? Of a buffered file that only reads or only writes, io knows the one answer also when it is closed.
    fn ability(&self, able: bool, name: &str) -> PyResult<bool> {
        if able || self.capacity == 0 {
            self.check_open(name)?;
        }
        Ok(able)
    }

    /// The turn that is held, for an operation within it.
    fn turn_again(&self) -> Result<TurnGuard, Raised> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.as_ref()
            .map(TurnGuard::again)
            .ok_or_else(|| Exception::RuntimeError.raise("the turn of this file is not held"))
    }

    /// Calls a method of the `io.FileIO`.
    fn ask<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.check_open(name)?;
        self.raw.get().ok_or(Raised)?.bind(py).call_method0(Fallible(name))
    }
}

/// `io.UnsupportedOperation(text)`.
#[cold]
fn unsupported(text: &str) -> Raised {
    let made = string(text).and_then(|text| imports().unsupported_operation.call(&[text.borrow()]));
    made.map_or_else(|raised| raised, crate::capi::error::raise)
}

/// Makes a file of an open io.FileIO. `capacity` is the size of the buffer in bytes, 0 for none.
#[pyfunction]
fn _open_file(py: Python<'_>, raw: Bound<'_, PyAny>, regular: bool, capacity: usize) -> PyResult<Py<PyAny>> {
    let fd: RawFd = raw.call_method0(Fallible("fileno"))?.extract()?;
    let ability = |name| raw.call_method0(Fallible(name))?.is_truthy();
    let (readable, writable) = (ability("readable")?, ability("writable")?);
    let shared = Shared {
        fd,
        regular,
        state: Mutex::new(Buffered::new(fd, regular, capacity)),
        turn: Turn::default(),
        warned: AtomicBool::new(false),
        closed: AtomicBool::new(false),
        owner: Owner::this_process(),
    };
    let file = File {
        shared: Arc::new(shared),
        raw: Slot::new(Some(Ref::from(raw))),
        readable,
        writable,
        capacity,
        held: Arc::default(),
        inside: false,
    };
    Ok(Bound::new(py, file)?.into_any().unbind())
}

/// Count items that a task has taken without waiting, such as lines of a chunk that was read.
#[pyfunction]
fn _spend_items(count: usize) {
    budget::spend_items(count);
}

/// Adds the class. This is done at import, because pyo3 panics if it cannot make a type at its first use.
pub(super) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    call::make_type(py)?;
    let class = py.get_type::<File>();
    // SAFETY: pyo3 makes every instance, and puts the Rust value right behind the `PyObject`: `PyClassObjectContents` is
    // `repr(C)` and begins with it, for a class without a base class.
    unsafe { <File as crate::capi::Native>::class().set(&class) };
    add_methods(&class, methods::METHODS)?;
    module.add_class::<File>()?;
    module.add_function(wrap_pyfunction!(_spend_items, module)?)?;
    module.add_function(wrap_pyfunction!(_open_file, module)?)
}

#[pymethods]
impl File {
    /// The descriptor. Raises ValueError if the file is closed.
    fn fileno<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, "fileno")
    }

    /// Whether the file is a terminal. Raises ValueError if the file is closed.
    fn isatty<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, "isatty")
    }

    /// Whether it can be read. Raises ValueError if the file is closed.
    fn readable(&self) -> PyResult<bool> {
        self.ability(self.readable, "readable")
    }

    /// Whether it can be written. Raises ValueError if the file is closed.
    fn writable(&self) -> PyResult<bool> {
        self.ability(self.writable, "writable")
    }

    /// Whether it has a position that can be moved. Raises ValueError if the file is closed.
    fn seekable<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.ask(py, "seekable")
    }

    /// Whether the file is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    /// The path or descriptor that was opened.
    #[getter]
    fn name<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw.get().ok_or(Raised)?.bind(py).getattr(Fallible("name"))
    }

    /// The mode, as io names it.
    #[getter]
    fn mode<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw.get().ok_or(Raised)?.bind(py).getattr(Fallible("mode"))
    }

    /// The io.FileIO behind it, which must not be read, written or moved while others use the file.
    #[getter]
    fn _raw(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(self.raw.get().ok_or(Raised)?.bind(py).unbind())
    }

    /// End the turn that _hold has taken.
    fn _end_turn(&self) {
        drop(self.hold(None));
    }

    /// The same file, for operations within the turn that _turn has taken.
    fn _inside(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let file = File {
            shared: self.shared.clone(),
            raw: Slot::new(Some(self.raw.get().ok_or(Raised)?)),
            held: self.held.clone(),
            inside: true,
            ..*self
        };
        Ok(Bound::new(py, file)?.into_any().unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let raw = self.raw.get().ok_or(Raised)?;
        let raw = raw.bind(py);
        let name = match raw.getattr(Fallible("name")) {
            Ok(name) => format!(" name={}", name.repr()?.to_string_lossy()),
            Err(_) => String::new(),
        };
        let closed = if self.shared.is_closed() { " closed" } else { "" };
        let mode: String = raw.getattr(Fallible("mode"))?.extract()?;
        Ok(format!("<wakeloop.File{closed}{name} mode='{mode}'>"))
    }
}
