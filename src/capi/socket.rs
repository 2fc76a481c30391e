//! Python sockets for descriptors that native objects own.

use std::os::fd::RawFd;

use pyo3::prelude::*;

use super::Ref;
use super::fallible::Fallible;
use super::imports::support;

/// A socket with the descriptor of an object of ours, which takes it away again before it closes that. None if it is no
/// longer `wanted` once it is made: Python has run, so another thread may have asked too, or closed the object. One
/// descriptor has one owner.
pub(crate) fn adopt(py: Python<'_>, fd: RawFd, wanted: impl FnOnce() -> bool) -> PyResult<Option<Ref>> {
    let socket = support(py, "adopt_socket")?.call1((Fallible(fd),))?;
    if wanted() {
        return Ok(Some(Ref::from(socket)));
    }
    socket.call_method0(Fallible("detach"))?;
    Ok(None)
}
