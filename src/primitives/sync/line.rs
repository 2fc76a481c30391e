//! A line of waiters, first come, first served. The lock of its owner guards it.
//!
//! A waiter that is notified leaves the line, and looks whether there is something for it. If another has been faster, it
//! goes back to the place that it had, so that it is not overtaken twice by those behind it. A waiter that leaves while
//! it is notified has to pass the notification on.
//!
//! In a forked child the waiters are tasks and threads of the parent. The first use of the line forgets them.

use std::collections::VecDeque;

use crate::fork::Owner;

/// Where a waiter is in the line: those with smaller numbers came earlier. No two waiters of a line ever have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

/// What a waiter was when it left.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Left<W> {
    Waiting(W),
    /// It was notified, and has not used that.
    Notified,
    /// It was served with all others, or has used its notification.
    Served,
}

#[derive(Debug)]
pub(super) struct Line<W> {
    next: u64,
    /// Sorted by place.
    waiting: VecDeque<(Place, W)>,
    /// Those that were notified, and have neither come back nor left. Sorted.
    notified: VecDeque<Place>,
    owner: Owner,
}

impl<W> Line<W> {
    pub(super) fn new() -> Line<W> {
        Line { next: 0, waiting: VecDeque::new(), notified: VecDeque::new(), owner: Owner::this_process() }
    }

    pub(super) fn waiters(&self) -> impl Iterator<Item = &W> {
        self.waiting.iter().map(|(_, waiter)| waiter)
    }

    /// Forgets the waiters of a parent process.
    fn check_process(&mut self) {
        if !self.owner.is_this_process() {
            self.owner.adopt();
            // Dropping them would release objects and descriptors that the parent's loop still uses here.
            std::mem::forget((std::mem::take(&mut self.waiting), std::mem::take(&mut self.notified)));
        }
    }

    /// Joins the end of the line, or goes back to an earlier place.
    pub(super) fn join(&mut self, place: Option<Place>, waiter: W) -> Place {
        self.check_process();
        let place = place.unwrap_or_else(|| {
            self.next += 1;
            Place(self.next)
        });
        self.consume(place);
        let index = self.waiting.partition_point(|(other, _)| *other < place);
        self.waiting.insert(index, (place, waiter));
        place
    }

    /// Takes the first waiter out of the line. The caller wakes it after unlocking.
    pub(super) fn notify_first(&mut self) -> Option<(Place, W)> {
        if self.waiting.is_empty() {
            return None;
        }
        self.check_process();
        let (place, waiter) = self.waiting.pop_front()?;
        let index = self.notified.partition_point(|other| *other < place);
        self.notified.insert(index, place);
        Some((place, waiter))
    }

    /// Takes all waiters out of the line. The caller wakes them after unlocking.
    pub(super) fn serve_all(&mut self) -> VecDeque<(Place, W)> {
        self.check_process();
        std::mem::take(&mut self.waiting)
    }

    pub(super) fn is_waiting(&mut self, place: Place) -> bool {
        self.check_process();
        self.find(place).is_some()
    }

    fn find(&self, place: Place) -> Option<usize> {
        self.waiting.binary_search_by_key(&place, |(other, _)| *other).ok()
    }

    /// Uses a notification. Returns whether there was one.
    pub(super) fn consume(&mut self, place: Place) -> bool {
        let found = self.notified.binary_search(&place);
        found.map(|index| self.notified.remove(index)).is_ok()
    }

    /// Leaves the line.
    pub(super) fn leave(&mut self, place: Place) -> Left<W> {
        self.check_process();
        if self.consume(place) {
            return Left::Notified;
        }
        match self.find(place).and_then(|index| self.waiting.remove(index)) {
            Some((_, waiter)) => Left::Waiting(waiter),
            None => Left::Served,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_waiter_that_comes_back_has_its_place_again() {
        let mut line = Line::new();
        let [first, second, third] = ["first", "second", "third"].map(|name| line.join(None, name));
        assert_eq!(line.notify_first(), Some((first, "first")));
        assert_eq!(line.notify_first(), Some((second, "second")));
        assert_eq!(line.join(Some(second), "second"), second);
        assert_eq!(line.join(Some(first), "first"), first);
        assert_eq!(line.serve_all(), [(first, "first"), (second, "second"), (third, "third")]);
        assert_eq!(line.leave(first), Left::Served);
    }

    proptest! {
        /// Compares the line with a plain list of places, and a set of those that are notified.
        #[test]
        fn notifications_go_in_the_order_of_places(steps in proptest::collection::vec((0_u8..5, 0_usize..20), 0..200)) {
            let (mut line, mut waiting, mut notified) = (Line::new(), Vec::new(), Vec::new());
            for (step, number) in steps {
                match step {
                    0 | 1 => waiting.push(line.join(None, ())),
                    2 if !waiting.is_empty() => {
                        let place = waiting.remove(number % waiting.len());
                        prop_assert_eq!(line.leave(place), Left::Waiting(()));
                    }
                    3 if !notified.is_empty() => {
                        let place = notified.remove(number % notified.len());
                        if number % 2 == 0 {
                            line.join(Some(place), ());
                            waiting.push(place);
                            waiting.sort();
                        } else {
                            prop_assert_eq!(line.leave(place), Left::Notified);
                        }
                    }
                    _ => {
                        let first = line.notify_first().map(|(place, ())| place);
                        prop_assert_eq!(first, waiting.first().copied());
                        if let Some(first) = first {
                            waiting.remove(0);
                            notified.push(first);
                        }
                    }
                }
            }
            prop_assert_eq!(line.waiters().count(), waiting.len());
            for place in waiting {
                prop_assert!(line.is_waiting(place));
            }
            for place in notified {
                prop_assert!(!line.is_waiting(place));
                prop_assert!(line.consume(place));
                prop_assert_eq!(line.leave(place), Left::Served);
            }
        }
    }
}
