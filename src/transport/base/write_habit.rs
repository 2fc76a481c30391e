//! Decides when a write leaves: at once, or together with the next one.
//!
//! **A write may wait only while its partner is due.** What one step of the loop (a callback, a step of a task, an
//! event) writes to a connection in quick succession is a *burst*. The shorter of a connection's last two bursts tells how
//! many writes the next one is expected to have. Its first write is held for the second, which sends both: head and body
//! of a response. What follows is held for the last one. So a burst of any length costs one or two sends. Every other
//! write is *alone*: it is sent before `write` returns.
//!
//! | the last two bursts | writes of the next burst |
//! |---|---|
//! | none, or one is not known | each is sent at once |
//! | 1 and any number | each is sent at once |
//! | 2 and 2: head and body | the first is held, the second sends both, others are sent at once |
//! | 2 and 5 | the same: the shorter one counts |
//! | 3 and 3 | the same: the third is sent at once |
//! | 5 and 5 | the same, and then the third and fourth are held, and the fifth sends them |
//! | both filled the socket | the same, and then all others are held |
//!
//! - Bursts that follow received data, such as responses, and bursts without new data, such as events that a server
//!   pushes, are habits of their own.
//! - What is held is sent as soon as it is enough for one system call ([`may_wait`]).
//! - A burst ends with its step, and with a pause of more than [`quick`] after a write or a send. After that, nothing
//!   in the step is held.
//! - A burst of more than two writes that fills the socket has no known length: it is *endless*. If endless bursts are
//!   expected, a burst of more than two writes is one more of them, and its last writes are held for the end of the
//!   step. If that comes later than [`quick`], the guess was wrong.
//! - A guess that was wrong ends both habits: what is held is sent at the end of the step at the latest, and the
//!   following writes are sent at once, until there were two longer bursts again.
//! - A new connection has the habits of the last one that its listener has accepted.
//!
//! No method calls Python. A connection belongs to one loop, and is used in sections of that loop.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::ticks_per_second;

/// The binary logarithm of the part of a second that may lie between two writes of a burst: 0.24 milliseconds. Between
/// the head and the body of a response, a framework takes 10 to 100 microseconds.
const QUICK: u32 = 12;

/// The write of a burst that sends the first one.
const PAIR: u16 = 2;

/// The length of a burst whose end is not known.
const ENDLESS: u16 = u16::MAX;

/// The longest time between two writes of a burst, in ticks of the processor's counter.
#[inline(always)]
fn quick() -> u64 {
    ticks_per_second() >> QUICK
}

/// From this size on, more data in one system call does not make it much cheaper. On some machines 256 KiB cost half as
/// much again, where the reader takes as many at a time: it falls asleep between two of them.
const GROUP: usize = 128 * 1024;

/// May `held` bytes, of which `before` were held before the last write, wait for the next one?
///
/// In asyncio they would be in the kernel, as far as that has room. So more than the high-water mark `high` may wait
/// only if the kernel has room for the rest: then asyncio would not have paused the protocol either. The kernel is
/// asked once for each group.
#[inline(always)]
pub(crate) fn may_wait(
    before: usize,
    held: usize,
    high: usize,
    has_room: impl FnOnce(usize) -> bool,
) -> bool {
    held < GROUP && (held <= high || before > high || has_room(GROUP - high))
}

/// When a write leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a write is sent or held"]
pub(crate) enum Departure {
    /// At once, with everything that was held.
    Now,
    /// With the next write, which is due.
    WithNext,
}

/// The lengths of the last two bursts; 0 if not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lengths {
    last: u16,
    before: u16,
}

impl Lengths {
    fn add(self, length: u16) -> Lengths {
        Lengths { last: length, before: self.last }
    }

    /// How many writes the next burst is expected to have, at least.
    #[inline(always)]
    fn expected(self) -> u16 {
        self.last.min(self.before)
    }
}

/// The lengths of bursts that follow received data, and of all others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Habits {
    replies: Lengths,
    others: Lengths,
}

impl Habits {
    fn of(&mut self, reply: bool) -> &mut Lengths {
        if reply { &mut self.replies } else { &mut self.others }
    }

    fn to_bits(self) -> u64 {
        [self.replies.last, self.replies.before, self.others.last, self.others.before]
            .into_iter()
            .fold(0, |bits, length| bits << 16 | u64::from(length))
    }

    fn from_bits(bits: u64) -> Habits {
        let length = |index: u32| (bits >> (16 * index)) as u16;
        Habits {
            replies: Lengths { last: length(3), before: length(2) },
            others: Lengths { last: length(1), before: length(0) },
        }
    }
}

/// The habits of a listener's last connection, for its next one. Relaxed everywhere: it is one word, and a guess.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedHabits(Arc<AtomicU64>);

