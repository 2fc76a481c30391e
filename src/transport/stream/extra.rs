//! What `get_extra_info` knows of a connection, computed when somebody asks.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use socket2::Socket;

use super::address;
use super::state::Stream;
use crate::capi::fallible::dict;
use crate::capi::imports::{imports, support};
use crate::capi::object::interpreter_ends;
use crate::capi::sockaddr::to_python;
use crate::capi::socket::{adopt, with_socket};
use crate::capi::{Fallible, Ref};

impl Stream {
    /// The Python socket of an open connection, made now if nobody needed it before.
    pub(super) fn python_socket(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        if self.base.fd.get() < 0 {
            return Ok(None);
        }
        if let Some(socket) = self.base.owner.get() {
            return Ok(Some(socket));
        }
        let fd = self.base.fd.get();
        if let Some(socket) = adopt(py, fd, || self.base.fd.get() == fd && self.base.owner.is_empty())? {
            self.base.owner.set(Some(socket));
        }
        Ok(self.base.owner.get())
    }

    /// The same for a closed connection too, whose socket is closed like it.
    fn any_socket(&self, py: Python<'_>) -> PyResult<Option<Ref>> {
        if self.base.fd.get() >= 0 || !self.base.owner.is_empty() {
            return Ok(self.python_socket(py)?.or_else(|| self.base.owner.get()));
        }
        let socket = support(py, "closed_socket")?.call1((Fallible(self.reading.family),))?;
        Ok((!socket.is_none()).then(|| Ref::from(socket)))
    }

    /// The dict of extra information, made now if nobody needed it before.
    fn extra_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if let Some(extra) = self.base.extra.get() {
            return Ok(extra.bind(py).clone().cast_into()?);
        }
        let extra = dict(py)?;
        self.base.extra.set(Some(extra.clone().into_any().into()));
        Ok(extra)
    }

    /// The dict with everything in it that asyncio puts there.
    pub(super) fn full_extra<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let extra = self.extra_dict(py)?;
        for name in ["socket", "sockname", "peername"] {
            if !extra.contains(Fallible(name))? {
                self.fill_in(py, &extra, name)?;
            }
        }
        Ok(extra)
    }

    /// `sockname` or `peername`, or `None` where the socket has none.
    fn address<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if name == "sockname"
            && let Some(known) = self.ends.sockname.get()
        {
            return Ok(known.bind(py).clone());
        }
        let stored = if name == "sockname" { self.ends.own.get() } else { self.ends.peer.get() };
        if let Some(stored) = stored {
            return address::to_python(py, &stored);
        }
        let Some(socket) = self.python_socket(py)? else { return Ok(py.None().into_bound(py)) };
        let function = if name == "sockname" { "getsockname" } else { "getpeername" };
        match socket.bind(py).call_method0(Fallible(function)) {
            Ok(address) => Ok(address),
            Err(error) if error.is_instance_of::<pyo3::exceptions::PyOSError>(py) => {
                Ok(py.None().into_bound(py))
            }
            Err(error) => Err(error),
        }
    }

    /// `get_extra_info(name)` for one name, computing no more than that.
    pub(super) fn known_extra_info<'py>(
        &self,
        py: Python<'py>,
        name: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        if let Some(extra) = self.base.extra.get() {
            let extra = extra.bind(py).clone().cast_into::<PyDict>()?;
            if let Some(value) = extra.get_item(name)? {
                return Ok(Some(value));
            }
        }
        // What no dict takes as a key is an error, as it is for asyncio's dict.
        name.hash()?;
        let text = match name.extract::<std::borrow::Cow<'_, str>>() {
            Ok(text) => text,
            Err(_) => return Ok(None),
        };
        match text.as_ref() {
            "socket" | "sockname" | "peername" => self.fill_in(py, &self.extra_dict(py)?, &text),
            _ => Ok(None),
        }
    }

    /// The descriptor is about to be closed: keeps what can only be asked while it is open.
    pub(super) fn remember_addresses(&self, py: Python<'_>) {
        if self.base.fd.get() < 0 || self.ends.own.get().is_some() {
            return;
        }
        if self.reading.family != libc::AF_UNIX {
            if !self.ends.sockname.is_empty() {
                return;
            }
            self.ends.own.set(address::own_address(self.descriptor()));
        }
        if self.ends.own.get().is_none() && !interpreter_ends() {
            // A Unix socket, or an address with a zone: as Python objects, then.
            // A failure leaves a gap in what the dead connection knows, and that is all.
            drop(self.remember_names(py));
        }
    }

    fn remember_names(&self, py: Python<'_>) -> PyResult<()> {
        let extra = self.extra_dict(py)?;
        for own in [true, false] {
            let (name, known) = if own {
                ("sockname", !self.ends.sockname.is_empty())
            } else {
                ("peername", self.ends.peer.get().is_some())
            };
            if known || extra.contains(Fallible(name))? {
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

    /// Puts one of the three names into the dict, and gives its value.
    fn fill_in<'py>(
        &self,
        py: Python<'py>,
        extra: &Bound<'py, PyDict>,
        name: &str,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let value = if name == "socket" {
            let Some(socket) = self.any_socket(py)? else { return Ok(None) };
            imports().transport_socket.call(&[socket.borrow()])?.bind(py).clone()
        } else {
            self.address(py, name)?
        };
        extra.set_item(Fallible(name), &value)?;
        Ok(Some(value))
    }
}
