//! `wakeloop.UdpSocket`: datagrams on the runtime.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::address_error::Address;
use super::data::Data;
use super::incoming::Incoming;
use super::lookup::host_name;
use super::numbers;
use super::socket::{self, Inside, OpenSocket, SocketClass};
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::error::exception;
use crate::capi::fallible::py_tuple;
use crate::capi::native::native_class;
use crate::capi::section;
use crate::capi::sockaddr::internet_to_python;
use crate::capi::{Fallible, Ref};
use crate::runtime::net::{self, Target};

/// A datagram and where it came from.
type Datagram = (Vec<u8>, SocketAddr);

/// A UDP socket. Made by UdpSocket.bind and UdpSocket.connect.
///
/// Any number of tasks may send and receive; a datagram goes to one of them. A cancelled receive loses no datagram:
/// the next receive gets it. Not thread-safe: for use in the thread of one event loop.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct UdpSocket {
    socket: OpenSocket<Arc<SharedSocket>>,
    local: SocketAddr,
}

// SAFETY: used by attached threads only, each in a section of the object; see `capi::section`.
unsafe impl Send for UdpSocket {}
// SAFETY: as for `Send`.
unsafe impl Sync for UdpSocket {}

#[derive(Debug)]
pub(crate) struct SharedSocket {
    socket: net::UdpSocket,
    incoming: Arc<Incoming<Datagram>>,
}

impl UdpSocket {
    fn make(
        py: Python<'_>,
        socket: net::UdpSocket,
        local: SocketAddr,
        peer: Option<SocketAddr>,
    ) -> PyResult<Py<PyAny>> {
        let shared = SharedSocket { socket, incoming: Incoming::new() };
        let socket = UdpSocket { socket: OpenSocket::new(Arc::new(shared), Some(local), peer), local };
        socket::create(py, socket)
    }

    fn open(&self) -> PyResult<Arc<SharedSocket>> {
        Ok(self.socket.get()?.clone())
    }

    /// Receives a datagram and makes the result of it.
    fn receive<'py>(
        &self,
        py: Python<'py>,
        name: &'static str,
        make: impl FnOnce(Python<'_>, Datagram) -> PyResult<Py<PyAny>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.open()?;
        Operation::create(py, name, async move {
            let received = shared.incoming.receive(shared.socket.receive(), make);
            received.await.unwrap_or_else(Outcome::Error)
        })
    }

    fn send_data<'py>(
        &self,
        py: Python<'py>,
        name: &'static str,
        data: &Bound<'py, PyAny>,
        to: Option<Target>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (shared, local) = (self.open()?, self.local);
        let data = Data::from_python(Ref::from(data.clone()).borrow())?.to_sendable(py);
        Operation::create(py, name, async move {
            let sent = shared.incoming.unless_closed(async {
                match to {
                    Some(to) => {
                        let addresses = to.resolve().await?;
                        // A name may have addresses of both families; the socket has one.
                        let fitting = addresses.iter().find(|found| found.is_ipv4() == local.is_ipv4());
                        let found = fitting.or(addresses.first()).ok_or(io::ErrorKind::AddrNotAvailable)?;
                        shared.socket.send_to(data.as_slice(), *found).await
                    }
                    None => shared.socket.send(data.as_slice()).await,
                }
            });
            sent.await.map_or_else(Outcome::Error, |_| Outcome::Nothing)
        })
    }
}

impl Inside for Arc<SharedSocket> {
    const CLASS: &'static str = "UdpSocket";
    const NOUN: &'static str = "socket";
    const KIND: libc::c_int = libc::SOCK_DGRAM;

    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.socket.as_raw_fd())
    }

    fn end(self) {
        self.incoming.close();
    }
}

/// (host, port), or (address, port, flow, zone) for IPv6.
fn target(address: &Bound<'_, PyAny>) -> PyResult<Target> {
    let port_of = |port: &Bound<'_, PyAny>| numbers::port(numbers::integer(port)?, "sendto");
    if let Ok((host, port)) = address.extract::<(Bound<'_, PyString>, Bound<'_, PyAny>)>() {
        return Ok((host_name(&host)?, port_of(&port)?).into());
    }
    match address.extract::<(Bound<'_, PyString>, Bound<'_, PyAny>, u32, u32)>() {
        Ok((host, port, flow, zone)) => Ok(match host.to_str()?.parse::<IpAddr>() {
            Ok(IpAddr::V6(ip)) => {
                SocketAddr::from(SocketAddrV6::new(ip, port_of(&port)?, flow.to_be(), zone)).into()
            }
            _ => (host_name(&host)?, port_of(&port)?).into(),
        }),
        Err(_) => Err(exception::<PyTypeError>("an address is a tuple (host, port)")),
    }
}

