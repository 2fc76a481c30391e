//! `wakeloop.TcpStream`: a TCP connection that is read where that is cheapest.
//!
//! | file | what it is |
//! |---|---|
//! | `call` | one awaitable read or write |
//! | `methods` | the methods that make them |
//! | `lines` | `async for` over lines or frames |
//! | `found` | what a look for an item came to |
//! | `loop_reader` | reading on the loop's thread |
//! | `data` | bytes on their way out |
//!
//! A read looks for its item in what was received, and a write tries to send, there and then: an await of what is here
//! already goes on without a future and without a turn of the loop. What has to wait does so in one of two places:
//!
//! - **On the loop.** The poller of wakeloop's own loop watches the socket, and no other thread is woken. Every stream
//!   begins here, and for requests and responses this is the shortest way.
//! - **On the runtime.** A task of the workers receives and finds the ends of items, without the GIL, ahead of the
//!   reader (see `runtime::net::read_ahead`). A stream goes there when a reader falls behind the sender
//!   ([`LoopReader::is_bulk`]), when a write does not fit into the socket, and when somebody waits on it in another
//!   loop than the first, or in asyncio's. A read that waits meanwhile goes on waiting there.
//!
//! From there it does not come back. A stream that has been fast once mostly is so again, and to return it would have to
//! catch the reading ahead at rest: with nothing received, nothing asked for and no write on its way. What that costs
//! is a hop between threads for each read that has to wait. Who talks in turns after a transfer, and cares, opens a
//! second connection for one of the two.

pub(crate) mod call;
mod data;
mod found;
pub(crate) mod lines;
mod loop_reader;
pub(crate) mod methods;

use std::cell::{Cell, RefMut};
use std::io::{self, Write};
use std::net::{self, Shutdown};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::lookup::host_name;
use super::open_socket::{Inside, OpenSocket};
use super::sleep::duration;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::bridge::drop_on_loop::drop_attached;
use crate::bridge::io_error::{io_error, raise_io};
use crate::bridge::loop_handle::running_loop;
use crate::bridge::runtime;
use crate::bridge::waiter::Waiter;
use crate::capi::error::{exception, fetch};
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::event_loop::event_loop::EventLoop;
use crate::event_loop::futures::new_future;
use crate::runtime::net::{ReadAhead, TcpStream as RuntimeStream, Want};
use crate::runtime::sync::Semaphore;

pub(super) use data::Data;
use found::Found;
use loop_reader::LoopReader;

/// A TCP connection that is read and written in whole items. Made by TcpStream.connect and TcpListener.accept.
///
/// One task may read while others write; a second reader is refused with RuntimeError, writers take turns. A read
/// that is cancelled takes nothing: the next read, of whatever kind, gets the bytes. A write that is cancelled has
/// sent an unknown part. Not thread-safe: for use in the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct TcpStream {
    socket: OpenSocket<Open>,
    /// What reads it, as long as that happens on the loop.
    on_loop: Slot,
    /// A read waits.
    reading: Cell<bool>,
    limit: usize,
}

// SAFETY: used with the GIL held only (the module is `gil_used`).
unsafe impl Send for TcpStream {}
// SAFETY: as above.
unsafe impl Sync for TcpStream {}

#[derive(Debug)]
struct Open {
    place: Place,
    /// One permit: whose turn it is to write.
    turn: Arc<Semaphore>,
}

/// Where it is waited for the socket.
#[derive(Debug)]
enum Place {
    Loop(net::TcpStream),
    Runtime(Arc<RuntimeStream>, Box<ReadAhead>),
}

impl Open {
    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        match &self.place {
            Place::Loop(socket) => (&*socket).write(data),
            Place::Runtime(stream, _) => stream.try_write(data),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        match &self.place {
            Place::Loop(socket) => socket.shutdown(how),
            Place::Runtime(stream, _) => stream.shutdown(how),
        }
    }
}

impl AsRawFd for Open {
    fn as_raw_fd(&self) -> RawFd {
        match &self.place {
            Place::Loop(socket) => socket.as_raw_fd(),
            Place::Runtime(stream, _) => stream.as_raw_fd(),
        }
    }
}

impl Inside for Open {
    const CLASS: &'static str = "TcpStream";
    const NOUN: &'static str = "stream";
    const KIND: libc::c_int = libc::SOCK_STREAM;

    fn end(self) {
        // Whoever else holds the socket lets it go soon; the connection ends here. It may have ended already.
        let _ = self.shutdown(Shutdown::Both);
        if let Place::Runtime(_, reader) = &self.place
            && let Some(waker) = reader.give_up()
        {
            waker.wake();
        }
    }
}

