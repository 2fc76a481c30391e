//! What `TcpStream`, `TcpListener` and `UdpSocket` have in common: a socket that exists until it is closed, and the
//! methods that inspect and close it.
//!
//! A class has an [`OpenSocket`] and says so by [`SocketClass`]; [`add_methods`] then gives it `close`, `wait_closed`,
//! `is_closing`, `fileno`, `get_extra_info` and `async with`.
//!
//! **Closing** is as in asyncio: `close()` is a plain call that closes at once, `await wait_closed()` waits for that,
//! and `async with` does both.

use std::cell::{RefCell, RefMut};
use std::net::SocketAddr;
use std::os::fd::RawFd;

use pyo3::prelude::*;
use pyo3::types::PyString;

use super::closed::Closed;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::class;
use crate::capi::error::{raise_errno_with, warn};
use crate::capi::imports::{imports, support};
use crate::capi::methods::Method;
use crate::capi::sockaddr::internet_to_python;
use crate::capi::socket::adopt;
use crate::capi::{Arguments, Exception, Fallible, Native, Raised, Ref, Slot, This};
use crate::fork::Owner;

/// The part of a socket that exists while it is open.
pub(crate) trait Inside {
    /// The name of its class in Python.
    const CLASS: &'static str;
    /// The noun for it in error messages.
    const NOUN: &'static str;
    const KIND: libc::c_int;

    /// Every descriptor that it owns, the one that `fileno()` shows first.
    fn descriptors(&self) -> impl Iterator<Item = RawFd>;

    /// Ends it, because the user has closed the socket. Wakes the tasks that wait for it.
    fn end(self);
}

#[derive(Debug)]
pub(crate) struct OpenSocket<T: Inside> {
    inside: RefCell<Option<T>>,
    local: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    /// The Python socket, made by `get_extra_info("socket")`. It does not own the descriptor.
    python: Slot,
    closed: Closed,
    /// A forked child has its parent's sockets, but not the threads that serve them.
    owner: Owner,
}

impl<T: Inside> OpenSocket<T> {
    pub(super) fn new(inside: T, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> OpenSocket<T> {
        OpenSocket {
            inside: RefCell::new(Some(inside)),
            local,
            peer,
            python: Slot::empty(),
            closed: Closed::new(),
            owner: Owner::this_process(),
        }
    }

    /// The inside. No Python code may run while the result lives.
    ///
    /// # Errors
    /// Raises OSError (EBADF) if the socket is closed, and RuntimeError if it belongs to the parent process.
    pub(super) fn get(&self) -> Result<RefMut<'_, T>, Raised> {
        self.get_or(libc::EBADF, "is closed")
    }