#[pymethods]
impl UdpSocket {
    /// A socket that receives at host and port; port 0 is any free port. Awaitable; gives a UdpSocket. Raises OSError
    /// if the address is in use or not local.
    #[staticmethod]
    fn bind<'py>(
        py: Python<'py>,
        host: &Bound<'py, PyString>,
        #[pyo3(from_py_with = numbers::integer)] port: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (host, port) = (host_name(host)?, numbers::port(port, "bind")?);
        let address = Address::new(Some(&host), port);
        Operation::opening(py, "UdpSocket.bind", async move {
            let bound = net::UdpSocket::bind((host, port)).await;
            let bound = bound.and_then(|socket| socket.local_addr().map(|local| (socket, local)));
            match bound {
                Ok((socket, local)) => Outcome::value(move |py| UdpSocket::make(py, socket, local, None)),
                Err(error) => address.not_bound(error),
            }
        })
    }

    /// A socket, at any free port, that sends to host and port and receives from there only. Awaitable; gives a
    /// UdpSocket.
    #[staticmethod]
    fn connect<'py>(
        py: Python<'py>,
        host: &Bound<'py, PyString>,
        #[pyo3(from_py_with = numbers::integer)] port: i64,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (host, port) = (host_name(host)?, numbers::port(port, "connect")?);
        let address = Address::new(Some(&host), port);
        Operation::opening(py, "UdpSocket.connect", async move {
            match connected((host, port).into()).await {
                Ok((socket, local, peer)) => {
                    Outcome::value(move |py| UdpSocket::make(py, socket, local, Some(peer)))
                }
                Err(error) => address.not_connected(error),
            }
        })
    }

    /// Send a datagram to the peer of a connected socket. Awaitable. Raises ConnectionRefusedError if the peer
    /// refused an earlier one.
    fn send<'py>(slf: &Bound<'py, Self>, data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().send_data(data.py(), "UdpSocket.send", data, None)
    }

    /// Send a datagram to address, (host, port). Awaitable.
    fn send_to<'py>(
        slf: &Bound<'py, Self>,
        data: &Bound<'py, PyAny>,
        address: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().send_data(data.py(), "UdpSocket.send_to", data, Some(target(address)?))
    }

    /// Receive a datagram, of any length. Awaitable; gives bytes. Raises ConnectionAbortedError if the socket is
    /// closed meanwhile.
    fn recv<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().receive(py, "UdpSocket.recv", |py, (data, _)| {
            Ok(Fallible(&data[..]).into_pyobject(py)?.into_any().unbind())
        })
    }

    /// As recv; gives (bytes, address of the sender).
    fn recv_from<'py>(slf: &Bound<'py, Self>, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let _held = section::enter_bound(slf);
        slf.get().receive(py, "UdpSocket.recv_from", |py, (data, sender)| {
            let data = Fallible(&data[..]).into_pyobject(py)?.into_any();
            Ok(py_tuple(py, [data, internet_to_python(&sender)?.bind(py)])?.into_any().unbind())
        })
    }

    /// The port that it is bound to.
    #[getter]
    fn port(&self) -> Fallible<u16> {
        self.socket.port()
    }

    /// The address that it is bound to.
    #[getter]
    fn host(&self) -> Fallible<String> {
        self.socket.host()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> Fallible<String> {
        let _held = section::enter_bound(slf);
        Fallible(slf.get().socket.repr())
    }
}

/// Makes a socket of the peer's family, connected to the peer.
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

// `socket::add_methods` sets the class, and says where the fields are.
native_class!(unsafe UdpSocket);

impl SocketClass for UdpSocket {
    type Inside = Arc<SharedSocket>;
    const WAIT_CLOSED: &'static str = "UdpSocket.wait_closed";

    fn socket(&self) -> &OpenSocket<Arc<SharedSocket>> {
        &self.socket
    }
}
