//! What all connections of a run share: the phase it is in, and the counts.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::latency::Latencies;

/// What kind of thing went wrong; the name is what the report says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Connect,
    ConnectTimeout,
    ClosedEarly,
    Io,
    Mismatch,
    Status,
    Malformed,
    Stalled,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Connect => "connect",
            Kind::ConnectTimeout => "connect timeout",
            Kind::ClosedEarly => "closed early",
            Kind::Io => "input/output",
            Kind::Mismatch => "mismatch",
            Kind::Status => "status",
            Kind::Malformed => "malformed",
            Kind::Stalled => "stalled",
        }
    }
}

/// One error.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) kind: Kind,
    pub(super) detail: String,
}

impl Fault {
    pub(super) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Fault { kind, detail: detail.into() }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        let kind = if error.kind() == io::ErrorKind::UnexpectedEof { Kind::ClosedEarly } else { Kind::Io };
        Fault::new(kind, error.to_string())
    }
}

/// The part of a run that is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    Warmup,
    Window,
    Over,
}

/// Shared by all tasks of a run.
///
/// Everything is a counter that nobody decides on, except `phase`: a late look at it costs one request that is
/// counted or not, so all accesses are relaxed.
#[derive(Debug)]
pub(super) struct Tally {
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

impl Tally {
    pub(super) fn new(count: Option<u64>) -> Self {
        Tally {
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

    /// Whether another request may start; takes one of the count, if there is one.
    pub(super) fn may_start(&self) -> bool {
        match (self.phase(), &self.left) {
            (Phase::Over, _) => false,
            (Phase::Window, Some(left)) => left.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok(),
            _ => true,
        }
    }

    /// A right answer of so many bytes, `latency` after its request was sent or due.
    pub(super) fn answered(&self, bytes: usize, latency: Duration) {
        if self.phase() == Phase::Window {
            self.requests.fetch_add(1, Relaxed);
            self.bytes.fetch_add(bytes as u64, Relaxed);
            self.latency.record(latency);
        }
    }

    pub(super) fn failed(&self, fault: Fault) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors.by_kind.entry(fault.kind.name()).or_default() += 1;
        errors.first.get_or_insert_with(|| format!("{}: {}", fault.kind.name(), fault.detail));
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Relaxed)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    pub(super) fn errors(&self) -> (BTreeMap<&'static str, u64>, Option<String>) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.by_kind.clone(), errors.first.clone())
    }
}
