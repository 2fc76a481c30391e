//! Decides when a turn polls, and how long the poll may wait.
//!
//! A poll costs as much as several callbacks, so a busy loop skips it in some turns. Native objects report each use of
//! a descriptor, and the next turn then polls. The loop cannot see how a program uses a descriptor that it watches with
//! `add_reader` or `add_writer`, and asyncio's loop would report its events in the next turn. So while there are
//! such callbacks, every turn polls (see `turn.rs`).

use std::cell::Cell;
use std::time::Duration;

use crate::reactor::Token;

/// A busy loop skips the poll in at most this many turns in a row.
const TURNS_WITHOUT_POLL: u32 = 61;
/// A busy loop polls if the last poll is longer ago than this, in nanoseconds. This limits the time that a ready socket
/// waits while callbacks schedule callbacks.
const TIME_WITHOUT_POLL: u64 = 150_000;
/// The longest timeout of a poll in seconds: a day, as in asyncio. A longer wait takes several polls.
pub(crate) const LONGEST_WAIT: f64 = 86_400.0;

#[derive(Debug, Default)]
pub(crate) struct PollPolicy {
    turns_since_poll: Cell<u32>,
    last_poll: Cell<u64>,
    /// A descriptor was used since the last poll. Because of that, another descriptor of this loop may be ready, such
    /// as a listener after a connect.
    io_since_poll: Cell<bool>,
    /// A datagram socket that had several datagrams waiting, and probably has more.
    pub(crate) reread_token: Cell<Option<Token>>,
    had_events: Cell<bool>,
}

impl PollPolicy {
    /// A run begins. Its first turn polls.
    pub(crate) fn begin_run(&self) {
        self.turns_since_poll.set(TURNS_WITHOUT_POLL);
        self.had_events.set(false);
    }

    /// May a turn that begins at `now` skip the poll? `ready` means that there are callbacks to run, `reread` that a
    /// datagram socket is read again.
    #[inline(always)]
    pub(crate) fn may_skip(&self, now: u64, ready: bool, reread: bool) -> bool {
        (reread || (ready && !self.io_since_poll.get()))
            && self.turns_since_poll.get() < TURNS_WITHOUT_POLL
            && now.wrapping_sub(self.last_poll.get()) < TIME_WITHOUT_POLL
    }

    #[inline(always)]
    pub(crate) fn note_skip(&self) {
        self.turns_since_poll.set(self.turns_since_poll.get() + 1);
    }

    /// Was the poll of this turn skipped?
    #[inline(always)]
    pub(crate) fn has_skipped(&self) -> bool {
        self.turns_since_poll.get() > 0
    }

    #[inline(always)]
    pub(crate) fn note_poll(&self, now: u64) {
        self.io_since_poll.set(false);
        self.turns_since_poll.set(0);
        self.last_poll.set(now);
    }

    /// The time of the last poll, in nanoseconds of CLOCK_MONOTONIC; 0 before the first one. While callbacks run, it is
    /// the current time to within a turn and the time that a busy loop goes without a poll.
    #[inline(always)]
    pub(crate) fn last_poll(&self) -> u64 {
        self.last_poll.get()
    }

    /// A poll was made at `now` by Python code that steps the loop.
    pub(crate) fn note_outer_poll(&self, now: u64) {
        self.last_poll.set(now);
    }

    /// Records whether the turn has events. If it has none because the poll was skipped, the last result stays.
    #[inline(always)]
    pub(crate) fn note_events(&self, any: bool, skipped: bool) {
        if any || !skipped {
            self.had_events.set(any);
        }
    }

    /// Did the last poll report events?
    #[inline(always)]
    pub(crate) fn had_events(&self) -> bool {
        self.had_events.get()
    }

    /// A descriptor was used: the next turn polls.
    #[inline(always)]
    pub(crate) fn note_io(&self) {
        self.io_since_poll.set(true);
    }
}

/// How many seconds a poll may wait for a timer that is due at `deadline`.
pub(crate) fn seconds_until(deadline: f64, now: f64) -> f64 {
    let left = deadline - now;
    // A custom clock may return NaN, with which `Duration` would panic. Then there is no wait.
    if left > 0.0 { left.min(LONGEST_WAIT) } else { 0.0 }
}

