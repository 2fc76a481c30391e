//! The socket inside of a Python object: there until it is closed, and not for a forked child.

use std::cell::{RefCell, RefMut};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyString;

use super::address;
use crate::capi::call::call1;
use crate::capi::error::{fetch, raise_errno, raise_message, warn};
use crate::capi::imports::{imports, support};
use crate::capi::socket::adopt;
use crate::capi::{Fallible, Raised, Ref, Slot};
use crate::event_loop::core::process::forks;

/// What is inside while the socket is open.
pub(super) trait Inside: AsRawFd {
    /// What its class is called in Python.
    const CLASS: &'static str;
    /// And in a sentence.
    const NOUN: &'static str;
    const KIND: libc::c_int;

    /// All that are its own.
    fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        std::iter::once(self.as_raw_fd())
    }

    /// The user has closed it. Whoever waits is told.
    fn end(self);
}

#[derive(Debug)]
pub(super) struct OpenSocket<T> {
    inside: RefCell<Option<T>>,
    pub(super) local: Option<SocketAddr>,
    pub(super) peer: Option<SocketAddr>,
    /// The Python socket, if somebody has asked for it. The descriptor is not its own.
    python: Slot,
    /// A forked child has its parent's sockets, but not the threads that serve them.
    forks: u32,
}

impl<T: Inside> OpenSocket<T> {
    pub(super) fn new(inside: T, local: Option<SocketAddr>, peer: Option<SocketAddr>) -> OpenSocket<T> {
        OpenSocket { inside: RefCell::new(Some(inside)), local, peer, python: Slot::empty(), forks: forks() }
    }

    /// The inside. No Python code may run while the result lives.
    ///
    /// # Errors
    /// Raises what the use of a closed socket, or of a parent's, raises.
    pub(super) fn get(&self) -> Result<RefMut<'_, T>, Raised> {
        self.get_or(libc::EBADF)
    }

    /// The same for who found it open before and has waited since.
    ///
    /// # Errors
    /// As `get`, with ConnectionAbortedError for a closed one.
    pub(super) fn get_again(&self) -> Result<RefMut<'_, T>, Raised> {
        self.get_or(libc::ECONNABORTED)
    }

    fn get_or(&self, errno: i32) -> Result<RefMut<'_, T>, Raised> {
        if self.is_parents() {
            // SAFETY: reading a static of the interpreter.
            let kind = unsafe { ffi::PyExc_RuntimeError };
            raise_message(kind, &format!("this {} belongs to the parent process", T::NOUN));
            return Err(Raised);
        }
        RefMut::filter_map(self.inside.borrow_mut(), Option::as_mut).map_err(|closed| {
            drop(closed);
            raise_errno(errno)
        })
    }

    /// The same for looking after it: no error if there is none.
    pub(super) fn get_open(&self) -> Option<RefMut<'_, T>> {
        RefMut::filter_map(self.inside.borrow_mut(), Option::as_mut).ok()
    }

    pub(super) fn is_open(&self) -> bool {
        self.inside.borrow().is_some()
    }

    /// Was it made before a fork, by the process that this one comes from?
    pub(super) fn is_parents(&self) -> bool {
        self.forks != forks()
    }

    pub(super) fn fileno(&self) -> i32 {
        self.inside.borrow().as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Replaces the inside by what `change` makes of it; nothing is left if that fails.
    pub(super) fn change<E>(&self, change: impl FnOnce(T) -> Result<T, E>) -> Result<(), E> {
        let Some(inside) = self.inside.take() else { return Ok(()) };
        let changed = change(inside);
        if changed.is_err() {
            self.detach_python();
        }
        *self.inside.borrow_mut() = Some(changed?);
        Ok(())
    }

    /// Closes it. Closing twice is fine.
    pub(super) fn close(&self) {
        let Some(inside) = self.inside.take() else { return };
        self.detach_python();
        if !self.is_parents() {
            return inside.end();
        }
        // A descriptor is a copy of the parent's, in an epoll set that the parent uses: only close it.
        for descriptor in inside.descriptors() {
            // SAFETY: ours, and forgotten below.
            unsafe { libc::close(descriptor) };
        }
        std::mem::forget(inside);
    }

    /// Takes the descriptor away from the Python socket, before it is closed.
    fn detach_python(&self) {
        let Some(socket) = self.python.get() else { return };
        // SAFETY: every caller holds the GIL.
        let py = unsafe { Python::assume_attached() };
        // May be called while an exception is set.
        let raised = PyErr::take(py);
        // It fails only if somebody has put another method in its place.
        drop(socket.bind(py).call_method0(Fallible("detach")));
        if let Some(raised) = raised {
            raised.restore(py);
        }
    }

    /// What asyncio's transports tell about their socket.
    pub(super) fn extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        // What no dict takes as a key is an error, as it is for asyncio's dict.
        name.hash()?;
        let name = name.cast::<PyString>().ok().and_then(|name| name.to_str().ok());
        match (name.unwrap_or_default(), &self.local, &self.peer) {
            ("sockname", Some(local), _) => address::to_python(py, local).map(Some),
            ("peername", _, Some(peer)) => address::to_python(py, peer).map(Some),
            ("socket", ..) => {
                let socket = self.python_socket(py)?;
                let view = call1(&imports().transport_socket, socket.as_ptr()).map_err(|Raised| fetch(py))?;
                Ok(Some(view.bind(py)))
            }
            _ => Ok(default),
        }
    }

    /// A Python socket with our descriptor, which is taken away from it when we are closed.
    fn python_socket(&self, py: Python<'_>) -> PyResult<Ref> {
        if let Some(socket) = self.python.get() {
            return Ok(socket);
        }
        let fd = self.fileno();
        let socket = if fd >= 0 {
            match adopt(py, fd, || self.fileno() == fd && self.python.is_empty())? {
                Some(socket) => socket,
                None => return self.python_socket(py),
            }
        } else {
            let family = self.local.or(self.peer).map_or(libc::AF_INET, |address| {
                if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
            });
            Ref::from(support(py, "closed_socket")?.call1((Fallible(family), Fallible(T::KIND)))?)
        };
        self.python.set(Some(socket.clone_ref()));
        Ok(socket)
    }

    pub(super) fn repr(&self, name: &str, address: Option<&SocketAddr>) -> String {
        let state = if self.is_open() { "" } else { " closed" };
        let address = address.map(|address| format!("{name}{address}")).unwrap_or_default();
        format!("<wakeloop.{}{state}{address}>", T::CLASS)
    }

    /// ResourceWarning if nobody has closed it. May be called while an exception is set.
    pub(super) fn warn_unclosed(&self, repr: impl FnOnce() -> String) {
        if self.is_open() && !self.is_parents() {
            // SAFETY: reading a static of the interpreter.
            warn(
                unsafe { ffi::PyExc_ResourceWarning },
                &format!("unclosed {}", repr()),
                std::ptr::null_mut(),
            );
        }
    }
}
