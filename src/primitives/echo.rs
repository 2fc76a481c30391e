//! `wakeloop.start_echo_server`: a TCP echo server that never takes the GIL.

use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use super::lookup::host_name;
use crate::bridge::awaitable::{Operation, Outcome};
use crate::capi::Fallible;
use crate::capi::fallible::dict;
use crate::runtime::net::{Target, TcpListener, TcpStream};
use crate::runtime::sync::Notify;
use crate::runtime::{self, AbortHandle};

/// A connection begins with this much buffer, so that 10,000 idle ones cost little ...
const SMALL: usize = 2 * 1024;
/// ... and gets this much once a read has filled it.
const LARGE: usize = 64 * 1024;
/// How long an accept that failed for lack of descriptors or memory waits before it tries again.
const RETRY: Duration = Duration::from_millis(100);
/// Pending connections the kernel keeps; it cuts this to its own limit.
const BACKLOG: i32 = 4096;

/// Counts that workers write and `stats()` reads. Relaxed throughout: they order nothing.
#[derive(Debug, Default)]
struct Stats {
    accepted: AtomicU64,
    closed: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    errors: AtomicU64,
}

/// A running echo server.
#[pyclass(module = "wakeloop", frozen, weakref)]
#[derive(Debug)]
pub(crate) struct EchoServer {
    address: SocketAddr,
    stats: Arc<Stats>,
    shared: Arc<Shared>,
}

/// What stops the server: the accepting task, and through it every connection.
#[derive(Debug, Default)]
struct Shared {
    tasks: Mutex<Tasks>,
    /// Notified when the listener and the last connection are gone.
    empty: Notify,
}

#[derive(Debug, Default)]
struct Tasks {
    stopped: bool,
    accept: Option<AbortHandle>,
    /// The listening socket is open.
    listening: bool,
    /// One entry per open connection; `None` until its task is spawned.
    connections: slab::Slab<Option<AbortHandle>>,
}

impl Tasks {
    fn is_over(&self) -> bool {
        !self.listening && self.connections.is_empty()
    }
}

impl Shared {
    fn tasks(&self) -> MutexGuard<'_, Tasks> {
        // Nothing is done under this lock that leaves a half-way state behind a panic.
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&self) {
        let mut tasks = self.tasks();
        tasks.stopped = true;
        if let Some(accept) = tasks.accept.take() {
            accept.abort();
        }
        for connection in tasks.connections.iter().filter_map(|(_, task)| task.as_ref()) {
            connection.abort();
        }
    }
}

impl Drop for Shared {
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
        let stats = &self.stats;
        let accepted = stats.accepted.load(Ordering::Relaxed);
        let counts = dict(py)?;
        counts.set_item(Fallible("accepted"), Fallible(accepted))?;
        counts.set_item(
            Fallible("open"),
            Fallible(accepted.saturating_sub(stats.closed.load(Ordering::Relaxed))),
        )?;
        counts.set_item(Fallible("reads"), Fallible(stats.reads.load(Ordering::Relaxed)))?;
        counts.set_item(Fallible("bytes"), Fallible(stats.bytes.load(Ordering::Relaxed)))?;
        counts.set_item(Fallible("errors"), Fallible(stats.errors.load(Ordering::Relaxed)))?;
        Ok(counts)
    }

    /// close()
    /// --
    ///
    /// Stop listening and close every connection. Closing twice is fine.
    fn close(&self) {
        self.shared.stop();
    }

    /// wait_closed()
    /// --
    ///
    /// Wait until the server and its connections are closed. Awaitable.
    fn wait_closed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait_over(py, "EchoServer.wait_closed")
    }

    /// is_serving()
    /// --
    ///
    /// Whether it accepts connections.
    fn is_serving(&self) -> bool {
        let tasks = self.shared.tasks();
        tasks.listening && !tasks.stopped
    }

    fn __aenter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let (py, entered) = (slf.py(), slf.unbind());
        Operation::create(py, "__aenter__", async move { Outcome::value(move |_| Ok(entered.into_any())) })
    }

    #[pyo3(signature = (*_exception))]
    fn __aexit__<'py>(
        &self,
        py: Python<'py>,
        _exception: Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.shared.stop();
        self.wait_over(py, "__aexit__")
    }

    fn __repr__(&self) -> Fallible<String> {
        Fallible(format!("<wakeloop.EchoServer {}>", self.address))
    }
}

impl EchoServer {
    fn wait_over<'py>(&self, py: Python<'py>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
        let shared = self.shared.clone();
        Operation::create(py, name, async move {
            while !shared.tasks().is_over() {
                shared.empty.notified().await;
            }
            // `notify_one` keeps one permit: it goes on to the next task that waits.
            shared.empty.notify_one();
            Outcome::Nothing
        })
    }
}

