//! What all connections of a run share: its phase, and the counts.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::latency::Latencies;

/// The kinds of errors; the report has their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorKind {
    Connect,
    ConnectTimeout,
    ClosedEarly,
    Io,
    Mismatch,
    Status,
    Malformed,
    Stalled,
}

impl ErrorKind {
    fn name(self) -> &'static str {
        match self {
            ErrorKind::Connect => "connect",
            ErrorKind::ConnectTimeout => "connect timeout",
            ErrorKind::ClosedEarly => "closed early",
            ErrorKind::Io => "input/output",
            ErrorKind::Mismatch => "mismatch",
            ErrorKind::Status => "status",
            ErrorKind::Malformed => "malformed",
            ErrorKind::Stalled => "stalled",
        }
    }
}

/// One error.
#[derive(Debug)]
pub(super) struct Error {
    pub(super) kind: ErrorKind,
    pub(super) detail: String,
}

impl Error {
    pub(super) fn new(kind: ErrorKind, detail: impl Into<String>) -> Self {
        Error { kind, detail: detail.into() }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let kind =
            if error.kind() == io::ErrorKind::UnexpectedEof { ErrorKind::ClosedEarly } else { ErrorKind::Io };
        Error::new(kind, error.to_string())
    }
}

/// The current part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Warmup,
    Window,
    Over,
}

/// The phase and the counters, which all tasks of a run share.
///
/// All accesses are relaxed: no memory depends on them, and a task that sees a new phase late counts one request more or
/// less.
#[derive(Debug)]
pub(super) struct Stats {
    phase: AtomicU8,
    requests: AtomicU64,
    bytes: AtomicU64,
    pub(super) unsent: AtomicU64,
    /// Requests left to start in the window, where the run has a count.
    left: Option<AtomicU64>,
    pub(super) latency: Latencies,
    pub(super) lag: Latencies,
    errors: Mutex<Errors>,
}

#[derive(Debug, Default)]
struct Errors {
    by_kind: BTreeMap<&'static str, u64>,
    first: Option<String>,
}

impl Stats {
    pub(super) fn new(count: Option<u64>) -> Self {
        Stats {
            phase: AtomicU8::new(Phase::Warmup as u8),
            requests: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            unsent: AtomicU64::new(0),
            left: count.map(AtomicU64::new),
            latency: Latencies::new(),
            lag: Latencies::new(),
            errors: Mutex::default(),
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Relaxed);
    }

    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Relaxed) {
            0 => Phase::Warmup,
            1 => Phase::Window,
            _ => Phase::Over,
        }
    }

    /// Whether another request may start. Counts it, where the run has a count.
    pub(super) fn may_start(&self) -> bool {
        match (self.phase(), &self.left) {
            (Phase::Over, _) => false,
            (Phase::Window, Some(left)) => left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok(),
            _ => true,
        }
    }

    /// Counts a right answer of this many bytes, `latency` after its request was sent or due.
    pub(super) fn answered(&self, bytes: usize, latency: Duration) {
        if self.phase() == Phase::Window {
            self.requests.fetch_add(1, Relaxed);
            self.bytes.fetch_add(bytes as u64, Relaxed);
            self.latency.record(latency);
        }
    }

    pub(super) fn failed(&self, error: Error) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.by_kind.entry(error.kind.name()).or_default() += 1;
        errors.first.get_or_insert_with(|| format!("{}: {}", error.kind.name(), error.detail));
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn error_count(&self) -> u64 {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).by_kind.values().sum()
    }

    pub(super) fn errors(&self) -> (BTreeMap<&'static str, u64>, Option<String>) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.by_kind.clone(), errors.first.clone())
    }
}
