//! The file as a Python object: what it knows, and its methods that need no wait.

use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;

use super::shared::SharedFile;
use super::turn_guard::TurnGuard;
use crate::bridge::budget;
use crate::bridge::io_error::raise_io;
use crate::capi::fallible::{interned, string};
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::native_class;
use crate::capi::raised::{check_signals, ignored_while_finalizing, undisturbed, unless_raised};
use crate::capi::{Borrowed, Exception, Fallible, Raised, Ref, Slot};
use crate::poison::unpoisoned;

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
    pub(super) shared: Arc<SharedFile>,
    /// The `io.FileIO`, which the collector must not see: it would close the descriptor first, and then free the file,
    /// which still has something to write. An `io.FileIO` refers to nothing but its name.
    pub(super) raw: Slot,
    pub(super) readable: bool,
    pub(super) writable: bool,
    pub(super) capacity: usize,
    /// The turn that [`File::end_turn`] ends.
    held: Arc<Mutex<Option<TurnGuard>>>,
    /// Its operations are done in the turn that is held. See [`File::inside`].
    pub(super) inside: bool,
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
    pub(super) fn warn_unclosed(&self, source: Borrowed<'_>) -> Result<(), Raised> {
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
    pub(super) fn check_open(&self, operation: &str) -> Result<(), Raised> {
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
    pub(super) fn check_process(&self) -> Result<(), Raised> {
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
    pub(super) fn hold(&self, turn: Option<TurnGuard>) -> Option<TurnGuard> {
        std::mem::replace(&mut *unpoisoned(self.held.lock()), turn)
    }

    /// Is it what an `io.BufferedReader` or an `io.BufferedRandom` is?
    pub(super) fn is_buffered_reader(&self) -> bool {
        self.capacity > 0 && self.readable
    }

    /// Can it do this? Of a buffered file that only reads or only writes, io knows the one answer also when it is
    /// closed.
    fn ability(&self, able: bool, name: &str) -> PyResult<bool> {
        if able || self.capacity == 0 {
            self.check_open(name)?;
        }
        Ok(able)
    }

    /// The turn that is held, for an operation within it.
    pub(super) fn turn_again(&self) -> Result<TurnGuard, Raised> {
        let held = unpoisoned(self.held.lock());
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
pub(super) fn unsupported(text: &str) -> Raised {
    let made = string(text).and_then(|text| imports().unsupported_operation.call(&[text.borrow()]));
    made.map_or_else(|raised| raised, crate::capi::error::raise)
}

/// Makes a file of an open io.FileIO. `capacity` is the size of the buffer in bytes, 0 for none.
#[pyfunction]
pub(super) fn _open_file(
    py: Python<'_>,
    raw: Bound<'_, PyAny>,
    regular: bool,
    capacity: usize,
) -> PyResult<Py<PyAny>> {
    let fd: RawFd = raw.call_method0(Fallible("fileno"))?.extract()?;
    let ability = |name| raw.call_method0(Fallible(name))?.is_truthy();
    let (readable, writable) = (ability("readable")?, ability("writable")?);
    let file = File {
        shared: Arc::new(SharedFile::new(fd, regular, capacity)),
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
pub(super) fn _spend_items(count: usize) {
    budget::spend_items(count);
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
