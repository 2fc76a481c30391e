//! Finds a loop that waits busily: a task or callback schedules itself again and again, and waits for nothing.
//!
//! - Twice a second the loop compares its counters with those of the last look. It is **suspected** if it has run many
//!   callbacks for its processor time, has found next to no events, timers and messages, and has hardly waited.
//! - After a second of that, [`EntrySample`] counts which entries run, for some hundred of them. An entry that comes
//!   once in nearly each turn, and has a large part of all entries, waits busily.
//! - That lasts until a look finds the loop no longer suspected.
//!
//! A program that works between two `sleep(0)` takes longer for each of them. One with many tasks has no entry that
//! comes so often. A task that waits for another one runs in every second turn at most.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use super::metrics::Counters;

/// The loop looks at its counters so often, in nanoseconds.
const EVERY: u64 = 500_000_000;
/// After so many looks the loop is sampled.
const LOOKS: u32 = 2;
/// Callbacks that take longer on average, in nanoseconds of processor time, do work.
const SHORT: u64 = 50_000;
/// There are so many callbacks for an event, a timer or a message at least.
const PER_EVENT: u64 = 100;
/// At most this part of the time was spent in waits.
const WAITING: u64 = 4;
/// There are so many callbacks at least. A loop whose callbacks block has fewer.
const MANY: u64 = 1_000;

/// How many entries a sample has.
const ENTRIES: u32 = 256;
/// It has so many turns at least: in fewer ones, an entry may have been scheduled many times at once.
const TURNS: u64 = 32;
/// At least this part of all entries is one that waits busily.
const SHARE: u32 = 4;

#[derive(Debug, Default)]
pub(crate) struct BusyWaits {
    next: Cell<u64>,
    last: Cell<Look>,
    /// How many looks have found the loop suspected, and when it has begun.
    suspected: Cell<(u32, u64)>,
    found: Cell<bool>,
    sample: RefCell<EntrySample>,
}

/// The counters at a look.
#[derive(Clone, Copy, Debug, Default)]
struct Look {
    at: u64,
    cpu: u64,
    callbacks: u64,
    events: u64,
    idle: u64,
}

/// The result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Suspicion {
    None,
    /// Not for long enough, or the entry is found already.
    Waits,
    /// A sample shall be taken.
    Sample,
}

/// The entries of a sample.
#[derive(Debug, Default)]
struct EntrySample {
    entries: u32,
    first_turn: u64,
    last_turn: u64,
    /// By the key of an entry: how often it came, in how many turns, and the last of these.
    seen: HashMap<usize, (u32, u32, u64)>,
    /// The entry that waits busily.
    wanted: Option<usize>,
}

/// The result of one entry for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Sampled {
    Continue,
    /// There is no such entry.
    Nothing,
    /// This is the entry.
    Found,
}

impl BusyWaits {
    /// A run begins.
    pub(crate) fn begin_run(&self, now: u64) {
        self.next.set(now + EVERY);
        self.last.set(Look::default());
        self.suspected.set((0, 0));
        self.found.set(false);
    }

    #[inline(always)]
    pub(crate) fn is_due(&self, now: u64) -> bool {
        now >= self.next.get()
    }

    /// Since when the loop is suspected.
    pub(crate) fn since(&self) -> u64 {
        self.suspected.get().1
    }

    /// Compares the counters at `now` with those of the last look. `cpu` is the processor time of the thread.
    pub(crate) fn look(&self, now: u64, cpu: u64, counters: &Counters) -> Suspicion {
        self.next.set(now + EVERY);
        let look = Look {
            at: now,
            cpu,
            callbacks: counters.callbacks.get(),
            events: counters.io_events.get() + counters.timers_fired.get() + counters.messages.get(),
            idle: counters.idle.get(),
        };
        let last = self.last.replace(look);
        if last.at == 0 || !look.is_suspicious(last) {
            self.suspected.set((0, 0));
            self.found.set(false);
            return Suspicion::None;
        }
        let (looks, since) = self.suspected.get();
        let since = if looks == 0 { last.at } else { since };
        self.suspected.set((looks.saturating_add(1), since));
        if looks + 1 < LOOKS || self.found.get() {
            return Suspicion::Waits;
        }
        self.sample.take();
        Suspicion::Sample
    }

    /// An entry is about to run in this turn. `None` for one without a callback.
    pub(crate) fn note(&self, key: Option<usize>, turn: u64) -> Sampled {
        let noted = self.sample.borrow_mut().note(key, turn);
        if noted == Sampled::Found {
            self.found.set(true);
        }
        noted
    }
}

