//! `wakeloop.start_echo_server`: a TCP echo server that never takes the GIL.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};
use socket2::SockRef;

use super::address_error::Address;
use super::closed::Closed;
use super::lookup::host_name;
use super::numbers;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Fallible;
use crate::capi::fallible::dict;
use crate::fork::Owned;
use crate::runtime::net::{TcpListener, TcpStream};
use crate::runtime::{self, AbortHandle, JoinSet};

/// The first size of a connection's buffer. It is small, so that 10,000 idle connections cost little.
const SMALL: usize = 2 * 1024;
/// The size of the buffer once a read has filled the first one.
const LARGE: usize = 64 * 1024;
/// How long an accept that failed for lack of descriptors or memory waits before it tries again.
const RETRY: Duration = Duration::from_millis(100);

/// Counts that workers write and `stats()` reads. All accesses are relaxed, because the counts order nothing.
#[derive(Debug, Default)]
struct Stats {
    accepted: AtomicU64,
    closed: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// A running echo server.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct EchoServer {
    address: SocketAddr,
    stats: Arc<Stats>,
    /// The task that accepts. It owns the listener and the tasks of the connections, so they end with it. A forked child
    /// has no thread that could end it, and its parent serves on.
    serving: Owned<AbortHandle>,
    stopped: AtomicBool,
    /// The listener and the last connection are gone.
    over: Closed,
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        self.stop();
    }
}

#[pymethods]
impl EchoServer {
    /// The port that the server listens on.
    #[getter]
    fn port(&self) -> Fallible<u16> {
        Fallible(self.address.port())
    }

    /// The address that the server listens on.
    #[getter]
    fn host(&self) -> Fallible<String> {
        Fallible(self.address.ip().to_string())
    }

    /// Counts since the start: accepted, open, reads, bytes, errors.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Stats { accepted, closed, reads, bytes, errors } = &*self.stats;
        let accepted = count(accepted);
        let open = accepted.saturating_sub(count(closed));
        let (reads, bytes, errors) = (count(reads), count(bytes), count(errors));
        let counts = dict(py)?;
        for (name, count) in
            [("accepted", accepted), ("open", open), ("reads", reads), ("bytes", bytes), ("errors", errors)]
        {
            counts.set_item(Fallible(name), Fallible(count))?;
        }
        Ok(counts)
    }

    /// Stop listening and close every connection. Closing twice is fine.
    fn close(&self) {
        // Ordering: Relaxed. The flag is for Python code only, and orders nothing.
        self.stopped.store(true, Ordering::Relaxed);
        self.stop();
    }

    /// Wait until the server and its connections are closed. Awaitable.
    fn wait_closed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait_over(py, "EchoServer.wait_closed")
    }

    /// Whether it accepts connections.
    fn is_serving(&self) -> bool {
        // Ordering: Relaxed, as in `close`.
        !self.stopped.load(Ordering::Relaxed)
    }

    /// The server itself. Awaitable.
    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let (py, entered) = (slf.py(), slf.unbind());
        Operation::create(py, "__aenter__", async move { Outcome::value(move |_| Ok(entered.into_any())) })
    }

    /// close() and wait_closed(). Awaitable.
    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        _exception: Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.close();
        self.wait_over(py, "__aexit__")
    }

    fn __repr__(&self) -> Fallible<String> {
        let state = if self.is_serving() { "" } else { " closed" };
        Fallible(format!("<wakeloop.EchoServer{state} {}>", self.address))
    }
}

impl EchoServer {
    fn stop(&self) {
        if let Some(serving) = self.serving.get() {
            serving.abort();
        }
    }

    /// Waits for the end; in a forked child, not at all.
    fn wait_over<'py>(&self, py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        let over = self.serving.get().map(|_| self.over.clone());
        Operation::create(py, name, async move {
            if let Some(over) = over {
                over.wait().await;
            }
            Outcome::Nothing
        })
    }
}

/// Start a TCP echo server on the Rust runtime: accepting, reading and writing happen on its workers,
/// without the GIL. Awaitable; gives an EchoServer. Raises OSError if the address cannot be bound.
#[pyfunction]
pub(crate) fn start_echo_server<'py>(
    py: Python<'py>,
    host: &Bound<'py, PyString>,
    #[pyo3(from_py_with = numbers::integer)] port: i64,
) -> PyResult<Bound<'py, PyAny>> {
    let (host, port) = (host_name(host)?, numbers::port(port, "bind")?);
    let address = Address::new(Some(&host), port);
    Operation::opening(py, "start_echo_server", async move {
        match start(host, port).await {
            Ok(server) => Outcome::value(|py| Ok(Bound::new(py, server)?.into_any().unbind())),
            Err(error) => address.not_bound(error),
        }
    })
}

async fn start(host: String, port: u16) -> io::Result<EchoServer> {
    let listener = TcpListener::bind((host, port)).await?;
    let address = listener.local_addr()?;
    // Accepted sockets inherit this.
    SockRef::from(&listener).set_tcp_nodelay(true)?;
    let (stats, over) = (Arc::new(Stats::default()), Closed::new());
    let listening = Listening { listener, alive: Arc::new(Alive(over.clone())) };
    let serving = Owned::new(runtime::spawn(serve(listening, stats.clone())).abort_handle());
    Ok(EchoServer { address, stats, serving, stopped: AtomicBool::new(false), over })
}

/// Shared by the listener and every connection, and dropped with the last of them.
struct Alive(Closed);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// The fields are dropped in this order, the listener before `alive`.
struct Listening {
    listener: TcpListener,
    alive: Arc<Alive>,
}

/// Accepts connections. Dropping the set of their tasks aborts them.
async fn serve(listening: Listening, stats: Arc<Stats>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = crate::select! {
            accepted = listening.listener.accept() => accepted,
            never = forget_ended(&mut connections) => match never {},
        };
        match accepted {
            Ok((stream, _)) => {
                add(&stats.accepted, 1);
                let connection = Connection { stats: stats.clone(), _alive: listening.alive.clone() };
                connections.spawn(async move {
                    let connection = connection;
                    if echo(stream, &connection.stats).await.is_err() {
                        add(&connection.stats.errors, 1);
                    }
                });
            }
            Err(error) => {
                add(&stats.errors, 1);
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    runtime::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Takes the tasks that have ended out of the set. It never returns.
async fn forget_ended(connections: &mut JoinSet<()>) -> Infallible {
    while connections.join_next().await.is_some() {}
    pending().await
}

/// A connection's task drops this last, however it ends.
struct Connection {
    stats: Arc<Stats>,
    _alive: Arc<Alive>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        add(&self.stats.closed, 1);
    }
}

async fn echo(stream: TcpStream, stats: &Stats) -> io::Result<()> {
    let mut buffer = vec![0; SMALL];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        add(&stats.reads, 1);
        add(&stats.bytes, count);
        stream.write_all(&buffer[..count]).await?;
        if count == buffer.len() && count < LARGE {
            buffer = vec![0; LARGE];
        }
    }
}