    /// As `get`, for a call that found the socket open before and has waited since.
    ///
    /// # Errors
    /// As `get`, with ConnectionAbortedError for a closed socket.
    pub(super) fn get_again(&self) -> Result<RefMut<'_, T>, Raised> {
        self.get_or(libc::ECONNABORTED, "was closed meanwhile")
    }

    fn get_or(&self, errno: i32, state: &str) -> Result<RefMut<'_, T>, Raised> {
        self.check_process()?;
        RefMut::filter_map(self.inside.borrow_mut(), Option::as_mut).map_err(|closed| {
            drop(closed);
            raise_errno_with(errno, &format!("the {} {state}", T::NOUN))
        })
    }

    /// Raises RuntimeError in a forked child of the process that made the socket.
    pub(super) fn check_process(&self) -> Result<(), Raised> {
        if !self.is_parents() {
            return Ok(());
        }
        Err(Exception::RuntimeError.raise(&format!("this {} belongs to the parent process", T::NOUN)))
    }

    /// The inside, if it is open.
    pub(super) fn get_open(&self) -> Option<RefMut<'_, T>> {
        RefMut::filter_map(self.inside.borrow_mut(), Option::as_mut).ok()
    }

    pub(super) fn is_open(&self) -> bool {
        self.inside.borrow().is_some()
    }

    /// Was the socket made by the parent process, before a fork?
    pub(super) fn is_parents(&self) -> bool {
        !self.owner.is_this_process()
    }

    fn fileno(&self) -> i32 {
        self.inside.borrow().as_ref().and_then(|inside| inside.descriptors().next()).unwrap_or(-1)
    }

    /// The local address, of a socket that is bound.
    pub(super) fn port(&self) -> Fallible<u16> {
        Fallible(self.local.map_or(0, |local| local.port()))
    }

    pub(super) fn host(&self) -> Fallible<String> {
        Fallible(self.local.map(|local| local.ip().to_string()).unwrap_or_default())
    }

    /// Replaces the inside by what `change` makes of it. If that fails, the socket is closed.
    pub(super) fn change<E>(&self, change: impl FnOnce(T) -> Result<T, E>) -> Result<(), E> {
        let Some(inside) = self.inside.take() else { return Ok(()) };
        let changed = change(inside);
        if changed.is_err() {
            self.detach_python();
            self.closed.set();
        }
        *self.inside.borrow_mut() = Some(changed?);
        Ok(())
    }

    /// Closes it. Closing twice is fine.
    pub(super) fn close(&self) {
        let Some(inside) = self.inside.take() else { return };
        self.detach_python();
        if !self.is_parents() {
            inside.end();
            return self.closed.set();
        }
        // The descriptors are copies of the parent's, and in an epoll set that the parent uses. So they are closed
        // and not deregistered.
        for descriptor in inside.descriptors() {
            // SAFETY: `inside` owns the descriptor and is forgotten below, so nothing uses or closes it again.
            unsafe { libc::close(descriptor) };
        }
        std::mem::forget(inside);
    }

    /// Takes the descriptor away from the Python socket, before it is closed.
    fn detach_python(&self) {
        let Some(socket) = self.python.get() else { return };
        let py = socket.py();
        // May be called while an exception is set.
        let raised = PyErr::take(py);
        // It fails only if the method was replaced.
        drop(socket.bind(py).call_method0(Fallible("detach")));
        if let Some(raised) = raised {
            raised.restore(py);
        }
    }

    /// `get_extra_info` of asyncio's transports.
    fn extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // A name that is not hashable is an error, because asyncio looks names up in a dict.
        name.hash()?;
        let name = name.cast::<PyString>().ok().and_then(|name| name.to_str().ok());
        match (name.unwrap_or_default(), &self.local, &self.peer) {
            ("sockname", Some(local), _) => Ok(internet_to_python(local)?.bind(py)),
            ("peername", _, Some(peer)) => Ok(internet_to_python(peer)?.bind(py)),
            ("socket", ..) => {
                let socket = self.python_socket(py)?;
                let view = imports().transport_socket.call_with([socket.borrow()])?;
                Ok(view.bind(py))
            }
            _ => Ok(default),
        }
    }

    /// Returns a Python socket with this socket's descriptor. Closing this socket detaches it.
    fn python_socket(&self, py: Python<'_>) -> PyResult<Ref> {
        if let Some(socket) = self.python.get() {
            return Ok(socket);
        }
        let fd = self.fileno();
        let socket = if fd >= 0 {
            match adopt(py, fd, -1, || self.fileno() == fd && self.python.is_empty())? {
                Some(socket) => socket,
                None => return self.python_socket(py),
            }
        } else {
            let family = self.local.or(self.peer).map_or(libc::AF_INET, |address| {
                if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
            });
            Ref::from(support(py, "closed_socket")?.call1((
                Fallible(family),
                Fallible(-1),
                Fallible(T::KIND),
            ))?)
        };
        self.python.set(Some(socket.clone_ref()));
        Ok(socket)
    }

    /// Issues a ResourceWarning if the socket was not closed. May be called while an exception is set.
    pub(super) fn warn_unclosed(&self) {
        if self.is_open() && !self.is_parents() {
            let class = Exception::ResourceWarning.class();
            warn(class.as_ptr(), &format!("unclosed {}", self.repr()), std::ptr::null_mut());
        }
    }

    /// The repr has the peer's address, or the local one if there is no peer.
    pub(super) fn repr(&self) -> String {
        let state = if self.is_open() { "" } else { " closed" };
        let address = match (self.peer, self.local) {
            (Some(peer), _) => format!(" peer={peer}"),
            (None, Some(local)) => format!(" {local}"),
            (None, None) => String::new(),
        };
        format!("<wakeloop.{}{state}{address}>", T::CLASS)
    }
}