impl TcpStream {
    /// The stream of a connected socket that does not block.
    pub(super) fn create(py: Python<'_>, socket: net::TcpStream, limit: usize) -> PyResult<Py<PyAny>> {
        let (local, peer) = (socket.local_addr().ok(), socket.peer_addr().ok());
        let reader = LoopReader::create(py, socket.as_raw_fd(), limit)?;
        let open = Open { place: Place::Loop(socket), turn: Arc::new(Semaphore::new(1)) };
        let stream = TcpStream {
            socket: OpenSocket::new(open, local, peer),
            on_loop: Slot::new(Some(reader)),
            reading: Cell::new(false),
            limit,
        };
        Ok(Bound::new(py, stream)?.into_any().unbind())
    }

    /// # Safety
    /// `object` is a TcpStream, which outlives the result.
    unsafe fn of<'a>(object: *mut pyo3::ffi::PyObject) -> &'a TcpStream {
        // SAFETY: the caller's word; the class is frozen, so shared references are all there is.
        unsafe {
            let py = Python::assume_attached();
            let bound = Borrowed::from_ptr(py, object).cast_unchecked::<TcpStream>();
            &*std::ptr::from_ref(bound.get())
        }
    }

    /// The inside of a stream that is open. `waited`: for a call that found it open before.
    fn open(&self, waited: bool) -> Result<RefMut<'_, Open>, Raised> {
        if waited { self.socket.get_again() } else { self.socket.get() }
    }

    /// The item, if it is here or comes without waiting. `begin`: it is a new one.
    fn look(&self, want: &Want, begin: bool, waited: bool) -> Result<Found, Raised> {
        let mut open = self.open(waited)?;
        let Place::Runtime(_, reader) = &mut open.place else {
            let Some(reader) = self.on_loop.get() else { return Err(Raised) };
            // SAFETY: the slot holds a LoopReader.
            return unsafe { LoopReader::of(&reader) }.look(want, begin);
        };
        if begin {
            reader.begin();
        }
        match Found::of(reader.take(want))? {
            Found::Nothing if !reader.is_started() => {
                reader.start(&runtime::handle().map_err(|error| raise_io(&error))?);
                Found::of(reader.take(want))
            }
            found => Ok(found),
        }
    }

    /// After a look that found nothing: the future to wait for, or none if another look is worth it.
    fn wait(&self, want: &Want, waited: bool) -> Result<Option<Ref>, Raised> {
        // SAFETY: tasks step with the GIL held.
        let py = unsafe { Python::assume_attached() };
        if let Some(object) = self.on_loop.get() {
            // SAFETY: the slot holds a LoopReader.
            let reader = unsafe { LoopReader::of(&object) };
            let event_loop = running_loop()?.bind(py);
            if let Ok(own) = event_loop.cast::<EventLoop>()
                && !reader.is_bulk()
                && reader.attach(&object, own)
            {
                // Making a future may run Python code.
                let future = new_future(own.as_ptr())?;
                drop(self.open(waited)?);
                if self.on_loop.is_empty() {
                    return Ok(None);
                }
                reader.wait(want, future.clone_ref());
                return Ok(Some(future));
            }
            return self.on_runtime().map(|_| None);
        }
        // Outside of the borrow: making a future may run Python code.
        let (waiter, future) = Waiter::new(py)?;
        let waker = Waker::from(Arc::new(WakeOnce(Mutex::new(Some(waiter)))));
        let mut open = self.open(waited)?;
        let Place::Runtime(_, reader) = &mut open.place else { return Ok(None) };
        Ok(reader.wait(want, waker).then_some(future))
    }

    /// The socket on the runtime, where it goes if it is not there yet.
    fn on_runtime(&self) -> Result<Arc<RuntimeStream>, Raised> {
        if let Place::Runtime(stream, _) = &self.open(false)?.place {
            return Ok(stream.clone());
        }
        // First, as it may fail: then nothing has changed.
        let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
        let Some(reader) = self.on_loop.take() else { return Err(Raised) };
        // SAFETY: the slot held a LoopReader.
        let (received, waiter) = unsafe { LoopReader::of(&reader) }.release(false);
        let moved = self.socket.change(|Open { place, turn }| {
            let stream = match place {
                Place::Loop(socket) => Arc::new(runtime.enter(|| RuntimeStream::from_std(socket))?),
                Place::Runtime(stream, _) => stream,
            };
            let ahead = Box::new(ReadAhead::new(stream.clone(), received));
            Ok::<_, io::Error>(Open { place: Place::Runtime(stream, ahead), turn })
        });
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        moved.map_err(|error| raise_io(&error))?;
        match &self.open(false)?.place {
            Place::Runtime(stream, _) => Ok(stream.clone()),
            Place::Loop(_) => Err(Raised),
        }
    }

    fn touch(&self) {
        if let Some(reader) = self.on_loop.get() {
            // SAFETY: the slot holds a LoopReader.
            unsafe { LoopReader::of(&reader) }.touch();
        }
    }

    /// A read that waited does so no longer.
    fn end_read(&self) {
        self.reading.set(false);
        if let Some(reader) = self.on_loop.get() {
            // SAFETY: the slot holds a LoopReader.
            unsafe { LoopReader::of(&reader) }.give_up();
        } else if !self.socket.is_parents() {
            let waker = match self.socket.get_open().as_deref() {
                Some(Open { place: Place::Runtime(_, reader), .. }) => reader.give_up(),
                _ => None,
            };
            // Not while the inside is borrowed: with the waiting task goes whatever that leads to.
            drop_attached(waker);
        }
    }

    fn close_now(&self) {
        let reader = self.on_loop.take();
        // SAFETY: the slot held a LoopReader.
        let waiter = reader.and_then(|reader| unsafe { LoopReader::of(&reader) }.release(true).1);
        self.socket.close();
        // In a forked child nobody waits; the parent does.
        if let Some(waiter) = waiter
            && !self.socket.is_parents()
        {
            waiter.wake();
        }
    }
}