impl Look {
    fn is_suspicious(self, last: Look) -> bool {
        let (time, cpu) = (self.at - last.at, self.cpu.saturating_sub(last.cpu));
        let (callbacks, events) = (self.callbacks - last.callbacks, self.events.saturating_sub(last.events));
        callbacks >= MANY
            && callbacks >= cpu / SHORT
            && events <= callbacks / PER_EVENT
            && self.idle.saturating_sub(last.idle) <= time / WAITING
    }
}

impl EntrySample {
    fn note(&mut self, key: Option<usize>, turn: u64) -> Sampled {
        if self.wanted.is_some() {
            if self.wanted == key {
                return Sampled::Found;
            }
            // It has ended.
            self.entries += 1;
            return if self.entries > 2 * ENTRIES { Sampled::Nothing } else { Sampled::Continue };
        }
        if self.entries == 0 {
            self.first_turn = turn;
        }
        (self.entries, self.last_turn) = (self.entries + 1, turn);
        if let Some(key) = key {
            let (count, turns, last) = self.seen.entry(key).or_default();
            *turns += u32::from(*count == 0 || *last != turn);
            *count += 1;
            *last = turn;
        }
        if self.entries < ENTRIES {
            return Sampled::Continue;
        }
        self.wanted = self.judge();
        if self.wanted.is_some() { Sampled::Continue } else { Sampled::Nothing }
    }

    fn judge(&self) -> Option<usize> {
        let turns = self.last_turn - self.first_turn + 1;
        let (key, (count, seen, _)) = self.seen.iter().max_by_key(|(_, (count, ..))| *count)?;
        let each_turn = u64::from(*seen) * 10 >= turns * 9 && u64::from(*count) <= turns;
        (turns >= TURNS && each_turn && *count >= self.entries / SHARE).then_some(*key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks twice a second at a loop whose counters grow so much each time.
    fn looks(cpu: u64, callbacks: u64, events: u64, idle: u64) -> Vec<Suspicion> {
        let (waits, counters) = (BusyWaits::default(), Counters::default());
        waits.begin_run(1);
        (1..=4)
            .map(|number| {
                counters.callbacks.add(callbacks);
                counters.io_events.add(events);
                counters.idle.add(idle);
                waits.look(number * EVERY, number * cpu, &counters)
            })
            .collect()
    }

    /// The result of a sample of turns with these entries.
    fn sampled(turn: &[Option<usize>]) -> Sampled {
        let waits = BusyWaits::default();
        let entries = (0..).flat_map(|number| turn.iter().map(move |key| (*key, number)));
        let mut noted = entries.map(|(key, turn)| waits.note(key, turn));
        noted.find(|noted| *noted != Sampled::Continue).expect("a sample ends")
    }

    #[test]
    fn a_loop_is_sampled_after_a_second_of_many_callbacks_without_events() {
        use Suspicion::*;
        assert_eq!(looks(EVERY, 100_000, 0, 0), [None, Waits, Sample, Sample]);
        assert_eq!(
            looks(EVERY / 50, 1_000, 5, EVERY / 8),
            [None, Waits, Sample, Sample],
            "on a busy machine"
        );
        assert_eq!(looks(EVERY / 50, 500, 0, 0), [None; 4], "each callback blocks");
        assert_eq!(looks(EVERY, 9_000, 0, 0), [None; 4], "each callback does work");
        assert_eq!(looks(EVERY, 100_000, 2_000, 0), [None; 4], "there are events");
        assert_eq!(looks(EVERY / 2, 100_000, 0, EVERY / 2), [None; 4], "it waits");
    }

    #[test]
    fn an_entry_that_comes_once_in_each_turn_waits_busily() {
        assert_eq!(sampled(&[Some(1)]), Sampled::Found);
        assert_eq!(sampled(&[None, Some(1), Some(2), None]), Sampled::Found);
        assert_eq!(sampled(&[None]), Sampled::Nothing, "they have no callback");
        assert_eq!(sampled(&[Some(1), Some(2), Some(3), Some(4), Some(5)]), Sampled::Nothing, "many tasks");
        assert_eq!(sampled(&[Some(1); 1000]), Sampled::Nothing, "scheduled many times at once");
        assert_eq!(sampled(&[Some(1); 3]), Sampled::Nothing, "scheduled three times in each turn");
    }
}