/// The timeout of a poll that Python code requests: its own timeout, but not beyond the next timer.
pub(crate) fn shorter(requested: Option<f64>, timer: Option<f64>) -> Option<Duration> {
    let requested = requested.map(|seconds| seconds_until(seconds, 0.0));
    match (requested, timer) {
        (Some(requested), Some(timer)) => Some(requested.min(timer)),
        (requested, timer) => requested.or(timer),
    }
    .map(Duration::from_secs_f64)
}

/// The rest of the timeout of a poll that ended a little early, for a second poll: test clocks that add up the timeouts
/// of `select` need the whole wait. `None` if much is left, because then something has happened.
pub(crate) fn last_part(timeout: Duration, slept: u64) -> Option<Duration> {
    let left = timeout.checked_sub(Duration::from_nanos(slept))?;
    (left <= Duration::from_millis(2) + timeout / 50).then_some(left)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of the last poll.
    const POLL: u64 = 1_000_000_000;

    fn just_polled() -> PollPolicy {
        let policy = PollPolicy::default();
        policy.begin_run();
        policy.note_poll(POLL);
        policy
    }

    #[test]
    fn the_first_turn_of_a_run_polls() {
        let policy = just_polled();
        policy.begin_run();
        assert!(!policy.may_skip(POLL, true, false));
    }

    #[test]
    fn a_turn_without_callbacks_polls_unless_a_socket_is_reread() {
        assert!(!just_polled().may_skip(POLL, false, false));
        assert!(just_polled().may_skip(POLL, false, true));
    }

    #[test]
    fn io_makes_the_next_turn_poll_once() {
        let policy = just_polled();
        assert!(policy.may_skip(POLL, true, false));
        policy.note_io();
        assert!(!policy.may_skip(POLL, true, false));
        policy.note_poll(POLL);
        assert!(policy.may_skip(POLL, true, false));
    }

    #[test]
    fn a_busy_loop_polls_after_so_many_turns_and_so_much_time() {
        let policy = just_polled();
        assert!(policy.may_skip(POLL + TIME_WITHOUT_POLL - 1, true, true));
        assert!(!policy.may_skip(POLL + TIME_WITHOUT_POLL, true, true));
        for _ in 0..TURNS_WITHOUT_POLL {
            assert!(policy.may_skip(POLL, true, true));
            policy.note_skip();
        }
        assert!(!policy.may_skip(POLL, true, true));
    }

    #[test]
    fn a_turn_without_poll_does_not_change_whether_there_were_events() {
        let policy = just_polled();
        policy.note_events(true, false);
        policy.note_events(false, true);
        assert!(policy.had_events());
        policy.note_events(false, false);
        assert!(!policy.had_events());
    }

    #[test]
    fn a_wait_is_neither_negative_nor_longer_than_a_day() {
        assert_eq!(seconds_until(3.5, 1.0), 2.5);
        assert_eq!(seconds_until(1.0, 3.5), 0.0);
        assert_eq!(seconds_until(f64::NAN, 1.0), 0.0);
        assert_eq!(seconds_until(f64::NEG_INFINITY, 1.0), 0.0);
        assert_eq!(seconds_until(f64::INFINITY, 1.0), LONGEST_WAIT);
    }

    #[test]
    fn a_requested_poll_ends_with_its_timeout_or_with_the_next_timer() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(shorter(None, None), None);
        assert_eq!(shorter(Some(2.0), None), seconds(2));
        assert_eq!(shorter(None, Some(3.0)), seconds(3));
        assert_eq!(shorter(Some(2.0), Some(3.0)), seconds(2));
        assert_eq!(shorter(Some(4.0), Some(3.0)), seconds(3));
        assert_eq!(shorter(Some(-1.0), None), seconds(0));
        assert_eq!(shorter(Some(f64::INFINITY), None), seconds(86_400));
    }

    #[test]
    fn only_the_last_part_of_a_long_poll_is_waited_for_again() {
        let second = Duration::from_secs(1);
        let nanos = |millis: u64| millis * 1_000_000;
        assert_eq!(last_part(second, nanos(990)), Some(Duration::from_millis(10)));
        assert_eq!(last_part(second, nanos(900)), None);
        assert_eq!(last_part(second, nanos(1000)), Some(Duration::ZERO));
        assert_eq!(last_part(second, nanos(1001)), None);
    }
}
