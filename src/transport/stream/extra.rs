//! `get_extra_info` of a connection. The values are computed when they are needed.

use std::ffi::c_int;
use std::net::SocketAddr;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use socket2::Socket;

use super::address;
use super::state::Stream;
use crate::capi::fallible::dict;
use crate::capi::imports::support;
use crate::capi::object::interpreter_ends;
use crate::capi::sockaddr::to_python;
use crate::capi::socket::{adopt, with_socket};
use crate::capi::{Fallible, Ref, This};

const NAMES: [&str; 3] = ["socket", "sockname", "peername"];

impl Stream {
    /// The Python socket of an open connection. It is created on first use.
    pub(super) fn python_socket(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        let (fd, owner) = (self.base.fd.get(), &self.base.owner);
        if fd < 0 {
            return Ok(None);
        }
        if owner.is_empty()
            && let Some(socket) =
                adopt(py, fd, self.shown_proto(), || self.base.fd.get() == fd && owner.is_empty())?
        {
            owner.set(Some(socket));
        }
        Ok(owner.get())
    }

    /// The protocol number that the Python socket shows. If it is negative, the system's.
    fn shown_proto(&self) -> c_int {
        if self.reading.hides_proto { 0 } else { -1 }
    }

    /// The Python socket of an open or closed connection. For a closed one, the socket is closed too.
    fn open_or_closed_socket(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        if let Some(socket) = self.python_socket(py)?.or_else(|| self.base.owner.get()) {
            return Ok(Some(socket));
        }
        let socket = support(py, "closed_socket")?
            .call1((Fallible(self.reading.family), Fallible(self.shown_proto())))?;
        Ok((!socket.is_none()).then(|| Ref::from(socket)))
    }

    /// The dict of extra information. It is created on first use.
    fn extra_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Some(extra) = self.base.extra.get() {
            return Ok(extra.bind(py).cast_into()?);
        }
        let extra = dict(py)?;
        self.base.extra.set(Some(extra.clone().into_any().into()));
        Ok(extra)
    }

    /// An address that is known without a system call: as an object, or in the kernel's form.
    fn known_address(&self, name: &str) -> (Option<Ref>, Option<SocketAddr>) {
        let ends = &self.ends;
        if name == "sockname" { (ends.sockname.get(), ends.own.get()) } else { (None, ends.peer.get()) }
    }

    /// `sockname` or `peername`; `None` if the socket has no such address.
    fn address<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.known_address(name) {
            (Some(known), _) => return Ok(known.bind(py)),
            (None, Some(stored)) => return address::to_python(py, &stored),
            (None, None) => {}
        }
        let Some(socket) = self.python_socket(py)? else { return Ok(Ref::none().bind(py)) };
        match socket.bind(py).call_method0(Fallible(format!("get{name}"))) {
            Err(error) if error.is_instance_of::<PyOSError>(py) => Ok(Ref::none().bind(py)),
            asked => asked,
        }
    }

    /// Called before the descriptor is closed. Stores the addresses, because the socket must be open to read them.
    #[inline(always)]
    pub(super) fn remember_addresses(&self, py: Python<'_>) {
        let is_internet = self.reading.family != libc::AF_UNIX;
        // A listener sets `sockname` only to an address without a scope. The peer's address was stored by `accept`.
        if is_internet && !self.ends.sockname.is_empty() {
            return;
        }
        if is_internet {
            self.ends.own.set(address::own_address(self.descriptor()));
        }
        if self.ends.own.get().is_none() && !interpreter_ends() {
            // The addresses of Unix sockets, and those with a scope, are stored as Python objects. If that fails, the
            // closed connection has no addresses, which is no error.
            drop(self.remember_names(py));
        }
    }

    fn remember_names(&self, py: Python<'_>) -> PyResult<()> {
        let extra = self.extra_dict(py)?;
        for own in [true, false] {
            let name = if own { "sockname" } else { "peername" };
            if !matches!(self.known_address(name), (None, None)) || extra.contains(Fallible(name))? {
                continue;
            }
            let ask = if own { Socket::local_addr } else { Socket::peer_addr };
            let address = match with_socket(self.descriptor(), ask) {
                Ok(address) => to_python(&address)?,
                Err(_) => Ref::none(),
            };
            extra.set_item(Fallible(name), address.bind(py))?;
        }
        Ok(())
    }
}

impl This<'_, Stream> {
    /// The dict with all entries that it has in asyncio.
    pub(super) fn full_extra<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let extra = self.extra_dict(py)?;
        for name in NAMES {
            if !extra.contains(Fallible(name))? {
                self.fill_in(py, &extra, name)?;
            }
        }
        Ok(extra)
    }

    /// `get_extra_info(name)`. Computes only this entry.
    pub(super) fn known_extra_info<'py>(
        self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some(extra) = self.base.extra.get()
            && let Some(value) = extra.bind(py).cast::<PyDict>()?.get_item(name)?
        {
            return Ok(Some(value));
        }
        // A name that is not hashable raises, as it does for asyncio's dict.
        name.hash()?;
        match name.extract::<std::borrow::Cow<'_, str>>() {
            Ok(text) if NAMES.contains(&&*text) => self.fill_in(py, &self.extra_dict(py)?, &text),
            _ => Ok(None),
        }
    }

    /// Adds the entry for one of the three names to the dict, and returns its value.
    fn fill_in<'py>(
        self,
        py: Python<'py>,
        extra: &Bound<'py, PyDict>,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = if name == "socket" {
            let Some(socket) = self.open_or_closed_socket(py)? else { return Ok(None) };
            let socket = socket.bind(py);
            support(py, "StreamSocket")?.call1((socket, self.object().bind(py)))?
        } else {
            self.address(py, name)?
        };
        extra.set_item(Fallible(name), &value)?;
        Ok(Some(value))
    }
}
