//! A loop's processor time by label, while somebody asks for it (`/labels` of the window).
//!
//! - The sums are in the loop's entry of the [registry](super::registry). A *question* has a number; sums of an earlier
//!   one count no more.
//! - The loop's thread begins and adds, and the window's thread takes the sums at the end, without the GIL. It reads
//!   the clock of the loop's thread for what runs then, so it waits for nobody.
//! - Nobody waits for the lock: it may stay locked in a forked child. A switch that does not get it is left out, so its
//!   time counts for what ran before.
//! - A job in a thread without a loop has sums of its own while it runs ([`JobSums`]), which the next one uses after it.
//! - No Python code runs under the lock, and no Python object is kept.
//! - To read the clock of a thread takes a system call. What the loop itself does contains its waits, so the clock is
//!   read at its end. What runs then does not wait: less than [`SHORT`] counts as it passes, without that call. Where
//!   the thread did not run meanwhile, what was counted too much is taken from what the loop does next, so the sum
//!   stays right.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::fork::ForkMutex;
use crate::one_user::OneUser;

/// How many labels a loop has at most. Further ones are counted together.
const MOST: usize = 1_000;
/// How many characters of a label are kept.
const LONGEST: usize = 200;
/// Less than so many nanoseconds are counted as they pass.
const SHORT: u64 = 50_000;
/// How often the window tries to get the lock, which is held for less than a microsecond.
const TRIES: usize = 1_000;

/// The loop itself: it polls, and looks for what is due.
pub(crate) const LOOP: usize = 0;
/// Callbacks, steps and events without a label.
pub(crate) const UNLABELLED: usize = 1;
/// The labels for which there was no room.
const OTHER: usize = 2;
const FIRST: usize = 3;

/// The number of the question that is asked now; 0 without one.
static QUESTION: AtomicU64 = AtomicU64::new(0);
static QUESTIONS: AtomicU64 = AtomicU64::new(0);

/// The number of the question that is asked now; 0 without one.
#[inline(always)]
pub(crate) fn question() -> u64 {
    // Relaxed: the sums are under a lock.
    QUESTION.load(Relaxed)
}

/// Begins a question. There is one at a time.
pub(crate) fn begin() -> u64 {
    let number = QUESTIONS.fetch_add(1, Relaxed) + 1;
    QUESTION.store(number, Relaxed);
    number
}

/// Ends the question. Each loop notices it at its next poll.
pub(crate) fn end() {
    QUESTION.store(0, Relaxed);
}

/// In a forked child nobody asks, and the jobs of the parent's threads do not run.
pub(crate) fn forked() {
    end();
    // SAFETY: the child has one thread, and that is not in a function of this file, because it forks.
    unsafe { JOBS.renew(Vec::new()) };
}

/// As many as jobs have run at a time while somebody asked. Never freed.
static JOBS: ForkMutex<Vec<&'static JobSums>> = ForkMutex::new(Vec::new());

/// The sums of the jobs that run in threads without a loop, one after the other.
#[derive(Debug, Default)]
pub(crate) struct JobSums {
    pub(crate) labels: Labels,
    user: OneUser,
}

impl JobSums {
    /// Sums that no other job uses, until they are given back.
    pub(crate) fn take() -> &'static JobSums {
        let mut jobs = JOBS.lock();
        if let Some(free) = jobs.iter().find(|job| job.user.take()) {
            return free;
        }
        let made: &'static JobSums = Box::leak(Box::default());
        let _ = made.user.take();
        jobs.push(made);
        made
    }

    /// The job has ended. Its sums stay until the question ends.
    pub(crate) fn give_back(&self) {
        self.user.give_back();
    }
}

/// Takes the sums of jobs for a question that has ended.
pub(crate) fn take_jobs(question: u64) -> Vec<LabelSums> {
    let jobs = JOBS.lock().clone();
    let take = |job: &JobSums| {
        let mut sums = job.labels.take(question)?;
        // There is no loop: that is what it took to begin to count.
        sums.times[UNLABELLED] += std::mem::take(&mut sums.times[LOOP]);
        Some(sums)
    };
    jobs.into_iter().filter_map(take).collect()
}

/// The sums of a loop, or none.
#[derive(Debug, Default)]
pub(crate) struct Labels(Mutex<Option<Box<LabelSums>>>);

/// A moment on two clocks, in nanoseconds: that of the thread's processor time, and the monotonic one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) cpu: u64,
    pub(crate) now: u64,
}

#[derive(Debug)]
pub(crate) struct LabelSums {
    question: u64,
    /// The loop's thread by the system's number.
    pub(crate) thread: u64,
    /// `None` while the loop does not run.
    running: Option<LoopRun>,
    /// The sum to which time is added now.
    current: usize,
    /// Processor time by what was done.
    times: Vec<u64>,
    names: Vec<String>,
    /// By the hash of the label.
    numbers: HashMap<u64, usize>,
    /// How long the loop ran, in nanoseconds.
    pub(crate) measured: u64,
}

