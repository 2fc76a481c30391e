//! The types of the reactor: tokens, interests, readiness, events.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// The token of the poller's own descriptors. Users never see events with it.
pub(super) const INTERNAL: mio::Token = mio::Token(usize::MAX);

/// The caller's name for a registration; comes back with each of its events.
///
/// `usize::MAX` is taken by the poller itself and refused at registration.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token(pub usize);

/// Which kinds of readiness a registration asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest(u8);

impl Interest {
    /// Bytes, a connection, or the end of the stream can be read.
    pub const READ: Interest = Interest(1);
    /// There is room to write.
    pub const WRITE: Interest = Interest(2);
    /// Both of the above.
    pub const BOTH: Interest = Interest(3);

    /// The interest in these directions, or `None` if both are false.
    pub const fn of(read: bool, write: bool) -> Option<Interest> {
        match read as u8 | (write as u8) << 1 {
            0 => None,
            bits => Some(Interest(bits)),
        }
    }

    /// Whether `READ` is included.
    pub const fn is_read(self) -> bool {
        self.0 & 1 != 0
    }

    /// Whether `WRITE` is included.
    pub const fn is_write(self) -> bool {
        self.0 & 2 != 0
    }

    /// For edge-triggered registrations. A reader also needs urgent data: see [`Readiness::PRIORITY`].
    pub(super) fn to_mio(self) -> mio::Interest {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let read = mio::Interest::READABLE | mio::Interest::PRIORITY;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let read = mio::Interest::READABLE;
        match (self.is_read(), self.is_write()) {
            (true, true) => read | mio::Interest::WRITABLE,
            (false, true) => mio::Interest::WRITABLE,
            _ => read,
        }
    }
}

impl fmt::Debug for Interest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.is_read(), self.is_write()) {
            (true, true) => "READ | WRITE",
            (false, true) => "WRITE",
            _ => "READ",
        })
    }
}

/// A set of things that are true of a file descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Readiness(u8);

impl Readiness {
    /// Nothing.
    pub const EMPTY: Readiness = Readiness(0);
    /// A read will not block.
    pub const READABLE: Readiness = Readiness(1);
    /// A write will not block.
    pub const WRITABLE: Readiness = Readiness(2);
    /// The peer has shut down its sending side. Earlier data can still be read.
    pub const READ_CLOSED: Readiness = Readiness(4);
    /// Nothing more can be written.
    pub const WRITE_CLOSED: Readiness = Readiness(8);
    /// An error is pending on the descriptor.
    pub const ERROR: Readiness = Readiness(16);
    /// Urgent data (Linux only). A read stops at the urgent mark, so it may be short although more data
    /// follows.
    pub const PRIORITY: Readiness = Readiness(32);
    /// With one of these in an event, a short read may have left something behind: an end, an error, or what
    /// follows urgent data. Without them a short read has drained a TCP socket.
    pub const BEHIND_SHORT_READ: Readiness = Readiness(
        Readiness::READ_CLOSED.0 | Readiness::WRITE_CLOSED.0 | Readiness::ERROR.0 | Readiness::PRIORITY.0,
    );

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in the set.
    pub const fn contains(self, other: Readiness) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any of `other` is in the set.
    pub const fn intersects(self, other: Readiness) -> bool {
        self.0 & other.0 != 0
    }

    /// The set as bits, for owners that keep it in a wider word.
    pub const fn bits(self) -> u8 {
        self.0
    }

    /// The inverse of [`Readiness::bits`]; unknown bits are dropped.
    pub const fn from_bits(bits: u8) -> Readiness {
        Readiness(bits & 63)
    }

    pub(super) fn from_mio(event: &mio::event::Event) -> Readiness {
        let mut set = Readiness::EMPTY;
        let pairs = [
            (event.is_readable(), Readiness::READABLE),
            (event.is_writable(), Readiness::WRITABLE),
            (event.is_read_closed(), Readiness::READ_CLOSED),
            (event.is_write_closed(), Readiness::WRITE_CLOSED),
            (event.is_error(), Readiness::ERROR),
            (event.is_priority(), Readiness::PRIORITY),
        ];
        for (holds, bit) in pairs {
            if holds {
                set |= bit;
            }
        }
        set
    }
}

impl BitOr for Readiness {
    type Output = Readiness;
    fn bitor(self, other: Readiness) -> Readiness {
        Readiness(self.0 | other.0)
    }
}

impl BitOrAssign for Readiness {
    fn bitor_assign(&mut self, other: Readiness) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for Readiness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["READABLE", "WRITABLE", "READ_CLOSED", "WRITE_CLOSED", "ERROR", "PRIORITY"];
        let mut set = f.debug_set();
        for (bit, name) in names.iter().enumerate() {
            if self.0 & (1 << bit) != 0 {
                set.entry(&format_args!("{name}"));
            }
        }
        set.finish()
    }
}

/// Something happened on the descriptor registered under `token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The token that the descriptor was registered with.
    pub token: Token,
    /// What is now true of the descriptor.
    pub readiness: Readiness,
}