/// Closes a socket that was not closed.
impl<T: Inside> Drop for OpenSocket<T> {
    fn drop(&mut self) {
        self.warn_unclosed();
        self.close();
    }
}

// -- the methods -----------------------------------------------------------------------------------------

/// A class whose instances have a socket. They are made by [`create`].
pub(crate) trait SocketClass: pyo3::PyClass + Native + Into<PyClassInitializer<Self>> {
    type Inside: Inside;
    /// The method of this name, as `Operation` shows it.
    const WAIT_CLOSED: &'static str;

    fn socket(&self) -> &OpenSocket<Self::Inside>;

    fn close_now(&self) {
        self.socket().close();
    }
}

/// Makes an instance.
pub(super) fn create<C: SocketClass>(py: Python<'_>, fields: C) -> PyResult<Py<PyAny>> {
    Ok(Bound::new(py, fields)?.into_any().unbind())
}

/// An operation that ends when the socket is closed; in a forked child, at once.
fn wait_closed<C: SocketClass>(this: This<'_, C>, name: &'static str) -> Result<Ref, Raised> {
    let socket = this.socket();
    let closed = Some(socket.closed.clone()).filter(|_| !socket.is_parents());
    let waiting = Operation::create(this.py(), name, async move {
        if let Some(closed) = closed {
            closed.wait().await;
        }
        Outcome::Nothing
    });
    Ok(waiting?.into())
}

fn get_extra_info<C: SocketClass>(this: This<'_, C>, arguments: Arguments<'_>) -> Result<Ref, Raised> {
    let ([name], [default]) = arguments.bind("get_extra_info", ["name"], ["default"])?;
    let py = this.py();
    let default = default.map_or_else(|| py.None().into_bound(py), |default| default.bind(py));
    Ok(this.socket().extra_info(py, &name.bind(py), default)?.into())
}

/// `__aenter__`: returns the object itself.
fn enter<C: SocketClass>(this: This<'_, C>) -> Result<Ref, Raised> {
    let entered = this.object().bind(this.py()).unbind();
    Ok(Operation::create(this.py(), "__aenter__", async move { Outcome::value(move |_| Ok(entered)) })?
        .into())
}

/// `__aexit__`.
fn leave<C: SocketClass>(this: This<'_, C>, _: Arguments<'_>) -> Result<Ref, Raised> {
    this.close_now();
    wait_closed(this, "__aexit__")
}

/// Gives `C` the methods that all these classes have. Called once, by the module's initialisation.
pub(super) fn add_methods<C: SocketClass>(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<C>();
    // SAFETY: pyo3 makes every instance, and puts the Rust value right behind the `PyObject`: `PyClassObjectContents` is
    // `repr(C)` and begins with it, for a class without a base class.
    unsafe { C::class().set(&class) };
    class::add_methods(
        &class,
        &[
            Method::no_args(
                c"close",
                |this: This<'_, C>| this.close_now(),
                c"close()\n\nClose at once. Tasks that wait for it get ConnectionAbortedError. Closing twice is fine.",
            ),
            Method::no_args(
                c"wait_closed",
                |this: This<'_, C>| wait_closed(this, C::WAIT_CLOSED),
                c"wait_closed()\n\nWait until it is closed. Awaitable.",
            ).coroutine(),
            Method::no_args(
                c"is_closing",
                |this: This<'_, C>| !this.socket().is_open(),
                c"is_closing()\n\nWhether close() was called.",
            ),
            Method::no_args(
                c"fileno",
                |this: This<'_, C>| this.socket().fileno(),
                c"fileno()\n\nThe descriptor, or -1 once closed. It is for inspection, not for reading or writing.",
            ),
            Method::fast(
                c"get_extra_info",
                get_extra_info::<C>,
                c"get_extra_info(name, default=None)\n\nWhat asyncio's transports return for the names 'sockname', 'peername' and 'socket'. The socket is for its options, not for reading or writing.",
            ),
            Method::no_args(c"__aenter__", enter::<C>, c"__aenter__()\n\nThe object itself. Awaitable.").coroutine(),
            Method::fast(
                c"__aexit__",
                leave::<C>,
                c"__aexit__(*_exception)\n\nclose() and wait_closed(). Awaitable.",
            ).coroutine(),
        ],
    )
}
