//! `wakeloop.TcpStream`: a TCP connection that the runtime reads ahead of Python.
//!
//! | file | what it is |
//! |---|---|
//! | `call` | one awaitable read or write |
//! | `methods` | the methods that make them |
//! | `lines` | `async for` over lines or frames |
//! | `data` | bytes on their way out |
//!
//! A task of the runtime receives and finds the ends of items, without the GIL (see `runtime::net::read_ahead`). An
//! await of what is here already takes it and goes on: no hop, no future, no turn of the loop.

pub(crate) mod call;
mod data;
pub(crate) mod lines;
pub(crate) mod methods;

use std::cell::{Cell, RefCell, RefMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::ffi;
use pyo3::prelude::*;

use super::address;
use super::sleep::duration;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Raised;
use crate::capi::error::{fetch, io_error, raise_errno, raise_message};
use crate::event_loop::core::forks;
use crate::runtime::net::{self, ReadAhead};
use crate::runtime::sync::Semaphore;

pub(super) use data::Data;

/// A TCP connection whose reading and framing happen on the runtime's threads. Made by TcpStream.connect and
/// TcpListener.accept.
///
/// One task may read while others write; a second reader is refused with RuntimeError, writers take turns. A read
/// that is cancelled takes nothing: the next read, of whatever kind, gets the bytes. A write that is cancelled has
/// sent an unknown part. Not thread-safe: for use in the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct TcpStream {
    open: RefCell<Option<Open>>,
    /// A read waits.
    reading: Cell<bool>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// A forked child has its parent's streams, but not the threads that serve them.
    forks: u32,
}

// SAFETY: used with the GIL held only (the module is `gil_used`).
unsafe impl Send for TcpStream {}
// SAFETY: as above.
unsafe impl Sync for TcpStream {}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) stream: Arc<net::TcpStream>,
    pub(super) reader: ReadAhead,
    /// One permit: whose turn it is to write.
    pub(super) turn: Arc<Semaphore>,
    pub(super) limit: usize,
}

impl TcpStream {
    pub(super) fn new(stream: net::TcpStream, limit: usize) -> TcpStream {
        let (local, peer) = (stream.local_addr().ok(), stream.peer_addr().ok());
        let stream = Arc::new(stream);
        let reader = ReadAhead::new(stream.clone(), limit);
        let open = Open { stream, reader, turn: Arc::new(Semaphore::new(1)), limit };
        TcpStream { open: RefCell::new(Some(open)), reading: Cell::new(false), local, peer, forks: forks() }
    }

    /// # Safety
    /// `object` is a TcpStream, which outlives the result.
    unsafe fn of<'a>(object: *mut ffi::PyObject) -> &'a TcpStream {
        // SAFETY: the caller's word; the class is frozen, so shared references are all there is.
        unsafe {
            let py = Python::assume_attached();
            let bound = Borrowed::from_ptr(py, object).cast_unchecked::<TcpStream>();
            &*std::ptr::from_ref(bound.get())
        }
    }

    /// The inside of a stream that is open. `waited`: for a call that found it open before.
    ///
    /// # Errors
    /// Raises what the use of a closed stream, or of a parent's, raises.
    fn open(&self, waited: bool) -> Result<RefMut<'_, Open>, Raised> {
        if self.forks != forks() {
            return Err(foreign("stream"));
        }
        RefMut::filter_map(self.open.borrow_mut(), Option::as_mut).map_err(|closed| {
            drop(closed);
            raise_errno(if waited { libc::ECONNABORTED } else { libc::EBADF })
        })
    }

    /// A read that waited does so no longer.
    fn end_read(&self) {
        self.reading.set(false);
        if self.forks == forks() {
            let waker = self.open.borrow().as_ref().and_then(|open| open.reader.give_up());
            // Not while the inside is borrowed: with the waiting task goes whatever that leads to.
            drop(waker);
        }
    }

    fn close_now(&self) {
        let Some(open) = self.open.take() else { return };
        if self.forks != forks() {
            // The descriptor is a copy of the parent's, in an epoll set that the parent uses: only close it.
            // SAFETY: ours, and forgotten below.
            unsafe { libc::close(open.stream.as_raw_fd()) };
            return std::mem::forget(open);
        }
        // Whoever else holds the socket lets it go soon; the connection ends here. It may have ended already.
        let _ = open.stream.shutdown(Shutdown::Both);
        if let Some(waker) = open.reader.give_up() {
            waker.wake();
        }
    }
}

/// RuntimeError for what belongs to the parent process.
pub(super) fn foreign(what: &str) -> Raised {
    // SAFETY: reading a static of the interpreter.
    let kind = unsafe { ffi::PyExc_RuntimeError };
    raise_message(kind, &format!("this {what} belongs to the parent process"));
    Raised
}

/// The limit as the user gave it.
pub(super) fn checked(limit: usize) -> PyResult<usize> {
    if limit == 0 { Err(PyValueError::new_err("limit must be at least 1")) } else { Ok(limit) }
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
    fn connect(
        py: Python<'_>,
        host: String,
        port: u16,
        timeout: Option<f64>,
        limit: usize,
    ) -> PyResult<Bound<'_, PyAny>> {
        let limit = checked(limit)?;
        let timeout = timeout.map(duration).transpose()?.flatten();
        Operation::create(py, "connect", async move {
            let connected = match timeout {
                Some(timeout) => net::TcpStream::connect_timeout((host, port), timeout).await,
                None => net::TcpStream::connect((host, port)).await,
            };
            match connected.and_then(|stream| stream.set_nodelay(true).map(|()| stream)) {
                Ok(stream) => Outcome::value(move |py| {
                    Ok(Bound::new(py, TcpStream::new(stream, limit))?.into_any().unbind())
                }),
                Err(error) => Outcome::Error(error),
            }
        })
    }

    /// End the sending direction: the peer reads the end of the stream, and can still send. Raises OSError if the
    /// connection is gone.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let open = self.open(false).map_err(|Raised| fetch(py))?;
        open.stream.shutdown(Shutdown::Write).map_err(|error| io_error(py, &error))
    }

    /// Close the connection at once. A task that waits to read gets ConnectionAbortedError. Closing twice is fine.
    fn close(&self) {
        self.close_now();
    }

    /// Whether the stream was closed on this side.
    #[getter]
    fn closed(&self) -> bool {
        self.open.borrow().is_none()
    }

    /// The descriptor, -1 once closed. For looking at, not for reading or writing.
    fn fileno(&self) -> i32 {
        self.open.borrow().as_ref().map_or(-1, |open| open.stream.as_raw_fd())
    }

    /// get_extra_info(name, default=None)
    /// --
    ///
    /// What asyncio's transports tell under the names 'peername' and 'sockname': (host, port), with two more
    /// numbers for IPv6.
    #[pyo3(signature = (name, default=None))]
    fn get_extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match (name, &self.peer, &self.local) {
            ("peername", Some(peer), _) => address::to_python(py, peer).map(Some),
            ("sockname", _, Some(local)) => address::to_python(py, local).map(Some),
            _ => Ok(default),
        }
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

    fn __repr__(&self) -> String {
        let state = if self.open.borrow().is_some() { "" } else { " closed" };
        match &self.peer {
            Some(peer) => format!("<wakeloop.TcpStream{state} peer={peer}>"),
            None => format!("<wakeloop.TcpStream{state}>"),
        }
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        if self.open.borrow().is_some() {
            if self.forks == forks() {
                super::warn_unclosed(&self.__repr__());
            }
            self.close_now();
        }
    }
}
