//! One event: when, what kind, of which thread, and one number.
//!
//! A track is in one state at a time: it polls, runs a callback, is between two. Most events begin a state, and so end
//! the one before. So a callback takes one event and one read of the clock.

use super::names::UNNAMED;

/// What has happened. The words in brackets say what the number is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A turn begins with a poll. One without a poll begins at an event that has [`Origin::TURN`].
    Poll,
    /// The poll is over [how long the thread waited for the GIL after it, in nanoseconds, plus one; 0 if it kept the
    /// GIL].
    Polled,
    /// A timer is due [how late it is, in nanoseconds]. Its callback follows.
    Timer,
    /// A callback begins [its name].
    Callback,
    /// A descriptor's event is handled [the descriptor].
    Ready,
    /// Data was received ([`transfer`]).
    Received,
    /// The loop begins to send what was written before ([`transfer`], of what there is to send).
    Flush,
    /// A callback begins to send, and goes on afterwards ([`transfer`], of what there is to send).
    Write,
    /// The `Flush` or `Write` is over ([`transfer`], of what was not sent).
    Written,
    /// The turn was longer than the loop's limit [how long, in nanoseconds].
    SlowTurn,
    /// The loop stops running.
    Leave,
    /// A worker of the runtime polls a task [the type of its future: see [`type_number`]].
    TaskPoll,
    /// A worker took tasks from another.
    Steal,
    /// A worker goes to sleep.
    Park,
    /// A worker has woken up.
    Unpark,
}

impl Kind {
    pub(super) const ALL: [Kind; 15] = [
        Kind::Poll,
        Kind::Polled,
        Kind::Timer,
        Kind::Callback,
        Kind::Ready,
        Kind::Received,
        Kind::Flush,
        Kind::Write,
        Kind::Written,
        Kind::SlowTurn,
        Kind::Leave,
        Kind::TaskPoll,
        Kind::Steal,
        Kind::Park,
        Kind::Unpark,
    ];
}

/// The bits of a number. Larger ones are cut.
const NUMBER_BITS: u32 = 48;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
const TRACK_BITS: u32 = 9;
const KIND_SHIFT: u32 = NUMBER_BITS + TRACK_BITS + 1;
/// How many threads the events of a ring can be from.
pub(super) const TRACKS: usize = 1 << TRACK_BITS;
/// The bits of a number of bytes.
const SIZE_BITS: u32 = 28;
const SIZE: u64 = (1 << SIZE_BITS) - 1;

/// The thread that an event of a ring is from, at its place in the event, and whether a turn begins with the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Origin(u64);

impl Origin {
    const TURN: u64 = 1 << (NUMBER_BITS + TRACK_BITS);

    /// The track is below [`TRACKS`].
    pub(super) fn track(track: usize) -> Origin {
        debug_assert!(track < TRACKS);
        Origin((track as u64) << NUMBER_BITS)
    }

    /// A turn begins.
    #[inline(always)]
    pub(crate) fn with_turn(self) -> Origin {
        Origin(self.0 | Origin::TURN)
    }

    #[inline(always)]
    pub(crate) fn begins_turn(self) -> bool {
        self.0 & Origin::TURN != 0
    }

    #[inline(always)]
    pub(crate) fn without_turn(self) -> Origin {
        Origin(self.0 & !Origin::TURN)
    }
}

/// An event as it is in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// When, on the clock of the recording.
    pub(crate) ticks: u64,
    /// Kind, origin and number.
    pub(crate) word: u64,
}

impl Event {
    /// `number` has 48 bits: it is a name's, or made by one of the functions below.
    #[inline(always)]
    pub(crate) fn new(ticks: u64, kind: Kind, origin: Origin, number: u64) -> Event {
        debug_assert!(number <= NUMBER);
        Event { ticks, word: (kind as u64) << KIND_SHIFT | origin.0 | number }
    }

    /// `None` for a word that no event has.
    pub(crate) fn kind(self) -> Option<Kind> {
        Kind::ALL.get((self.word >> KIND_SHIFT) as usize).copied()
    }

    pub(crate) fn track(self) -> u64 {
        self.word >> NUMBER_BITS & (TRACKS as u64 - 1)
    }

    pub(crate) fn begins_turn(self) -> bool {
        self.word & Origin::TURN != 0
    }

    pub(crate) fn number(self) -> u64 {
        self.word & NUMBER
    }

    /// The number of its name, if it has one.
    pub(crate) fn name(self) -> Option<u64> {
        (self.kind() == Some(Kind::Callback) && self.number() != UNNAMED).then_some(self.number())
    }

    /// The descriptor and the number of bytes of [`transfer`].
    pub(crate) fn transferred(self) -> (u64, u64) {
        (self.number() >> SIZE_BITS, self.number() & SIZE)
    }
}

/// The number of a duration in nanoseconds. More than three days count as three days.
#[inline(always)]
pub(crate) fn duration(nanos: u64) -> u64 {
    nanos.min(NUMBER)
}

/// The number of an event that some bytes were transferred. 256 MiB and more count as one byte less than that.
#[inline(always)]
pub(crate) fn transfer(fd: i32, bytes: usize) -> u64 {
    (fd as u64) << SIZE_BITS & NUMBER | (bytes as u64).min(SIZE)
}

/// Returns the name of the type of a task's future.
pub(crate) type TypeName = fn() -> &'static str;

/// The number of a [`Kind::TaskPoll`]: the address of the function that names the type of the task's future.
#[inline(always)]
pub(crate) fn type_number(name: &'static TypeName) -> u64 {
    let address = std::ptr::from_ref(name).expose_provenance() as u64;
    // No system that we build for has statics beyond. The number of an event would be cut.
    if address >> NUMBER_BITS == 0 { address } else { 0 }
}

/// The name of the type with this number.
pub(super) fn type_name(number: u64) -> &'static str {
    let name: *const TypeName = std::ptr::with_exposed_provenance(number as usize);
    // SAFETY: null, or a static reference: only `type_number` makes the number of a `TaskPoll`, and a ring gives whole
    // events only.
    unsafe { name.as_ref() }.map_or("task", |name| name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_at_its_own_place() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            let event = Event::new(5, kind, Origin::track(511).with_turn(), 7);
            assert_eq!(kind as usize, index);
            assert_eq!((event.kind(), event.track(), event.number()), (Some(kind), 511, 7));
            assert!(event.begins_turn());
        }
        assert_eq!(Event { ticks: 0, word: u64::MAX }.kind(), None);
    }

    #[test]
    fn numbers_that_are_too_large_are_cut() {
        let longest = Event::new(0, Kind::Polled, Origin::track(3), duration(u64::MAX));
        assert_eq!(
            (longest.kind(), longest.track(), longest.number()),
            (Some(Kind::Polled), 3, (1 << 48) - 1)
        );
        let event =
            |fd, bytes| Event::new(0, Kind::Received, Origin::default(), transfer(fd, bytes)).transferred();
        assert_eq!(event(1_000_000, 1024), (1_000_000, 1024));
        assert_eq!(event(3, 1 << 40), (3, (1 << 28) - 1));
    }
}