/// start_echo_server(host, port)
/// --
///
/// Start a TCP echo server on the Rust runtime: accepting, reading and writing happen on its workers,
/// without the GIL. Awaitable; gives an EchoServer. Raises OSError if the address cannot be bound.
#[pyfunction]
pub(crate) fn start_echo_server<'py>(
    py: Python<'py>,
    host: &Bound<'py, PyString>,
    port: u16,
) -> PyResult<Bound<'py, PyAny>> {
    let host = host_name(host)?;
    Operation::create(py, "start_echo_server", async move {
        match start(host, port).await {
            Ok(server) => Outcome::value(|py| Ok(Bound::new(py, server)?.into_any().unbind())),
            Err(error) => Outcome::Error(error),
        }
    })
}

async fn start(host: String, port: u16) -> io::Result<EchoServer> {
    let listener = bind(Target::from((host, port)).resolve().await?)?;
    let address = listener.local_addr()?;
    let listener = TcpListener::from_std(listener)?;
    let stats = Arc::new(Stats::default());
    let shared = Arc::new(Shared::default());
    // The tasks hold the server weakly: an EchoServer without references stops by itself.
    shared.tasks().listening = true;
    let listening = Listening { listener, closed: Closed(Arc::downgrade(&shared)) };
    let task = runtime::spawn(accept(listening, stats.clone()));
    shared.tasks().accept = Some(task.abort_handle());
    Ok(EchoServer { address, stats, shared })
}

/// Listens at the first address that can be bound.
fn bind(addresses: Vec<SocketAddr>) -> io::Result<StdListener> {
    let mut failure = io::ErrorKind::AddrNotAvailable.into();
    for address in addresses {
        match listen(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn listen(address: SocketAddr) -> io::Result<StdListener> {
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    // Inherited by what is accepted.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The listening socket, and the note that it is closed. The fields are dropped in this order.
struct Listening {
    listener: TcpListener,
    closed: Closed,
}

struct Closed(Weak<Shared>);

impl Drop for Closed {
    fn drop(&mut self) {
        let Some(shared) = self.0.upgrade() else { return };
        let mut tasks = shared.tasks();
        tasks.listening = false;
        let last = tasks.is_over();
        drop(tasks);
        if last {
            shared.empty.notify_one();
        }
    }
}

async fn accept(listening: Listening, stats: Arc<Stats>) {
    loop {
        match listening.listener.accept().await {
            Ok((stream, _)) => {
                let Some(shared) = listening.closed.0.upgrade() else { return };
                stats.accepted.fetch_add(1, Ordering::Relaxed);
                connect(&shared, stream, &stats);
            }
            Err(error) => {
                stats.errors.fetch_add(1, Ordering::Relaxed);
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    runtime::time::sleep(RETRY).await;
                }
            }
        }
    }
}

/// Spawns a connection's task and remembers how to end it.
fn connect(shared: &Arc<Shared>, stream: TcpStream, stats: &Arc<Stats>) {
    let key = shared.tasks().connections.insert(None);
    let open = Open { shared: Arc::downgrade(shared), key, stats: stats.clone() };
    // Not under the lock: a task that is dropped at once gives its entry back through it.
    let task = runtime::spawn(async move {
        let open = open;
        if echo(stream, &open.stats).await.is_err() {
            open.stats.errors.fetch_add(1, Ordering::Relaxed);
        }
    });
    let mut tasks = shared.tasks();
    if tasks.stopped {
        task.abort();
    }
    // Keys are given out by the accepting task alone, so this one cannot have a new owner yet.
    if let Some(entry) = tasks.connections.get_mut(key) {
        *entry = Some(task.abort_handle());
    }
}

/// Gives a connection's entry back however its task ends.
struct Open {
    shared: Weak<Shared>,
    key: usize,
    stats: Arc<Stats>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.stats.closed.fetch_add(1, Ordering::Relaxed);
        let Some(shared) = self.shared.upgrade() else { return };
        let mut tasks = shared.tasks();
        let own = tasks.connections.try_remove(self.key);
        let last = tasks.is_over();
        drop(tasks);
        drop(own);
        if last {
            shared.empty.notify_one();
        }
    }
}

async fn echo(stream: TcpStream, stats: &Stats) -> io::Result<()> {
    let mut buffer = vec![0; SMALL];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        stats.reads.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(count as u64, Ordering::Relaxed);
        stream.write_all(&buffer[..count]).await?;
        if count == buffer.len() && count < LARGE {
            buffer = vec![0; LARGE];
        }
    }
}
