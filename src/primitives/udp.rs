//! `wakeloop.UdpSocket`: datagrams on the runtime.

use std::cell::RefCell;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::AsRawFd;
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::address;
use super::parcel::{Parcel, Returned};
use super::tcp_stream::{Data, foreign};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Raised;
use crate::capi::error::{fetch, raise_errno};
use crate::event_loop::core::forks;
use crate::runtime::net::{self, Target};
use crate::runtime::sync::Semaphore;

/// A datagram and where it came from.
type Datagram = (Vec<u8>, SocketAddr);

/// A UDP socket. Made by UdpSocket.bind and UdpSocket.connect.
///
/// Any number of tasks may send and receive; a datagram goes to one of them. A cancelled receive loses none: the
/// next one gets it. Not thread-safe: for use in the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct UdpSocket {
    open: RefCell<Option<Arc<Shared>>>,
    local: SocketAddr,
    peer: Option<SocketAddr>,
    /// A forked child has its parent's sockets, but not the threads that serve them.
    forks: u32,
}

// SAFETY: used with the GIL held only (the module is `gil_used`).
unsafe impl Send for UdpSocket {}
// SAFETY: as above.
unsafe impl Sync for UdpSocket {}

#[derive(Debug)]
struct Shared {
    socket: net::UdpSocket,
    returned: Arc<Returned<Datagram>>,
    /// Gets permits when the socket is closed.
    closed: Semaphore,
}

impl Shared {
    /// What a send or a receive comes to, unless the socket is closed first.
    async fn unless_closed<T>(&self, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        crate::select! {
            _closed = self.closed.acquire(1) => Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
            done = work => done,
        }
    }

    async fn receive(&self) -> io::Result<Datagram> {
        loop {
            if let Some(datagram) = self.returned.take() {
                return Ok(datagram);
            }
            crate::select! {
                () = self.returned.came() => {},
                received = self.socket.receive() => return received,
            }
        }
    }
}

impl UdpSocket {
    fn make(
        py: Python<'_>,
        socket: net::UdpSocket,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> PyResult<Py<PyAny>> {
        let shared = Shared { socket, returned: Returned::new(), closed: Semaphore::new(0) };
        let socket = UdpSocket { open: RefCell::new(Some(Arc::new(shared))), local, peer, forks: forks() };
        Ok(Bound::new(py, socket)?.into_any().unbind())
    }

    fn open(&self, py: Python<'_>) -> PyResult<Arc<Shared>> {
        if self.forks != forks() {
            let Raised = foreign("socket");
            return Err(fetch(py));
        }
        self.open.borrow().clone().ok_or_else(|| {
            let Raised = raise_errno(libc::EBADF);
            fetch(py)
        })
    }

    fn close_now(&self) {
        let Some(shared) = self.open.take() else { return };
        if self.forks != forks() {
            // The descriptor is a copy of the parent's, in an epoll set that the parent uses: only close it.
            // SAFETY: ours, and forgotten below.
            unsafe { libc::close(shared.socket.as_raw_fd()) };
            return std::mem::forget(shared);
        }
        shared.closed.release(usize::from(u16::MAX));
    }

    /// Receives a datagram and makes the result of it.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        make: impl FnOnce(Python<'_>, Datagram) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open(py)?;
        Operation::create(py, "recv", async move {
            match shared.unless_closed(shared.receive()).await {
                Ok(datagram) => {
                    let parcel = Parcel::new(datagram, &shared.returned);
                    Outcome::value(move |py| parcel.open().map_or_else(|| Ok(py.None()), |it| make(py, it)))
                }
                Err(error) => Outcome::Error(error),
            }
        })
    }

    fn send_data<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        to: Option<Target>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open(py)?;
        let data = Data::from_python(data.as_ptr()).map_err(|Raised| fetch(py))?.into_sendable(py);
        Operation::create(py, "send", async move {
            let sent = shared.unless_closed(async {
                match to {
                    Some(to) => {
                        let addresses = to.resolve().await?;
                        let found = addresses.first().ok_or(io::ErrorKind::AddrNotAvailable)?;
                        shared.socket.send_to(data.as_slice(), *found).await
                    }
                    None => shared.socket.send(data.as_slice()).await,
                }
            });
            match sent.await {
                Ok(_) => Outcome::Nothing,
                Err(error) => Outcome::Error(error),
            }
        })
    }
}

/// (host, port), or (address, port, flow, zone) for IPv6.
fn target(address: &Bound<'_, PyAny>) -> PyResult<Target> {
    if let Ok((host, port)) = address.extract::<(String, u16)>() {
        return Ok((host, port).into());
    }
    match address.extract::<(String, u16, u32, u32)>() {
        Ok((host, port, flow, zone)) => Ok(match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => SocketAddr::from(SocketAddrV6::new(ip, port, flow.to_be(), zone)).into(),
            _ => (host, port).into(),
        }),
        Err(_) => Err(PyTypeError::new_err("an address is a tuple (host, port)")),
    }
}