#[derive(Clone, Copy, Debug)]
struct LoopRun {
    /// When it began, on the monotonic clock.
    began: u64,
    /// When the loop began to do what it does now.
    since: Moment,
}

impl Labels {
    pub(super) fn clear(&self) {
        self.with(|sums| *sums = None);
    }

    fn with<R>(&self, change: impl FnOnce(&mut Option<Box<LabelSums>>) -> R) -> Option<R> {
        let mut guard: MutexGuard<'_, _> = match self.0.try_lock() {
            Ok(guard) => guard,
            // No code under the lock leaves a change half done.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(change(&mut guard))
    }

    /// Calls `change` with the sums for the question that is asked now. `None` if there are none.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut LabelSums) -> R) -> Option<R> {
        let question = question();
        self.with(|sums| sums.as_deref_mut().filter(|sums| sums.question == question).map(change))?
    }

    /// The loop begins to run in a thread, or notices a question while it runs. Whether there is one.
    pub(crate) fn begin(&self, thread: u64, at: Moment) -> bool {
        let question = question();
        let begun = self.with(|sums| {
            if question != 0 {
                let sums = match sums {
                    Some(sums) if sums.question == question => sums,
                    _ => sums.insert(Box::new(LabelSums::new(question))),
                };
                sums.begin(thread, at);
            }
        });
        question != 0 && begun.is_some()
    }

    /// The sums for a question that has ended. `None` if the loop has not noticed it.
    pub(crate) fn take(&self, question: u64) -> Option<LabelSums> {
        let taken = (0..TRIES).find_map(|_| {
            let taken = self.with(Option::take);
            if taken.is_none() {
                std::thread::yield_now();
            }
            taken
        });
        taken.flatten().filter(|sums| sums.question == question).map(|sums| *sums)
    }
}

impl LabelSums {
    fn new(question: u64) -> LabelSums {
        LabelSums {
            question,
            thread: 0,
            running: None,
            current: LOOP,
            times: vec![0; FIRST],
            names: Vec::new(),
            numbers: HashMap::new(),
            measured: 0,
        }
    }

    fn begin(&mut self, thread: u64, at: Moment) {
        if self.running.is_none() {
            (self.thread, self.current, self.running) =
                (thread, LOOP, Some(LoopRun { began: at.now, since: at }));
        }
    }

    /// The loop does not run any more, or another one runs in its thread.
    pub(crate) fn pause(&mut self, at: Moment) {
        if let Some(run) = self.running.take() {
            self.times[self.current] += at.cpu.saturating_sub(run.since.cpu);
            self.measured += at.now.saturating_sub(run.began);
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Does something else begin, if this is next?
    #[inline(always)]
    pub(crate) fn changes(&self, next: usize) -> bool {
        self.current != next || self.running.is_none()
    }

    /// Something else begins. The clocks are read only if it does: the monotonic one, and that of the thread.
    pub(crate) fn switch(&mut self, next: usize, now: impl FnOnce() -> u64, cpu: impl FnOnce() -> u64) {
        if !self.changes(next) {
            return;
        }
        let now = now();
        match &mut self.running {
            Some(run) => {
                let elapsed = now.saturating_sub(run.since.now);
                let at = if self.current != LOOP && elapsed < SHORT {
                    run.since.cpu + elapsed
                } else {
                    // Not back, where too much was counted.
                    cpu().max(run.since.cpu)
                };
                self.times[self.current] += at - run.since.cpu;
                run.since = Moment { cpu: at, now };
            }
            None => {
                let at = Moment { cpu: cpu(), now };
                self.running = Some(LoopRun { began: now, since: at });
            }
        }
        self.current = next;
    }

    /// The number of a label, by the hash of its text.
    pub(crate) fn number(&mut self, key: u64, text: impl FnOnce() -> Option<String>) -> usize {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        if self.numbers.len() >= MOST {
            return OTHER;
        }
        let Some(text) = text() else { return OTHER };
        let name: String = text.chars().take(LONGEST).collect();
        let place = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.times.push(0);
            self.names.len() - 1
        });
        self.numbers.insert(key, FIRST + place);
        FIRST + place
    }

    /// Adds what others have counted for the same question.
    pub(crate) fn add(&mut self, other: &LabelSums) {
        (0..FIRST).for_each(|place| self.times[place] += other.times[place]);
        for (name, time) in other.names.iter().zip(&other.times[FIRST..]) {
            match self.names.iter().position(|known| known == name) {
                Some(place) => self.times[FIRST + place] += time,
                None => {
                    self.names.push(name.clone());
                    self.times.push(*time);
                }
            }
        }
        self.measured += other.measured;
    }

    // -- the sums, in nanoseconds

    pub(crate) fn all(&self) -> u64 {
        self.times.iter().sum()
    }

    pub(crate) fn of_loop(&self) -> u64 {
        self.times[LOOP]
    }

