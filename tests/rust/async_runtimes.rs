//! pyo3-async-runtimes on wakeloop's runtime, under CPython's own event loop.
//!
//! `cargo test --features async-runtimes --test async_runtimes` with an embeddable Python.
#![cfg(feature = "async-runtimes")]
#![allow(clippy::disallowed_methods, reason = "what runs in these tests is as other people write it")]

use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3_async_runtimes::generic;
use wakeloop::bridge::generic::Wakeloop;
use wakeloop::runtime::time::sleep;

#[test]
fn a_rust_future_is_awaited_on_an_asyncio_loop() {
    Python::initialize();
    let answer = Python::attach(|py| {
        generic::run::<Wakeloop, _, i32>(py, async {
            sleep(Duration::from_millis(5)).await;
            Ok(42)
        })
    });
    assert_eq!(answer.expect("the loop runs it"), 42);
}

#[test]
fn an_error_of_the_future_is_raised() {
    Python::initialize();
    Python::attach(|py| {
        let failed = generic::run::<Wakeloop, _, ()>(py, async { Err(PyValueError::new_err("no")) });
        assert!(failed.is_err_and(|error| error.is_instance_of::<PyValueError>(py)));
    });
}

#[test]
fn the_task_locals_follow_the_future_from_poll_to_poll() {
    Python::initialize();
    let same = Python::attach(|py| {
        generic::run::<Wakeloop, _, bool>(py, async {
            let before = Python::attach(|py| generic::get_current_loop::<Wakeloop>(py).map(Bound::unbind))?;
            sleep(Duration::from_millis(5)).await;
            Python::attach(|py| {
                let after = generic::get_current_loop::<Wakeloop>(py)?;
                Ok(after.is(before.bind(py)))
            })
        })
    });
    assert!(same.expect("the loop runs it"));
}
