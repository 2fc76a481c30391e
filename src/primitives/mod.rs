//! The awaitables that Python awaits and Rust runs: operations on the runtime's workers, without the GIL.

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
    module.add_function(wrap_pyfunction!(simulated::_simulate, module)?)?;
    module.add_function(wrap_pyfunction!(simulated::_monotonic, module)?)?;
    module.add_function(wrap_pyfunction!(_redirect, module)?)?;
    module.add_function(wrap_pyfunction!(sleep::sleep, module)?)?;
    module.add_function(wrap_pyfunction!(echo::start_echo_server, module)?)?;
    module.add_function(wrap_pyfunction!(blocking::spawn_blocking, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::runtime_metrics, module)?)?;
    module.add_function(wrap_pyfunction!(metrics::configure, module)?)
}