    pub(crate) fn unlabelled(&self) -> u64 {
        self.times[UNLABELLED]
    }

    pub(crate) fn other(&self) -> u64 {
        self.times[OTHER]
    }

    /// The labels that took time, the longest first.
    pub(crate) fn labels(&self) -> Vec<(&str, u64)> {
        let times = self.times[FIRST..].iter().copied();
        let mut labels: Vec<_> = self.names.iter().map(String::as_str).zip(times).collect();
        labels.sort_by(|(one, first), (other, second)| second.cmp(first).then(one.cmp(other)));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(cpu: u64) -> Moment {
        Moment { cpu, now: 2 * cpu }
    }

    #[test]
    fn each_moment_counts_for_what_ran() {
        let mut sums = LabelSums::new(1);
        sums.begin(7, at(10));
        let one = sums.number(5, || Some("one".to_owned()));
        sums.switch(one, || 2 * 15, || 15);
        sums.switch(one, || unreachable!("nothing else begins"), || unreachable!());
        sums.switch(UNLABELLED, || 2 * (45 + SHORT), || 45);
        sums.pause(at(50 + SHORT));
        // Time between two runs is not the loop's.
        sums.begin(7, at(90 + SHORT));
        sums.pause(at(91 + SHORT));
        assert_eq!((sums.of_loop(), sums.other()), (6, 0));
        assert_eq!((sums.unlabelled(), sums.labels()), (5 + SHORT, vec![("one", 30)]));
        assert_eq!((sums.all(), sums.measured), (41 + SHORT, 2 * (SHORT + 41)));
    }

    #[test]
    fn short_times_count_as_they_pass_and_what_was_too_much_is_taken_from_the_loop() {
        let mut sums = LabelSums::new(1);
        let one = sums.number(5, || Some("one".to_owned()));
        let unread = || -> u64 { unreachable!("it was short") };
        sums.begin(7, Moment { cpu: 0, now: 0 });
        // The loop has waited.
        sums.switch(one, || 900, || 100);
        sums.switch(UNLABELLED, || 1_700, unread);
        sums.switch(LOOP, || 1_900, unread);
        assert_eq!((sums.of_loop(), sums.unlabelled(), sums.labels()[0].1), (100, 200, 800));
        // The thread was not running for a part of that.
        sums.switch(one, || 2_000, || 800);
        assert_eq!((sums.of_loop(), sums.all()), (100, 1_100));
        sums.switch(LOOP, || 2_010 + SHORT, || 1_200);
        assert_eq!(sums.labels()[0].1, 900);
        sums.pause(Moment { cpu: 1_300, now: 3_000 + SHORT });
        assert_eq!((sums.of_loop(), sums.all()), (200, 1_300));
    }

    #[test]
    fn labels_without_room_are_counted_together_and_long_ones_are_cut() {
        let mut sums = LabelSums::new(1);
        for key in 0..MOST as u64 {
            assert_eq!(
                sums.number(key, || Some(format!("{key:03}{}", "é".repeat(300)))),
                FIRST + key as usize
            );
        }
        assert_eq!(sums.number(u64::MAX, || Some("more".to_owned())), OTHER);
        assert_eq!(sums.labels()[0].0.chars().count(), LONGEST);
    }

    #[test]
    fn labels_that_differ_only_in_what_is_cut_are_one() {
        let mut sums = LabelSums::new(1);
        let of = |end: &str| Some("é".repeat(LONGEST) + end);
        assert_eq!(sums.number(1, || of("one")), sums.number(2, || of("other")));
        assert_eq!(sums.labels().len(), 1);
    }

    #[test]
    fn sums_are_added_by_label() {
        let of = |names: &[&str]| {
            let mut sums = LabelSums::new(1);
            sums.begin(7, at(0));
            for (place, name) in (1..).zip(names) {
                let number = sums.number(name.len() as u64, || Some((*name).to_owned()));
                sums.switch(number, || 2 * SHORT * place, || place);
            }
            sums.pause(at(100));
            sums
        };
        let mut sums = of(&["one", "four"]);
        sums.add(&of(&["four", "seven"]));
        assert_eq!(sums.labels(), [("four", 98 + 1), ("seven", 98), ("one", 1)]);
        assert_eq!((sums.of_loop(), sums.all(), sums.measured), (2, 200, 400));
    }

    #[test]
    fn jobs_that_run_at_a_time_have_sums_of_their_own() {
        let (one, other) = (JobSums::take(), JobSums::take());
        assert!(!std::ptr::eq(one, other));
        other.give_back();
        assert!(std::ptr::eq(JobSums::take(), other));
        [one, other].into_iter().for_each(JobSums::give_back);
    }

    #[test]
    fn the_sums_of_an_earlier_question_count_no_more() {
        let labels = Labels(Mutex::new(Some(Box::new(LabelSums::new(u64::MAX)))));
        assert!(labels.change(|_| ()).is_none());
        assert!(labels.take(1).is_none());
    }
}