#[pymethods]
impl UdpSocket {
    /// bind(host, port)
    /// --
    ///
    /// A socket that receives at host and port; port 0 is any free port. Awaitable; gives a UdpSocket. Raises
    /// OSError if the address is in use or not ours.
    #[staticmethod]
    fn bind(py: Python<'_>, host: String, port: u16) -> PyResult<Bound<'_, PyAny>> {
        Operation::create(py, "bind", async move {
            let bound = net::UdpSocket::bind((host, port)).await;
            match bound.and_then(|socket| socket.local_addr().map(|local| (socket, local))) {
                Ok((socket, local)) => Outcome::value(move |py| UdpSocket::make(py, socket, local, None)),
                Err(error) => Outcome::Error(error),
            }
        })
    }

    /// connect(host, port)
    /// --
    ///
    /// A socket, at any free port, that sends to host and port and receives from there only. Awaitable; gives a
    /// UdpSocket.
    #[staticmethod]
    fn connect(py: Python<'_>, host: String, port: u16) -> PyResult<Bound<'_, PyAny>> {
        Operation::create(py, "connect", async move {
            match connected((host, port).into()).await {
                Ok((socket, local, peer)) => {
                    Outcome::value(move |py| UdpSocket::make(py, socket, local, Some(peer)))
                }
                Err(error) => Outcome::Error(error),
            }
        })
    }

    /// send(data)
    /// --
    ///
    /// Send a datagram to the peer of a connected socket. Awaitable. Raises ConnectionRefusedError if the peer
    /// refused an earlier one.
    fn send<'py>(&self, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.send_data(data.py(), data, None)
    }

    /// send_to(data, address)
    /// --
    ///
    /// Send a datagram to address, (host, port). Awaitable.
    fn send_to<'py>(
        &self,
        data: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.send_data(data.py(), data, Some(target(address)?))
    }

    /// recv()
    /// --
    ///
    /// Receive a datagram, of any length. Awaitable; gives bytes. Raises ConnectionAbortedError if the socket is
    /// closed meanwhile.
    fn recv<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.receive(py, |py, (data, _)| Ok(PyBytes::new(py, &data).into_any().unbind()))
    }

    /// recv_from()
    /// --
    ///
    /// As recv; gives (bytes, address of the sender).
    fn recv_from<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.receive(py, |py, (data, sender)| {
            let pair = (PyBytes::new(py, &data), address::to_python(py, &sender)?);
            Ok(pair.into_pyobject(py)?.into_any().unbind())
        })
    }

    /// Close the socket at once. Tasks that wait on it get ConnectionAbortedError. Closing twice is fine.
    fn close(&self) {
        self.close_now();
    }

    /// Whether the socket was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.borrow().is_none()
    }

    /// The port that it is bound to.
    #[getter]
    fn port(&self) -> u16 {
        self.local.port()
    }

    /// The address that it is bound to.
    #[getter]
    fn host(&self) -> String {
        self.local.ip().to_string()
    }

    /// The descriptor, -1 once closed. For looking at, not for sending or receiving.
    fn fileno(&self) -> i32 {
        self.open.borrow().as_ref().map_or(-1, |shared| shared.socket.as_raw_fd())
    }

    /// get_extra_info(name, default=None)
    /// --
    ///
    /// What asyncio's transports tell under the names 'sockname' and, for a connected socket, 'peername'.
    #[pyo3(signature = (name, default=None))]
    fn get_extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match (name, &self.peer) {
            ("sockname", _) => address::to_python(py, &self.local).map(Some),
            ("peername", Some(peer)) => address::to_python(py, peer).map(Some),
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

    fn __repr__(&self) -> String {
        let state = if self.open.borrow().is_some() { "" } else { " closed" };
        format!("<wakeloop.UdpSocket{state} {}>", self.local)
    }
}

/// A socket of the peer's family, connected to it.
async fn connected(peer: Target) -> io::Result<(net::UdpSocket, SocketAddr, SocketAddr)> {
    let mut failure = io::ErrorKind::AddrNotAvailable.into();
    for peer in peer.resolve().await? {
        let any = match peer {
            SocketAddr::V4(_) => "0.0.0.0:0",
            SocketAddr::V6(_) => "[::]:0",
        };
        let socket = net::UdpSocket::bind(any).await?;
        match socket.connect(peer).await.and_then(|()| socket.local_addr()) {
            Ok(local) => return Ok((socket, local, peer)),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        if self.open.borrow().is_some() {
            if self.forks == forks() {
                super::warn_unclosed(&self.__repr__());
            }
            self.close_now();
        }
    }
}