/// The lengths of a connection's last bursts, and the burst that is under way.
#[derive(Debug, Default)]
pub(crate) struct WriteHabit {
    habits: Cell<Habits>,
    /// Where the habits come from, and go to at the end.
    shared: Option<SharedHabits>,
    /// The step of the burst.
    step: Cell<u64>,
    /// The time of its last write, or of the end of the last send, in ticks.
    written: Cell<u64>,
    /// The number of its writes. 0 if it is over.
    count: Cell<u16>,
    /// The number of writes that are expected. 0 if nothing more is held in this step.
    expected: Cell<u16>,
    /// Does the burst follow received data?
    reply: Cell<bool>,
    /// Data was received since the burst began.
    received: Cell<bool>,
    /// Each message of the last batch was answered, in quick succession.
    answers_each: Cell<bool>,
}

impl WriteHabit {
    /// The habit of a connection that a listener has accepted.
    pub(crate) fn of_listener(shared: SharedHabits) -> WriteHabit {
        let habits = Habits::from_bits(shared.0.load(Ordering::Relaxed));
        WriteHabit { habits: Cell::new(habits), shared: Some(shared), ..WriteHabit::default() }
    }

    /// The connection has received data.
    #[inline(always)]
    pub(crate) fn note_received(&self) {
        self.received.set(true);
    }

    /// A write in the step with this number, at this time in ticks.
    #[inline(always)]
    pub(crate) fn next(&self, step: u64, now: u64) -> Departure {
        let paused = self.has_paused(now);
        self.written.set(now);
        if step != self.step.get() {
            self.begin(step);
        } else if self.count.get() == 0 || paused {
            return self.after_pause();
        }
        // A burst has an end until the socket is full.
        self.count.set(self.count.get().saturating_add(1).min(ENDLESS - 1));
        if self.is_waiting() { Departure::WithNext } else { Departure::Now }
    }

    /// A send has ended: the time that it took is no pause of the program. If the socket is `full`, it is not known how
    /// many writes the burst would have had.
    #[inline(always)]
    pub(crate) fn note_sent(&self, now: u64, full: bool) {
        self.written.set(now);
        if full {
            self.count_as_endless();
        }
    }

    /// The step has ended, and what is held is sent without the write that was due.
    pub(crate) fn end_step(&self, now: u64) {
        if self.expected.get() < ENDLESS || self.count.get() <= PAIR || self.has_paused(now) {
            self.forget();
        } else {
            self.count_as_endless();
        }
    }

    /// The same while a batch of received messages is delivered. If the protocol has answered each message of the last
    /// batch, an answer has a partner due as long as there are `more` messages.
    #[inline(always)]
    pub(crate) fn next_in_batch(&self, step: u64, now: u64, more: bool) -> Departure {
        let departure = self.next(step, now);
        match (more, self.count.get() > 0 && self.answers_each.get()) {
            (true, true) => Departure::WithNext,
            (true, false) => departure,
            (false, _) => Departure::Now,
        }
    }

    /// A batch of so many messages was delivered.
    pub(crate) fn end_batch(&self, size: usize) {
        self.answers_each.set(usize::from(self.count.get()) >= size);
    }

    /// A burst begins.
    #[inline(always)]
    fn begin(&self, step: u64) {
        self.end_burst();
        self.step.set(step);
        let reply = self.received.replace(false);
        self.reply.set(reply);
        self.expected.set(self.habits.get().of(reply).expected());
    }

    /// The step has gone on for a while since the last write, or since a wrong guess.
    #[cold]
    fn after_pause(&self) -> Departure {
        if self.is_waiting() {
            self.forget();
        }
        self.end_burst();
        self.expected.set(0);
        Departure::Now
    }

    #[inline(always)]
    fn has_paused(&self, now: u64) -> bool {
        now.wrapping_sub(self.written.get()) > quick()
    }

    /// A pair stays one.
    fn count_as_endless(&self) {
        if self.count.get() > PAIR {
            self.count.set(ENDLESS);
        }
    }

    /// Does the last write of the burst wait for the next one?
    #[inline(always)]
    fn is_waiting(&self) -> bool {
        let count = self.count.get();
        count < self.expected.get() && count != PAIR
    }

    #[inline(always)]
    fn end_burst(&self) {
        let count = self.count.replace(0);
        if count > 0 {
            let mut habits = self.habits.get();
            let lengths = habits.of(self.reply.get());
            *lengths = lengths.add(count);
            self.habits.set(habits);
        }
    }

    /// Ends the habit: the guess was wrong, and the held data is sent alone. The following writes are sent at once.
    #[cold]
    pub(crate) fn forget(&self) {
        self.habits.set(Habits::default());
        self.count.set(0);
        self.expected.set(0);
        self.answers_each.set(false);
    }

