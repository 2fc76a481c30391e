//! Decides whether a wait begins with a *spin*: a short time in which a thread polls again and again before it goes to
//! sleep.
//!
//! Going to sleep and being woken costs a thread more than most requests do. If the next event comes within some
//! microseconds, as the next request of a client that waits for each answer does, a spin costs less and the event is
//! served sooner. If it does not come, the spin was for nothing. So a thread spins only if
//!
//! - the last waits were short, as far as they say something about the next one ([`Expectation`]),
//! - spins pay here, which is tried from time to time ([`Trial`]),
//! - not too many of its last spins found nothing: after each of them it leaves out twice as many spins,
//! - the wait is not for the rest of a long message, which a spin would find in smaller parts,
//! - the spins that found nothing took less than a twentieth of the time so far ([`Budget`]), and
//! - the machine has a second processor, and the container's share of the processors is two or more (`processors.rs`).
//!
//! What else forbids a spin is the caller's to know. All times are nanoseconds of one monotonic clock.

mod processors;
mod setting;
mod trial;

use std::cell::Cell;

pub(crate) use setting::Setting;
use trial::{Spent, Trial};

use crate::clock::{process_nanos, thread_nanos};

/// After a spin that found nothing, up to two to the power of this many spins are left out.
const MOST_LEFT_OUT: u32 = 10;

/// Decides for the waits of one thread.
#[derive(Debug)]
pub(crate) struct SpinPolicy {
    /// How long a spin lasts at most. Zero if this thread never spins.
    window: Cell<u64>,
    /// Not yet known: whether the processors suffice.
    depends: Cell<bool>,
    expectation: Expectation,
    budget: Budget,
    trial: Trial,
    clock: Clock,
    /// How many bytes were received, or sent by sockets that were full.
    bytes: Cell<u64>,
    /// How many spins to leave out.
    leave_out: Cell<u32>,
    /// The binary logarithm of how many are left out after the next spin that finds nothing.
    misses: Cell<u32>,
}

/// How long spins of a thread with this setting last at most. Zero if it never spins.
#[cfg_attr(not(feature = "python"), allow(dead_code, reason = "only Python code asks"))]
pub(crate) fn window(setting: Setting) -> u64 {
    if setting == Setting::Auto && !processors::suffice() { 0 } else { setting.window() }
}

impl SpinPolicy {
    pub(crate) fn new(setting: Setting, clock: Clock) -> SpinPolicy {
        SpinPolicy {
            window: Cell::new(setting.window()),
            depends: Cell::new(setting == Setting::Auto),
            expectation: Expectation::default(),
            budget: Budget::default(),
            trial: Trial::new(),
            clock,
            bytes: Cell::new(0),
            leave_out: Cell::new(0),
            misses: Cell::new(0),
        }
    }

    /// Whether the next wait is expected to be short. Asked before anything that costs more.
    #[inline(always)]
    pub(crate) fn is_likely(&self) -> bool {
        self.expectation.is_short()
    }

    /// Until when a wait that begins at `now`, and lasts for `most` at most, spins. `None` if it does not. `events` is how
    /// many events there were so far.
    #[inline(never)]
    pub(crate) fn begin(&self, now: u64, most: u64, events: u64) -> Option<u64> {
        let work = events + self.bytes.get();
        if !self.trial.allows(now, || Spent { time: now, processor: self.clock.now(), work }) {
            return None;
        }
        if self.leave_out.get() > 0 {
            self.leave_out.set(self.leave_out.get() - 1);
            return None;
        }
        if self.depends.take() && !processors::suffice() {
            self.window.set(0);
        }
        let window = self.window.get().min(most);
        (window > 0 && self.budget.has(window, now)).then_some(now + window)
    }

    /// A spin has ended after so long. If it has not found anything, the thread goes to sleep.
    pub(crate) fn note_spin(&self, found: bool, nanos: u64) {
        self.expectation.note(found);
        if found {
            self.misses.set(self.misses.get().saturating_sub(1));
        } else {
            self.leave_out.set(1 << self.misses.get());
            self.misses.set(MOST_LEFT_OUT.min(self.misses.get() + 1));
            self.budget.spend(nanos);
        }
    }

