//! The life of a transport, from its making to its end.
//!
//! | phase | `connection_made` | `is_closing()` | reads | what is written | `connection_lost` | descriptor |
//! |---|---|---|---|---|---|---|
//! | `Starting` | queued | no | no | is sent | | ours |
//! | `Open` | called | no | unless paused | is sent | | ours |
//! | `HalfClosed` | called | no | no: the peer has ended | is sent | | ours |
//! | `Closing` | called or queued | yes | no | is dropped; earlier writes are sent | | ours |
//! | `Lost` | called or queued | yes | no | is dropped and counted | queued or running | ours |
//! | `Closed` | called | yes | no | is dropped and counted | called | closed |
//!
//! ```text
//! Starting ─► Open ◄─► HalfClosed
//!    │          │          │
//!    └──────────┴────┬─────┘
//!                    ▼
//!                 Closing ─► Lost ─► Closed
//! ```
//!
//! A phase may be skipped on the way to the right, and none is ever left to the left, except that reading anew takes a
//! half-closed transport back to `Open`: the end is then read once more. The order of the variants is that of the table,
//! so most questions are one comparison of a byte.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum Phase {
    Starting,
    Open,
    HalfClosed,
    Closing,
    Lost,
    Closed,
}

/// Whether a transition took place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what follows a transition must happen once"]
pub(crate) enum Transition {
    /// The transport has entered the phase now.
    Entered,
    /// It had been there before.
    Before,
}

/// The phase that a transport is in.
#[derive(Debug)]
pub(crate) struct Life(Cell<Phase>);

impl Life {
    pub(crate) const fn new() -> Life {
        Life(Cell::new(Phase::Starting))
    }

    /// Is `connection_made` still to be called, of a transport that is not closed either?
    pub(crate) fn is_starting(&self) -> bool {
        self.0.get() == Phase::Starting
    }

    /// What `is_closing()` returns.
    #[inline(always)]
    pub(crate) fn is_closing(&self) -> bool {
        self.0.get() >= Phase::Closing
    }

    /// Is `connection_lost` queued, or was it called?
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.0.get() >= Phase::Lost
    }

    /// Is the descriptor closed?
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.0.get() == Phase::Closed
    }

    /// May the peer still send something that the protocol wants?
    #[inline(always)]
    pub(crate) fn expects_data(&self) -> bool {
        self.0.get() <= Phase::Open
    }

    /// `connection_made` was called.
    pub(crate) fn start(&self) {
        if self.is_starting() {
            self.0.set(Phase::Open);
        }
    }

    /// The peer has ended its side, and the protocol keeps ours open.
    pub(crate) fn half_close(&self) {
        if self.0.get() == Phase::Open {
            self.0.set(Phase::HalfClosed);
        }
    }

    /// Reading begins anew, so the peer's end is read once more.
    pub(crate) fn reopen(&self) {
        if self.0.get() == Phase::HalfClosed {
            self.0.set(Phase::Open);
        }
    }

    /// `close()`: nothing is read any more, and what waits is sent.
    pub(crate) fn close(&self) -> Transition {
        self.advance(Phase::Closing)
    }

    /// `connection_lost` is to be called.
    pub(crate) fn lose(&self) -> Transition {
        self.advance(Phase::Lost)
    }

    /// The descriptor is about to be closed.
    pub(crate) fn end(&self) -> Transition {
        self.advance(Phase::Closed)
    }

    fn advance(&self, phase: Phase) -> Transition {
        if self.0.get() >= phase {
            return Transition::Before;
        }
        self.0.set(phase);
        Transition::Entered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_phase_is_entered_twice() {
        let life = Life::new();
        life.start();
        assert!(life.expects_data() && !life.is_closing());
        assert_eq!([life.close(), life.close()], [Transition::Entered, Transition::Before]);
        life.start();
        assert!(life.is_closing() && !life.is_lost());
        assert_eq!(
            [life.lose(), life.lose(), life.close()],
            [Transition::Entered, Transition::Before, Transition::Before]
        );
        assert!(!life.is_closed());
        assert_eq!(
            [life.end(), life.end(), life.lose()],
            [Transition::Entered, Transition::Before, Transition::Before]
        );
    }

    #[test]
    fn only_a_half_closed_transport_is_opened_again() {
        let life = Life::new();
        life.start();
        life.half_close();
        assert!(!life.expects_data() && !life.is_closing());
        life.reopen();
        assert!(life.expects_data());
        let _ = life.lose();
        life.half_close();
        life.reopen();
        assert!(life.is_lost() && !life.expects_data());
    }
}
