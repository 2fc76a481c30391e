//! The awaitables that Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

mod address_error;
pub(crate) mod blocking;
mod closed;
mod data;
pub(crate) mod echo;
pub(crate) mod file;
mod incoming;
pub(crate) mod listener;
mod listening;
pub(crate) mod lookup;
pub(crate) mod metrics;
mod numbers;
mod simulated;
pub(crate) mod sleep;
mod socket;
mod sync;
pub(crate) mod tcp_stream;
pub(crate) mod udp;

use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::bridge::pool::_end_idle_threads;
use crate::capi::Fallible;
use crate::capi::function::{are_coroutines, coroutine_function};
use crate::capi::redirect::_redirect;

/// Adds the primitives to the module.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    tcp_stream::make_types(py)?;
    socket::add_methods::<listener::TcpListener>(py)?;
    socket::add_methods::<udp::UdpSocket>(py)?;
    file::add_to(module)?;
    sync::add_to(module)?;
    module.add_class::<echo::EchoServer>()?;
    module.add_class::<tcp_stream::TcpStream>()?;
    module.add_class::<listener::TcpListener>()?;
    module.add_class::<udp::UdpSocket>()?;
    are_coroutines(&py.get_type::<echo::EchoServer>(), &["wait_closed", "__aenter__", "__aexit__"])?;
    are_coroutines(&py.get_type::<tcp_stream::TcpStream>(), &["connect"])?;
    are_coroutines(&py.get_type::<listener::TcpListener>(), &["bind", "accept", "__anext__"])?;
    are_coroutines(
        &py.get_type::<udp::UdpSocket>(),
        &["bind", "connect", "send", "send_to", "recv", "recv_from"],
    )?;
    for function in [
        wrap_pyfunction!(sleep::sleep, module)?,
        wrap_pyfunction!(echo::start_echo_server, module)?,
        blocking::make_function(module)?,
    ] {
        let function = coroutine_function(function.into_any())?;
        module.add(function.getattr(Fallible("__name__"))?.cast_into::<PyString>()?, function)?;
    }
    module.add_function(wrap_pyfunction!(_end_idle_threads, module)?)?;
    module.add_function(wrap_pyfunction!(simulated::_simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulated::_monotonic, module)?)?;
    module.add_function(wrap_pyfunction!(_redirect, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::runtime_metrics, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::configure, module)?)
}
