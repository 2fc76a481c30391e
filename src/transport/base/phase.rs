//! The phases of a transport, from its creation to its end.
//!
//! | phase | `connection_made` | `is_closing()` | reads | new writes | `connection_lost` | descriptor |
//! |---|---|---|---|---|---|---|
//! | `Starting` | queued | no | no | are sent | | open |
//! | `Open` | called | no | unless paused | are sent | | open |
//! | `HalfClosed` | called | no | no: the peer has sent its end of file | are sent | | open |
//! | `Closing` | called or queued | yes | no | are sent after earlier ones¹ | | open |
//! | `Lost` | called or queued | yes | no | are dropped and counted² | queued or running | open |
//! | `Closed` | called | yes | no | are dropped and counted | called | closed |
//!
//! ```text
//! Starting ─► Open ◄─► HalfClosed
//!    │          │          │
//!    └──────────┴────┬─────┘
//!                    ▼
//!                 Closing ─► Lost ─► Closed
//! ```
//!
//! ¹ A pipe transport drops and counts them. ² A datagram transport without a fixed address still sends them.
//!
//! A transport may skip phases, but never goes back, with one exception: `resume_reading` takes a half-closed transport
//! back to `Open`, so that the end of file is read again. The variants have the order of the table, so most checks are
//! one comparison.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
enum TransportPhase {
    #[default]
    Starting,
    Open,
    HalfClosed,
    Closing,
    Lost,
    Closed,
}

/// The result of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what follows a transition must happen once"]
pub(crate) enum Transition {
    /// The transport has entered the phase now.
    Entered,
    /// It was in this or a later phase before.
    Before,
}

/// The phase that a transport is in.
#[derive(Debug, Default)]
pub(crate) struct Life(Cell<TransportPhase>);

impl Life {
    /// Has `connection_made` not been called yet, and is the transport not closing?
    pub(crate) fn is_starting(&self) -> bool {
        self.0.get() == TransportPhase::Starting
    }

    /// The result of `is_closing()`.
    #[inline(always)]
    pub(crate) fn is_closing(&self) -> bool {
        self.0.get() >= TransportPhase::Closing
    }

    /// Is `connection_lost` queued, or was it called?
    #[inline(always)]
    pub(crate) fn is_lost(&self) -> bool {
        self.0.get() >= TransportPhase::Lost
    }

    /// Is the descriptor closed?
    #[inline(always)]
    pub(crate) fn is_closed(&self) -> bool {
        self.0.get() == TransportPhase::Closed
    }

    /// May more data for the protocol arrive?
    #[inline(always)]
    pub(crate) fn expects_data(&self) -> bool {
        self.0.get() <= TransportPhase::Open
    }

    /// `connection_made` was called.
    pub(crate) fn start(&self) {
        if self.is_starting() {
            self.0.set(TransportPhase::Open);
        }
    }

    /// The peer has closed its side, and the protocol keeps ours open.
    pub(crate) fn half_close(&self) {
        if self.0.get() == TransportPhase::Open {
            self.0.set(TransportPhase::HalfClosed);
        }
    }

    /// Reading is resumed, so the peer's end of file is read again.
    pub(crate) fn reopen(&self) {
        if self.0.get() == TransportPhase::HalfClosed {
            self.0.set(TransportPhase::Open);
        }
    }

    /// `close()` was called.
    pub(crate) fn close(&self) -> Transition {
        self.advance(TransportPhase::Closing)
    }

    /// `connection_lost` is about to be queued or called.
    pub(crate) fn lose(&self) -> Transition {
        self.advance(TransportPhase::Lost)
    }

    /// The descriptor is about to be closed.
    pub(crate) fn end(&self) -> Transition {
        self.advance(TransportPhase::Closed)
    }

    fn advance(&self, phase: TransportPhase) -> Transition {
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
        let life = Life::default();
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
        let life = Life::default();
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