    /// So many bytes were received, or sent when a full socket had room again. A spin finds the first of them, and so
    /// makes more events of the same data. The bytes stay the same.
    #[inline(always)]
    pub(crate) fn note_bytes(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes as u64);
    }

    /// The next wait is for the rest of a long message. A spin would end at the first few bytes of it.
    #[cfg_attr(
        not(feature = "python"),
        allow(dead_code, reason = "the runtime does not see how much its tasks move")
    )]
    pub(crate) fn leave_out_next(&self) {
        self.leave_out.set(self.leave_out.get().max(1));
    }

    /// A wait without a spin has lasted so long.
    #[inline(always)]
    pub(crate) fn note_sleep(&self, nanos: u64) {
        self.expectation.note(nanos < self.window.get() * 3 / 2);
    }
}

/// Whose processor time spins must be worth: that of all who work on the events.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Clock {
    #[cfg_attr(not(feature = "python"), allow(dead_code, reason = "a runtime has several threads"))]
    Thread,
    Process,
}

impl Clock {
    /// In nanoseconds.
    fn now(self) -> u64 {
        match self {
            Clock::Thread => thread_nanos(),
            Clock::Process => process_nanos(),
        }
    }
}

/// Whether the next wait will be short, from how the last ones went on after the same four results.
///
/// So a pattern such as "two short waits, then a long one" is learned, and no spin is lost on the long ones.
#[derive(Debug, Default)]
struct Expectation {
    /// The last four results, one bit each. A set one is short.
    last: Cell<u8>,
    /// For each of those sixteen histories: how sure it is that a short wait follows.
    sure: [Cell<u8>; 16],
}

/// From here on a short wait is expected.
const LIKELY: u8 = 4;
const SUREST: u8 = 8;

impl Expectation {
    #[inline(always)]
    fn is_short(&self) -> bool {
        self.sure[usize::from(self.last.get() & 15)].get() >= LIKELY
    }

    #[inline(always)]
    fn note(&self, short: bool) {
        let last = self.last.get() & 15;
        let sure = &self.sure[usize::from(last)];
        // One long wait outweighs two short ones, because a spin for nothing costs more than another one saves.
        sure.set(if short { SUREST.min(sure.get() + 1) } else { sure.get().saturating_sub(2) });
        self.last.set(last << 1 | u8::from(short));
    }
}

/// How much time may be lost.
#[derive(Debug, Default)]
struct Budget {
    /// Negative after a spin that took longer than it should, because the system ran something else.
    left: Cell<i64>,
    /// The time up to which it has grown.
    at: Cell<u64>,
}

/// One nanosecond of so many may be lost.
const SHARE: u64 = 20;
/// The budget does not grow beyond this.
const MOST: i64 = 1_000_000;

impl Budget {
    /// Is there as much left, at `now`?
    fn has(&self, nanos: u64, now: u64) -> bool {
        let grown = signed(now.saturating_sub(self.at.replace(now)) / SHARE);
        self.left.set(MOST.min(self.left.get().saturating_add(grown)));
        self.left.get() >= signed(nanos)
    }

    fn spend(&self, nanos: u64) {
        self.left.set(self.left.get().saturating_sub(signed(nanos)));
    }
}

fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::setting::WINDOW;
    use super::*;

    const FOREVER: u64 = u64::MAX;
    const SHORT: u64 = WINDOW / 4;
    const LONG: u64 = 100 * WINDOW;

    fn without_trials(setting: Setting) -> SpinPolicy {
        SpinPolicy { trial: Trial::over(), ..SpinPolicy::new(setting, Clock::Thread) }
    }

    /// A thread that waits, and its time.
    struct Waiting {
        policy: SpinPolicy,
        now: u64,
        lost: u64,
    }

    impl Waiting {
        fn new() -> Waiting {
            Waiting { policy: without_trials(Setting::Window(WINDOW)), now: LONG, lost: 0 }
        }

        /// The next event comes after so long. Returns whether the wait began with a spin.
        fn wait(&mut self, nanos: u64) -> bool {
            let until = self.policy.is_likely().then(|| self.policy.begin(self.now, FOREVER, 0)).flatten();
            if let Some(until) = until {
                let window = until - self.now;
                assert!(window <= WINDOW);
                self.policy.note_spin(nanos <= window, nanos.min(window));
                self.lost += if nanos <= window { 0 } else { window };
            } else {
                self.policy.note_sleep(nanos);
            }
            self.now += nanos;
            until.is_some()
        }

        /// How many of so many rounds of these waits began with a spin, for each of them.
        fn rounds(&mut self, count: usize, waits: &[u64]) -> Vec<usize> {
            let mut spins = vec![0; waits.len()];
            for _ in 0..count {
                for (wait, spins) in waits.iter().zip(&mut spins) {
                    *spins += usize::from(self.wait(*wait));
                }
            }
            spins
        }
    }

    #[test]
    fn short_waits_are_learned_and_long_ones_never_spin() {
        assert!(Waiting::new().rounds(100, &[SHORT])[0] >= 90);
        assert_eq!(Waiting::new().rounds(1000, &[LONG]), [0]);
    }

    #[test]
    fn a_pattern_is_learned_so_that_its_long_waits_do_not_spin() {
        let mut waiting = Waiting::new();
        waiting.rounds(100, &[SHORT, SHORT, LONG]);
        assert_eq!(waiting.rounds(100, &[SHORT, SHORT, LONG]), [100, 100, 0]);
    }

    #[test]
    fn a_thread_that_has_nothing_more_to_do_spins_once_at_most() {
        let mut waiting = Waiting::new();
        waiting.rounds(1000, &[SHORT]);
        assert_eq!(waiting.rounds(1000, &[LONG]), [1]);
    }

    #[test]
    fn spins_that_find_nothing_become_rare() {
        // Asleep the wait looks short. Awake it is not, as with a peer on the same processor.
        let policy = without_trials(Setting::Window(WINDOW));
        let mut spins = 0;
        for wait in 0..100_000 {
            if policy.is_likely() && policy.begin(wait * 4 * WINDOW, FOREVER, 0).is_some() {
                spins += 1;
                policy.note_spin(false, WINDOW);
            } else {
                policy.note_sleep(SHORT);
            }
        }
        assert!((10..=120).contains(&spins), "{spins}");
    }

    #[test]
    fn a_spin_that_finds_something_halves_the_pause_after_the_next_that_does_not() {
        let policy = without_trials(Setting::Window(WINDOW));
        let pause = |found: usize| {
            (0..found).for_each(|_| policy.note_spin(true, 0));
            policy.note_spin(false, 0);
            (0..).find(|_| policy.begin(20 * LONG, FOREVER, 0).is_some()).unwrap()
        };
        assert_eq!([0, 0, 0, 0].map(pause), [1, 2, 4, 8]);
        assert_eq!([1, 2, 9].map(pause), [8, 4, 1]);
        assert_eq!([0; 12].map(pause)[9..], [1024; 3]);
    }

    #[test]
    fn no_more_than_a_twentieth_of_the_time_is_lost() {
        let mut waiting = Waiting::new();
        // A generator of numbers, whose high bits are random enough: three waits of four are short.
        let mut random: u64 = 1;
        for _ in 0..100_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            waiting.wait(if random >> 62 == 0 { 2 * WINDOW } else { SHORT });
        }
        assert!(
            waiting.lost > 0 && waiting.lost <= waiting.now / SHARE + MOST.unsigned_abs(),
            "{}",
            waiting.lost
        );
    }

    #[test]
    fn the_wait_for_more_of_a_long_message_does_not_spin_but_the_next_one_does() {
        let mut waiting = Waiting::new();
        waiting.rounds(20, &[SHORT]);
        waiting.policy.leave_out_next();
        assert_eq!([waiting.wait(SHORT), waiting.wait(SHORT)], [false, true]);
    }

    #[test]
    fn a_spin_ends_when_the_wait_does() {
        let mut waiting = Waiting::new();
        waiting.rounds(20, &[SHORT]);
        assert_eq!(waiting.policy.begin(waiting.now, 7, 0), Some(waiting.now + 7));
        assert_eq!(waiting.policy.begin(waiting.now, 0, 0), None);
    }

    #[test]
    fn a_thread_that_is_told_not_to_never_spins() {
        let policy = without_trials(Setting::Off);
        for now in 0..100 {
            assert!(!policy.is_likely() || policy.begin(now, FOREVER, 0).is_none());
            policy.note_sleep(0);
        }
    }
}
