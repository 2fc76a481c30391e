//! The Python face: `_core.load(**options) -> dict`, used by `python -m wakeloop load`, `make demo` and the
//! benchmarks. The GIL is released for the whole run, apart from a look at pending signals ten times a second.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::{Config, Http, Report, Summary, Target, Work};
use crate::capi::Fallible;
use crate::capi::error::{exception, io_error};
use crate::capi::fallible::dict;

/// load(**options) -> dict
///
/// Puts a load on a server and reports. Options: port and host (with datagrams: UDP), or path (a Unix socket); kind ("echo", "http",
/// "accept"); size, lines (echo); url_path, post_size, expect_body (http); connections, idle, rate, warmup,
/// duration, count, workers, patience, watch_pid. Durations are seconds. See `wakeloop.demo.load` for each.
#[pyfunction]
#[pyo3(signature = (**options))]
pub fn load(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyDict>> {
    let config = read_config(&Options(options.map_or_else(|| dict(py), |given| given.copy())?))?;
    let mut interrupt = None;
    let report = py.detach(|| {
        super::run(&config, &mut || match Python::attach(|py| py.check_signals()) {
            Ok(()) => true,
            Err(error) => {
                interrupt = Some(error);
                false
            }
        })
    });
    match (report, interrupt) {
        (_, Some(error)) => Err(error),
        (Err(error), None) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(exception::<PyValueError>(error.to_string()))
        }
        (report, None) => {
            let report = report.map_err(|error| io_error(py, &error))?;
            Ok(describe(py, &report)?.unbind())
        }
    }
}

/// The options not read yet.
struct Options<'py>(Bound<'py, PyDict>);

impl<'py> Options<'py> {
    /// The option of this name, if it was given and is not None.
    fn take<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        let Some(value) = self.0.get_item(Fallible(name))? else { return Ok(None) };
        self.0.del_item(name)?;
        if value.is_none() { Ok(None) } else { value.extract().map(Some) }
    }

    fn take_seconds(&self, name: &str, default: Duration) -> PyResult<Duration> {
        let Some(seconds) = self.take::<f64>(name)? else { return Ok(default) };
        Duration::try_from_secs_f64(seconds)
            .map_err(|error| exception::<PyValueError>(format!("{name}: {error}")))
    }

    /// All options must have been read.
    fn finish(&self) -> PyResult<()> {
        match self.0.keys().get_item(0) {
            Ok(name) => Err(exception::<PyTypeError>(format!("load() has no option {name}"))),
            Err(_) => Ok(()),
        }
    }
}

fn read_config(options: &Options<'_>) -> PyResult<Config> {
    let default = Config::default();
    let target = match (options.take::<PathBuf>("path")?, options.take::<u16>("port")?) {
        (Some(path), None) => Target::Unix(path),
        (None, Some(port)) => {
            let host = options.take::<String>("host")?.unwrap_or_else(|| "127.0.0.1".into());
            let host: IpAddr =
                host.parse().map_err(|_| exception::<PyValueError>("host must be an IP address"))?;
            let address = SocketAddr::new(host, port);
            if options.take("datagrams")?.unwrap_or(false) {
                Target::Udp(address)
            } else {
                Target::Tcp(address)
            }
        }
        _ => return Err(exception::<PyTypeError>("load() needs either a port or the path of a Unix socket")),
    };
    let work = match options.take::<String>("kind")?.as_deref().unwrap_or("echo") {
        "echo" => Work::Echo {
            size: options.take("size")?.unwrap_or(1024),
            lines: options.take("lines")?.unwrap_or(false),
        },
        "http" => Work::Http(Http {
            host: match &target {
                Target::Tcp(address) | Target::Udp(address) => address.to_string(),
                Target::Unix(_) => "localhost".into(),
            },
            path: options.take("url_path")?.unwrap_or_else(|| "/".into()),
            post_size: options.take("post_size")?,
            expect_body: options.take("expect_body")?,
        }),
        "accept" => Work::Accept,
        other => {
            return Err(exception::<PyValueError>(format!("kind must be echo, http or accept, not {other}")));
        }
    };
    let config = Config {
        target,
        work,
        connections: options.take("connections")?.unwrap_or(default.connections),
        idle: options.take("idle")?.unwrap_or(default.idle),
        rate: options.take("rate")?,
        warmup: options.take_seconds("warmup", default.warmup)?,
        duration: options.take_seconds("duration", default.duration)?,
        count: options.take("count")?,
        workers: options.take("workers")?.unwrap_or(default.workers),
        patience: options.take_seconds("patience", default.patience)?,
        watch_pid: options.take("watch_pid")?,
    };
    options.finish()?;
    Ok(config)
}

fn describe<'py>(py: Python<'py>, report: &Report) -> PyResult<Bound<'py, PyDict>> {
    let found = dict(py)?;
    found.set_item(Fallible("requests"), Fallible(report.requests))?;
    found.set_item(Fallible("seconds"), Fallible(report.seconds))?;
    found.set_item(Fallible("rate"), Fallible(report.requests as f64 / report.seconds))?;
    found.set_item(Fallible("bytes"), Fallible(report.bytes))?;
    found.set_item(Fallible("connect_seconds"), Fallible(report.connect_seconds))?;
    found.set_item(Fallible("idle_answered"), Fallible(report.idle_answered))?;
    found.set_item(Fallible("latency_us"), describe_summary(py, &report.latency)?)?;
    found.set_item(Fallible("lag_us"), report.lag.map(|lag| describe_summary(py, &lag)).transpose()?)?;
    found.set_item(Fallible("unsent"), Fallible(report.unsent))?;
    found.set_item(Fallible("errors"), &report.errors)?;
    found.set_item(Fallible("first_error"), report.first_error.as_deref().map(Fallible))?;
    found.set_item(Fallible("own_cpu_seconds"), Fallible(report.own_cpu.as_secs_f64()))?;
    found.set_item(
        Fallible("watched_cpu_seconds"),
        report.watched_cpu.map(|cpu| Fallible(cpu.as_secs_f64())),
    )?;
    Ok(found)
}

fn describe_summary<'py>(py: Python<'py>, summary: &Summary) -> PyResult<Bound<'py, PyDict>> {
    let found = dict(py)?;
    found.set_item(Fallible("count"), Fallible(summary.count))?;
    for (name, value) in [
        ("mean", summary.mean),
        ("p50", summary.p50),
        ("p90", summary.p90),
        ("p99", summary.p99),
        ("p99.9", summary.p999),
        ("max", summary.max),
    ] {
        found.set_item(Fallible(name), Fallible(value.as_secs_f64() * 1e6))?;
    }
    Ok(found)
}
