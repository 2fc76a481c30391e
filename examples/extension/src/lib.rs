//! An extension module whose async Rust functions Python awaits, on any asyncio loop.
//!
//! Build and test it with `make extension`.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use wakeloop::bridge::{future_into_py, into_future};
use wakeloop::runtime::{net::TcpStream, time::sleep};

/// How many futures were started and not dropped yet.
static ALIVE: AtomicI64 = AtomicI64::new(0);

struct Alive;

impl Alive {
    fn new() -> Alive {
        ALIVE.fetch_add(1, Ordering::Relaxed);
        Alive
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns how many futures of this module are alive.
#[pyfunction]
fn alive() -> i64 {
    ALIVE.load(Ordering::Relaxed)
}

/// Wait for some seconds and return twice the number. Awaitable.
#[pyfunction]
fn double_after(py: Python<'_>, seconds: f64, number: i64) -> PyResult<Bound<'_, PyAny>> {
    let wait =
        Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
    future_into_py(py, async move {
        let _alive = Alive::new();
        sleep(wait).await;
        Ok(number * 2)
    })
}

/// Count the bytes that a server sends before it closes the connection. Awaitable; raises OSError.
#[pyfunction]
fn count_bytes(py: Python<'_>, host: String, port: u16) -> PyResult<Bound<'_, PyAny>> {
    future_into_py(py, async move {
        let _alive = Alive::new();
        let stream = TcpStream::connect((host, port)).await?;
        let (mut buffer, mut total) = (vec![0; 4096], 0);
        loop {
            match stream.read(&mut buffer).await? {
                0 => return Ok(total),
                count => total += count,
            }
        }
    })
}

/// Fail with ValueError. Awaitable.
#[pyfunction]
fn fail(py: Python<'_>, text: String) -> PyResult<Bound<'_, PyAny>> {
    future_into_py(py, async move {
        let _alive = Alive::new();
        Err::<(), _>(PyValueError::new_err(text))
    })
}

/// Panic. Awaitable; raises RuntimePanic.
#[pyfunction]
fn panic(py: Python<'_>, text: String) -> PyResult<Bound<'_, PyAny>> {
    future_into_py(py, async move {
        let _alive = Alive::new();
        sleep(Duration::from_millis(1)).await;
        if !text.is_empty() {
            panic!("{text}");
        }
        Ok(())
    })
}

/// Await a Python awaitable in Rust, for at most some seconds, and return its result. Awaitable.
#[pyfunction]
fn relay<'py>(py: Python<'py>, awaitable: Bound<'py, PyAny>, seconds: f64) -> PyResult<Bound<'py, PyAny>> {
    let limit =
        Duration::try_from_secs_f64(seconds).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let future = into_future(awaitable)?;
    future_into_py(py, async move {
        let _alive = Alive::new();
        match wakeloop::runtime::time::timeout(limit, future).await {
            Ok(result) => result,
            Err(_) => Err(PyValueError::new_err("too slow")),
        }
    })
}

#[pymodule(gil_used = true)]
fn wakeloop_example(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("RuntimePanic", module.py().get_type::<wakeloop::bridge::RuntimePanic>())?;
    module.add_function(wrap_pyfunction!(alive, module)?)?;
    module.add_function(wrap_pyfunction!(double_after, module)?)?;
    module.add_function(wrap_pyfunction!(count_bytes, module)?)?;
    module.add_function(wrap_pyfunction!(fail, module)?)?;
    module.add_function(wrap_pyfunction!(panic, module)?)?;
    module.add_function(wrap_pyfunction!(relay, module)?)?;
    Ok(())
}
