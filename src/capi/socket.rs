//! Python sockets for descriptors that native objects own.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::fallible::Fallible;
use super::imports::support;
use super::object::Ref;

/// A Python socket with the descriptor of a native object, which detaches the socket before it closes the descriptor.
/// `None` if it is no longer `wanted` once it is made: Python has run, so another thread may have asked for one too, or
/// closed the object. One descriptor has one owner.
pub(crate) fn adopt(py: Python<'_>, fd: RawFd, wanted: impl FnOnce() -> bool) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd),))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}