    /// The connection has ended. Its listener's next connection has the same habits.
    pub(crate) fn end(&self) {
        self.end_burst();
        if let Some(shared) = &self.shared {
            shared.0.store(self.habits.get().to_bits(), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection's life, as one line each: `r` receives, `.` ends the step, `~` is a pause, `w` is a write. Capitals
    /// are what is expected: `H` a write that is held, `S` one that is sent. `!` says that what is held is sent at the
    /// end of the step, `f` that it is sent and fills the socket, and `+` that a send takes long.
    fn play(habit: &WriteHabit, script: &str) {
        let (mut step, mut now) = (1, 1_000_000);
        for (index, action) in script.char_indices() {
            now += quick() / 8;
            match action {
                'r' => habit.note_received(),
                '.' => step += 1,
                '~' => now += 2 * quick(),
                'f' => habit.note_sent(now, true),
                '+' => {
                    now += 2 * quick();
                    habit.note_sent(now, false);
                }
                '!' => {
                    assert!(habit.is_waiting(), "nothing is held at {index} of {script}");
                    habit.end_step(now);
                    step += 1;
                }
                'H' => assert_eq!(habit.next(step, now), Departure::WithNext, "at {index} of {script}"),
                'S' => assert_eq!(habit.next(step, now), Departure::Now, "at {index} of {script}"),
                ' ' => {}
                other => panic!("unknown action {other}"),
            }
        }
    }

    #[test]
    fn a_write_is_held_only_while_its_partner_is_due() {
        for script in [
            // Nothing is known: each is sent at once.
            "S . S . S . S",
            "S S S S S S",
            // Head and body, from the third time on.
            "r SS. r SS. r HS. r HS. r HS.",
            // An event stream on such a connection: only the head comes with its first event.
            "r SS. r SS. r HSSSS. r HSSSS. r HSHHS",
            "r SSS. r SSS. r HSS. r HSSSS. r HSS",
            "r SS. r SS. r HS. S. S. S.",
            // Another number of writes: the shorter of the last two counts.
            "SS. SSSS. HSSS. HSHS. HSHSSS. HSHS",
            // A single write ends the habit: it waits for the end of its step, and the next one does not wait.
            "SS. SS. HS. H! S. S. SS. SS. HS.",
            // So does one after which its step goes on.
            "SS. SS. HS. H~S SS. S.",
            // After a pause nothing is held.
            "SS. SS. HS~SS~SS. HS",
            "S~SS. S~SS. S~SS. S",
            // Pushed events are a habit of their own.
            "r SS. r SS. S. S. r HS. S. S.",
            "r S. r S. SSS. SSS. HSS. r S. HSS. r S",
            // The rest of a long burst does not come.
            "SSSS. SSSS. HSHS. HSH! S. S",
            "SSSS. SSSS. HSHS. HS~S. HS. HS",
            // The time of a send is no pause.
            "SSS+SS. S+SSSS. HSHHS",
            // Two bursts that filled the socket: the end of the next one is not known.
            "SSSf. SSSSSf. HSHHHHHHf. HSHHHHHHf. HSHH",
            "SSSf. SSSS. HSHS. HSHSf. HSHS",
            "SSSf. SSSf. HSHHHHH! HSHHH! HSHf. HSH",
            // Such a burst has more than two writes.
            "Sf. Sf. S. S",
            "SSf. SSf. HSSSf. HSS",
            "SSSf. SSSf. H! S. S. SS. SS. HS",
            "SSSf. SSSf. HS. HSS. HSS",
            // It is not expected again once a write has waited for long.
            "SSSf. SSSf. HSHH~! S. S. SS",
            "SSSf. SSSf. HSHH~S SS. SS. SS. HS",
        ] {
            play(&WriteHabit::default(), script);
        }
    }

    #[test]
    fn a_new_connection_has_the_habits_of_the_last_one() {
        let shared = SharedHabits::default();
        for script in ["r SS", "r SS", "r HS", "r HS. r H!", "r S. r SS. r SS. r HS", "r HS"] {
            let habit = WriteHabit::of_listener(shared.clone());
            play(&habit, script);
            habit.end();
        }
    }

    #[test]
    fn more_than_the_high_water_mark_waits_only_where_the_kernel_has_room() {
        const KIB: usize = 1024;
        for (before, held, high, asked, waits) in [
            // Up to the mark.
            (0, 10, 64, None, true),
            (60, 64, 64, None, true),
            // The first write above it asks for the room of the whole group, and the others rely on it.
            (60, 65, 64, Some(64), true),
            (64, 127, 64, Some(64), true),
            (65, 70, 64, None, true),
            (96, 127, 64, None, true),
            (0, 1, 0, Some(128), true),
            (1, 2, 0, None, true),
            // No more than a group, also if the mark is higher.
            (96, 128, 64, None, false),
            (0, 128, 64, None, false),
            (100, 150, 1024, None, false),
            (100, 127, 1024, None, true),
        ] {
            for has_room in [true, false] {
                let mut question = None;
                let ask = |size| {
                    question = Some(size / KIB);
                    has_room
                };
                let found = may_wait(before * KIB, held * KIB, high * KIB, ask);
                assert_eq!(found, waits && (has_room || asked.is_none()), "{held} KiB of {high}");
                assert_eq!(question, asked, "{held} KiB of {high}");
            }
        }
    }

    #[test]
    fn habits_fit_into_one_word() {
        let mut habits = Habits::default();
        for (length, reply) in [(1, true), (2, false), (u16::MAX, true), (4, false)] {
            *habits.of(reply) = habits.of(reply).add(length);
            assert_eq!(Habits::from_bits(habits.to_bits()), habits);
        }
    }
}