/// The waker of a read that waits on the runtime.
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

/// The limit as the user gave it.
pub(super) fn checked(limit: usize) -> PyResult<usize> {
    if limit == 0 { Err(exception::<PyValueError>("limit must be at least 1")) } else { Ok(limit) }
}

/// Makes the types that nobody sees by name, all of them at import: made at its first use, one could fail by a panic.
pub(crate) fn make_types(py: Python<'_>) -> PyResult<()> {
    call::make_type(py)?;
    lines::make_type(py)?;
    py.get_type::<LoopReader>();
    Ok(())
}

#[pymethods]
impl TcpStream {
    /// connect(host, port, *, timeout=None, limit=65536)
    /// --
    ///
    /// Connect to host, trying its addresses one after the other, for at most timeout seconds in all. limit, in
    /// bytes, is the length of the longest line. Awaitable; gives a TcpStream. Raises TimeoutError,
    /// ConnectionRefusedError or another OSError.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, timeout=None, limit=65536))]
    fn connect<'py>(
        py: Python<'py>,
        host: &Bound<'py, PyString>,
        port: u16,
        timeout: Option<f64>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (host, limit) = (host_name(host)?, checked(limit)?);
        let timeout = timeout.map(duration).transpose()?.flatten();
        Operation::create(py, "TcpStream.connect", async move {
            let connected = match timeout {
                Some(timeout) => RuntimeStream::connect_timeout((host, port), timeout).await,
                None => RuntimeStream::connect((host, port)).await,
            };
            match connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream.into_std())) {
                Ok(socket) => Outcome::value(move |py| TcpStream::create(py, socket, limit)),
                Err(error) => Outcome::Error(error),
            }
        })
    }

    /// End the sending direction: the peer reads the end of the stream, and can still send. Raises OSError if the
    /// connection is gone.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open(false).map_err(|Raised| fetch(py))?;
        open.shutdown(Shutdown::Write).map_err(|error| io_error(py, &error))
    }

    /// Close the connection at once. A task that waits to read gets ConnectionAbortedError. Closing twice is fine.
    fn close(&self) {
        self.close_now();
    }

    /// Whether the stream was closed on this side.
    #[getter]
    fn closed(&self) -> bool {
        !self.socket.is_open()
    }

    /// The descriptor, -1 once closed. For looking at, not for reading or writing.
    fn fileno(&self) -> i32 {
        self.socket.fileno()
    }

    /// get_extra_info(name, default=None)
    /// --
    ///
    /// What asyncio's transports tell under the names 'peername' and 'sockname', which is (host, port) with two more
    /// numbers for IPv6, and 'socket': for options of the socket, not for reading or writing.
    #[pyo3(signature = (name, default=None))]
    fn get_extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.socket.extra_info(py, name, default)
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        super::entered(slf)
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        _exception: Bound<'py, pyo3::types::PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.close_now();
        super::left(py)
    }

    /// Iterates over lines, each with its end; the last one may have none.
    fn __aiter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        lines::make(&slf.into_any(), None)
    }

    /// frames(max_size=16777216)
    /// --
    ///
    /// Iterate over frames (see read_frame) until the stream ends.
    #[pyo3(signature = (max_size=16777216))]
    fn frames(slf: Bound<'_, Self>, max_size: usize) -> PyResult<Bound<'_, PyAny>> {
        lines::make(&slf.into_any(), Some(max_size))
    }

    fn __repr__(&self) -> Fallible<String> {
        Fallible(self.socket.repr(" peer=", self.socket.peer.as_ref()))
    }

    fn __traverse__(&self, visit: pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        self.on_loop.visit_with(&visit)
    }

    /// Nothing: the stream's end needs what it has, and the loop's own clear breaks the cycle.
    fn __clear__(&self) {}
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        self.socket.warn_unclosed(|| self.__repr__().0);
        self.close_now();
    }
}
