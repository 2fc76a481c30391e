//! `wakeloop.TcpListener`: accepts connections on the runtime.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;

use super::address;
use super::parcel::{Parcel, Returned};
use super::tcp_stream::{TcpStream, checked, foreign};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Raised;
use crate::capi::error::{fetch, raise_errno};
use crate::event_loop::core::forks;
use crate::runtime::net;
use crate::runtime::sync::Semaphore;

/// A listening TCP socket. Made by TcpListener.bind.
///
/// Any number of tasks may accept; a connection goes to one of them. A cancelled accept loses none: the next one
/// gets it. Not thread-safe: for use in the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct TcpListener {
    open: RefCell<Option<Arc<Shared>>>,
    local: SocketAddr,
    limit: usize,
    /// A forked child has its parent's listeners, but not the threads that serve them.
    forks: u32,
}

// SAFETY: used with the GIL held only (the module is `gil_used`).
unsafe impl Send for TcpListener {}
// SAFETY: as above.
unsafe impl Sync for TcpListener {}

#[derive(Debug)]
struct Shared {
    listener: net::TcpListener,
    returned: Arc<Returned<net::TcpStream>>,
    /// Gets permits when the listener is closed.
    closed: Semaphore,
}

impl Shared {
    async fn accept(&self) -> io::Result<net::TcpStream> {
        loop {
            if let Some(stream) = self.returned.take() {
                return Ok(stream);
            }
            crate::select! {
                _closed = self.closed.acquire(1) => return Err(closed()),
                () = self.returned.came() => {},
                accepted = self.listener.accept() => match accepted {
                    // Gone again before it was accepted: not the listener's failure.
                    Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                    Err(_) if self.closed.available() > 0 => return Err(closed()),
                    Err(error) => return Err(error),
                    Ok((stream, _)) => {
                        // It fails only for a connection that is gone, which a read will find out.
                        let _ = stream.set_nodelay(true);
                        return Ok(stream);
                    }
                }
            }
        }
    }
}

fn closed() -> io::Error {
    io::Error::from_raw_os_error(libc::ECONNABORTED)
}

impl TcpListener {
    fn open(&self) -> Result<Arc<Shared>, Raised> {
        if self.forks != forks() {
            return Err(foreign("listener"));
        }
        self.open.borrow().clone().ok_or_else(|| raise_errno(libc::EBADF))
    }

    /// Accepts a connection; for an iteration the close is the end.
    fn next<'py>(&self, py: Python<'py>, iterating: bool) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open().map_err(|Raised| fetch(py))?;
        let limit = self.limit;
        Operation::create(py, "accept", async move {
            match shared.accept().await {
                Ok(stream) => {
                    let parcel = Parcel::new(stream, &shared.returned);
                    Outcome::value(move |py| match parcel.open() {
                        Some(stream) => {
                            Ok(Bound::new(py, TcpStream::new(stream, limit))?.into_any().unbind())
                        }
                        None => Ok(py.None()),
                    })
                }
                Err(_) if iterating && shared.closed.available() > 0 => {
                    Outcome::value(|_| Err(PyStopAsyncIteration::new_err(())))
                }
                Err(error) => Outcome::Error(error),
            }
        })
    }

    fn close_now(&self) {
        let Some(shared) = self.open.take() else { return };
        if self.forks != forks() {
            // The descriptor is a copy of the parent's, in an epoll set that the parent uses: only close it.
            // SAFETY: ours, and forgotten below.
            unsafe { libc::close(shared.listener.as_raw_fd()) };
            return std::mem::forget(shared);
        }
        // First: who waits and finds the socket shut down looks here for the reason.
        shared.closed.release(usize::from(u16::MAX));
        // Tasks that wait hold the socket a little longer; nobody connects any more.
        // SAFETY: a descriptor of ours. Where the system knows no shutdown of listeners, it fails.
        unsafe { libc::shutdown(shared.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

#[pymethods]
impl TcpListener {
    /// bind(host, port, *, limit=65536)
    /// --
    ///
    /// Listen at host and port; port 0 is any free port. limit is that of the streams it accepts, in bytes.
    /// Awaitable; gives a TcpListener. Raises OSError if the address is in use or not ours.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, limit=65536))]
    fn bind(py: Python<'_>, host: String, port: u16, limit: usize) -> PyResult<Bound<'_, PyAny>> {
        let limit = checked(limit)?;
        Operation::create(py, "bind", async move {
            let bound = net::TcpListener::bind((host, port)).await;
            match bound.and_then(|listener| listener.local_addr().map(|local| (listener, local))) {
                Ok((listener, local)) => Outcome::value(move |py| {
                    let shared = Shared { listener, returned: Returned::new(), closed: Semaphore::new(0) };
                    let open = RefCell::new(Some(Arc::new(shared)));
                    let listener = TcpListener { open, local, limit, forks: forks() };
                    Ok(Bound::new(py, listener)?.into_any().unbind())
                }),
                Err(error) => Outcome::Error(error),
            }
        })
    }

    /// accept()
    /// --
    ///
    /// Wait for a connection. Awaitable; gives a TcpStream. Raises ConnectionAbortedError if the listener is closed
    /// meanwhile, OSError if descriptors run out.
    fn accept<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.next(py, false)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// The next connection. Closing the listener ends the iteration.
    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if self.open.borrow().is_none() {
            return Err(PyStopAsyncIteration::new_err(()));
        }
        self.next(py, true)
    }

    /// Stop listening, at once. Connections that were accepted live on; tasks that wait to accept get
    /// ConnectionAbortedError. Closing twice is fine.
    fn close(&self) {
        self.close_now();
    }

    /// Whether the listener was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.borrow().is_none()
    }

    /// The port that it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.local.port()
    }

    /// The address that it listens on.
    #[getter]
    fn host(&self) -> String {
        self.local.ip().to_string()
    }

    /// The descriptor, -1 once closed. For looking at, not for accepting.
    fn fileno(&self) -> i32 {
        self.open.borrow().as_ref().map_or(-1, |shared| shared.listener.as_raw_fd())
    }

    /// get_extra_info(name, default=None)
    /// --
    ///
    /// What asyncio's transports tell under the name 'sockname'.
    #[pyo3(signature = (name, default=None))]
    fn get_extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if name == "sockname" { address::to_python(py, &self.local).map(Some) } else { Ok(default) }
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

    fn __repr__(&self) -> String {
        let state = if self.open.borrow().is_some() { "" } else { " closed" };
        format!("<wakeloop.TcpListener{state} {}>", self.local)
    }
}

impl Drop for TcpListener {
    fn drop(&mut self) {
        if self.open.borrow().is_some() {
            if self.forks == forks() {
                super::warn_unclosed(&self.__repr__());
            }
            self.close_now();
        }
    }
}
