//! `wakeloop.TcpListener`: accepts connections on the runtime.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::address_error::Address;
use super::incoming::Incoming;
use super::listening::Sockets;
use super::lookup::host_name;
use super::numbers;
use super::socket::{self, Inside, OpenSocket, SocketClass};
use super::tcp_stream::TcpStream;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Fallible;
use crate::capi::native::native_class;
use crate::capi::section;

/// A TCP socket that listens, or one for each address of a name. Made by TcpListener.bind.
///
/// Any number of tasks may accept; a connection goes to one of them. A cancelled accept loses no connection: the next
/// accept gets it. Connections that were accepted stay open when the listener is closed. Not thread-safe: for use in
/// the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct TcpListener {
    socket: OpenSocket<Arc<SharedListener>>,
    limit: usize,
}

// SAFETY: used by attached threads only, each in a section of the object; see `capi::section`.
unsafe impl Send for TcpListener {}
// SAFETY: as for `Send`.
unsafe impl Sync for TcpListener {}

#[derive(Debug)]
pub(crate) struct SharedListener {
    sockets: Sockets,
    incoming: Arc<Incoming<std::net::TcpStream>>,
}

impl SharedListener {
    async fn accept(&self) -> io::Result<std::net::TcpStream> {
        loop {
            match self.sockets.accept().await {
                // The peer was gone before its connection was accepted. That is no failure of the listener.
                Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => {}
                accepted => {
                    let stream = accepted?;
                    // This fails only for a connection that is gone, and then the first read fails too.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
            }
        }
    }
}

impl TcpListener {
    /// Accepts a connection. If `iterating`, a close of the listener ends the iteration instead of raising.
    fn next<'py>(&self, py: Python<'py>, iterating: bool) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.socket.get()?.clone();
        let limit = self.limit;
        let make = move |py: Python<'_>, stream| TcpStream::create(py, stream, limit);
        Operation::opening(py, "TcpListener.accept", async move {
            match shared.incoming.receive(shared.accept(), make).await {
                Err(_) if iterating && shared.incoming.is_closed() => {
                    Outcome::value(|_| Err(PyStopAsyncIteration::new_err(())))
                }
                accepted => accepted.unwrap_or_else(Outcome::Error),
            }
        })
    }
}

impl Inside for Arc<SharedListener> {
    const CLASS: &'static str = "TcpListener";
    const NOUN: &'static str = "listener";
    const KIND: libc::c_int = libc::SOCK_STREAM;

    fn end(self) {
        // This comes first, because a task that finds the socket shut down checks whether `incoming` is closed.
        self.incoming.close();
        self.sockets.shut_down();
    }

    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.sockets.descriptors()
    }
}

#[pymethods]
impl TcpListener {
    /// Listen at every address of host, as asyncio's servers do; None and '' are all interfaces, over IPv4 and IPv6.
    /// Port 0 is any free port, the same one for each address. limit is the limit of the accepted streams, in bytes.
    /// Awaitable; gives a TcpListener. Raises OSError if an address is in use, or if none is local.
    #[staticmethod]
    #[pyo3(signature = (host, port, *, limit=65536))]
    fn bind<'py>(
        py: Python<'py>,
        host: Option<&Bound<'py, PyString>>,
        #[pyo3(from_py_with = numbers::integer)] port: i64,
        #[pyo3(from_py_with = numbers::integer)] limit: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let host = host.map(host_name).transpose()?.filter(|host| !host.is_empty());
        let (port, limit) = (numbers::port(port, "bind")?, numbers::limit(limit)?);
        let address = Address::new(host.as_deref(), port);
        Operation::opening(py, "TcpListener.bind", async move {
            match Sockets::bind(host, port).await {
                Ok((sockets, local)) => Outcome::value(move |py| {
                    let shared = SharedListener { sockets, incoming: Incoming::new() };
                    let socket = OpenSocket::new(Arc::new(shared), Some(local), None);
                    let listener = TcpListener { socket, limit };
                    socket::create(py, listener)
                }),
                Err(error) => address.not_bound(error),
            }
        })
    }

    /// Wait for a connection. Awaitable; gives a TcpStream. Raises ConnectionAbortedError if the listener is closed
    /// meanwhile, OSError if descriptors run out.
    fn accept<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().next(slf.py(), false)
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// The next connection. Closing the listener ends the iteration.
    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (this, _held) = (slf.get(), section::enter_bound(slf));
        if !this.socket.is_open() {
            return Err(PyStopAsyncIteration::new_err(()));
        }
        this.next(slf.py(), true)
    }

    /// The port that it listens on.
    #[getter]
    fn port(&self) -> Fallible<u16> {
        self.socket.port()
    }

    /// The address that it listens on, the first of several.
    #[getter]
    fn host(&self) -> Fallible<String> {
        self.socket.host()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> Fallible<String> {
        let _held = section::enter_bound(slf);
        Fallible(slf.get().socket.repr())
    }
}

// `socket::add_methods` sets the class, and says where the fields are.
native_class!(unsafe TcpListener);

impl SocketClass for TcpListener {
    type Inside = Arc<SharedListener>;
    const WAIT_CLOSED: &'static str = "TcpListener.wait_closed";

    fn socket(&self) -> &OpenSocket<Arc<SharedListener>> {
        &self.socket
    }
}
