//! The load generator: many connections that send requests, check every byte of the answers, and time them.
//!
//! It has one task for each connection, and one worker thread by default, so that a server on one core is the
//! bottleneck and not the load.
//!
//! A run has phases that never overlap: connect (each idle connection makes one exchange), warm-up, the measured window,
//! and the end (every idle connection must answer once more). Only answers that complete inside the window are counted.
//! At both ends of the window the run reads its own CPU clock and, on request, that of the server process. So "CPU time
//! per request" covers exactly the requests that were counted.
//!
//! - *Closed loop*: a connection sends its next request when the last was answered.
//! - *Open loop* (`rate`): every request has a due time, and its latency counts from there, however late the server
//!   made the connection. Nothing is omitted; the report counts the requests that were due and never sent.
//!
//! An error ends its connection. The report counts all errors by kind.

mod clock;
mod connection;
mod http;
mod latency;
mod limits;
mod pattern;
mod run;
mod stats;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

pub use latency::Summary;
pub use limits::allow_many_files;
pub use run::{run, run_and_show};

/// Where the server listens.
#[derive(Clone, Debug)]
pub enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// Datagrams, one for a request and one for its answer. A lost datagram stalls its connection.
    Udp(SocketAddr),
}

/// What a connection sends, and which answer is right.
#[derive(Clone, Debug)]
pub enum Work {
    /// `size` bytes that come back unchanged; with `lines` they end in the only newline among them.
    Echo { size: usize, lines: bool },
    /// HTTP/1.1 with keep-alive; see [`Http`].
    Http(Http),
    /// A new connection each time, which the server closes without sending anything.
    Accept,
}

/// One HTTP request, repeated.
#[derive(Clone, Debug)]
pub struct Http {
    pub host: String,
    pub path: String,
    /// Sends a POST with a body of this many bytes, different each time; otherwise GET.
    pub post_size: Option<usize>,
    /// Writes the body in pieces of this many bytes, each with a system call of its own; without it, the whole request
    /// at once.
    pub chunk: Option<NonZeroUsize>,
    /// The body that every answer must have. Without it, the server must echo a POST, and all answers to a GET must be
    /// the same as the first.
    pub expect_body: Option<Vec<u8>>,
}

/// One run.
#[derive(Clone, Debug)]
pub struct Config {
    pub target: Target,
    pub work: Work,
    /// Connections that send requests all the time.
    pub connections: usize,
    /// Connections held open beside them.
    pub idle: usize,
    /// Requests per second over all connections: open loop. Without it: closed loop.
    pub rate: Option<f64>,
    pub warmup: Duration,
    /// The length of the measured window.
    pub duration: Duration,
    /// Ends the window after this many requests, if that is sooner. Requests that are under way when the window opens
    /// count as well.
    pub count: Option<u64>,
    pub workers: usize,
    /// How long a connect, and at the end an outstanding answer, may take.
    pub timeout: Duration,
    /// A process whose CPU time is read at both ends of the window.
    pub watch_pid: Option<i32>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            target: Target::Tcp(SocketAddr::from(([127, 0, 0, 1], 0))),
            work: Work::Echo { size: 1024, lines: false },
            connections: 10,
            idle: 0,
            rate: None,
            warmup: Duration::ZERO,
            duration: Duration::from_secs(1),
            count: None,
            workers: 1,
            timeout: Duration::from_secs(10),
            watch_pid: None,
        }
    }
}

/// How far a run is.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    pub warming_up: bool,
    /// Since the beginning of the warm-up or of the window.
    pub elapsed: Duration,
    /// Right answers inside the window so far.
    pub requests: u64,
    /// Errors of the whole run so far.
    pub errors: u64,
}

/// What a run found.
#[derive(Clone, Debug)]
pub struct Report {
    /// Right answers inside the window.
    pub requests: u64,
    /// The length of the window.
    pub seconds: f64,
    /// Payload bytes of those answers.
    pub bytes: u64,
    pub connect_seconds: f64,
    /// Idle connections that answered at the start and again at the end.
    pub idle_answered: usize,
    pub latency: Summary,
    /// Open loop: how late the generator itself sent, on connections that were free when the request was due.
    pub lag: Option<Summary>,
    /// Open loop: requests that were due inside the window and were never sent.
    pub unsent: u64,
    /// Every error of the whole run, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    pub first_error: Option<String>,
    /// CPU time of this process in the window.
    pub own_cpu: Duration,
    /// CPU time of the watched process in the window.
    pub watched_cpu: Option<Duration>,
}
