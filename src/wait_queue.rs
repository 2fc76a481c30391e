//! A line of waiters, first come, first served. The lock of its owner guards it.
//!
//! A waiter is what its owner wakes: a waker, a task of a loop, a thread. It is in one of three states:
//!
//! - *waiting*: in the line.
//! - *notified*: taken out of the line alone. It looks whether there is something for it, and consumes the
//!   notification. If another was faster, it joins the line at its earlier place, so that it is not overtaken twice by
//!   those behind it. If it leaves before that, its owner passes the notification on.
//! - *served*: it has consumed its notification, or was taken out of the line with all others. The line has no trace of
//!   it.
//!
//! Leaving costs the same everywhere in the line, because it is a doubly linked list. Nothing here wakes or drops a
//! waiter, because that may run foreign code: waiters are returned to the owner, which wakes or drops them after it has
//! unlocked.

use slab::Slab;

/// Where a waiter is in the line: those with smaller numbers came earlier. No two waiters of a line ever have the same
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    number: u64,
    key: usize,
}

/// The state in which a waiter has left.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Left<W> {
    Waiting(W),
    /// It was notified, and has not consumed that.
    Notified,
    Served,
}

#[derive(Debug)]
pub(crate) struct WaitQueue<W> {
    nodes: Slab<Node<W>>,
    first: Option<usize>,
    last: Option<usize>,
    /// The number of the waiter that came last.
    number: u64,
    /// The one that went back last: those that were notified together go back one after the other.
    back: Option<Place>,
}

#[derive(Debug)]
struct Node<W> {
    number: u64,
    /// `None` if the waiter is notified.
    waiting: Option<Waiting<W>>,
}

#[derive(Debug)]
struct Waiting<W> {
    waiter: W,
    before: Option<usize>,
    behind: Option<usize>,
}

impl<W> Default for WaitQueue<W> {
    fn default() -> WaitQueue<W> {
        WaitQueue { nodes: Slab::new(), first: None, last: None, number: 0, back: None }
    }
}

impl<W> WaitQueue<W> {
    /// Is nobody in the line?
    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first in line.
    pub(crate) fn first(&self) -> Option<&W> {
        self.waiters().next()
    }

    /// Those in the line, in order.
    pub(crate) fn waiters(&self) -> impl Iterator<Item = &W> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            let waiting = self.nodes.get(next?)?.waiting.as_ref()?;
            next = waiting.behind;
            Some(&waiting.waiter)
        })
    }

    /// Joins the end of the line, or goes back to an earlier place.
    pub(crate) fn join(&mut self, earlier: Option<Place>, waiter: W) -> Place {
        debug_assert!(earlier.is_none_or(|place| self.waiting(place).is_none()), "it waits already");
        let (number, before) = match earlier {
            None => {
                self.number += 1;
                (self.number, self.last)
            }
            Some(place) => {
                self.consume(place);
                (place.number, self.last_before(place.number))
            }
        };
        let behind = *self.behind(before);
        let key = self.nodes.insert(Node { number, waiting: Some(Waiting { waiter, before, behind }) });
        *self.behind(before) = Some(key);
        *self.before(behind) = Some(key);
        let place = Place { number, key };
        if earlier.is_some() {
            self.back = Some(place);
        }
        place
    }

    /// The last in line with a smaller number.
    fn last_before(&self, number: u64) -> Option<usize> {
        self.search(number).last()
    }

    /// Those with a smaller number that a search for the last of them passes. It begins at the end of the line if all
    /// have one, else at the one that went back before this one, or at the beginning: one that goes back was among the
    /// first.
    fn search(&self, number: u64) -> impl Iterator<Item = usize> {
        let is_smaller = move |key: &usize| self.nodes.get(*key).is_some_and(|node| node.number < number);
        let back = || self.back.filter(|place| self.waiting(*place).is_some()).map(|place| place.key);
        let begin = self.last.filter(is_smaller).or_else(|| back().filter(is_smaller)).or(self.first);
        std::iter::successors(begin, |key| self.nodes.get(*key)?.waiting.as_ref()?.behind)
            .take_while(is_smaller)
    }

    fn waiting(&self, place: Place) -> Option<&Waiting<W>> {
        self.nodes.get(place.key).filter(|node| node.number == place.number)?.waiting.as_ref()
    }

    /// The waiter at this place, unless it was notified or served.
    pub(crate) fn waiter(&mut self, place: Place) -> Option<&mut W> {
        let waiting =
            self.nodes.get_mut(place.key).filter(|node| node.number == place.number)?.waiting.as_mut();
        waiting.map(|waiting| &mut waiting.waiter)
    }

    /// Notifies the first in line, which the caller wakes after unlocking.
    pub(crate) fn notify_first(&mut self) -> Option<(Place, W)> {
        let key = self.first?;
        let node = self.nodes.get_mut(key)?;
        let (number, waiting) = (node.number, node.waiting.take()?);
        Some((Place { number, key }, self.close_up(waiting)))
    }

    /// Serves everybody in the line. The caller wakes them after unlocking.
    pub(crate) fn serve_all(&mut self) -> Vec<W> {
        let mut all = Vec::with_capacity(self.nodes.len());
        while let Some((place, waiter)) = self.notify_first() {
            self.consume(place);
            all.push(waiter);
        }
        if self.nodes.is_empty() {
            // Gives the memory of a long line back.
            self.nodes = Slab::new();
        }
        all
    }

    /// Uses a notification. Returns whether there was one.
    pub(crate) fn consume(&mut self, place: Place) -> bool {
        let is_notified = self
            .nodes
            .get(place.key)
            .is_some_and(|node| node.number == place.number && node.waiting.is_none());
        if is_notified {
            self.nodes.remove(place.key);
        }
        is_notified
    }

    /// Leaves the line.
    pub(crate) fn leave(&mut self, place: Place) -> Left<W> {
        if self.nodes.get(place.key).is_none_or(|node| node.number != place.number) {
            return Left::Served;
        }
        match self.nodes.remove(place.key).waiting {
            Some(waiting) => Left::Waiting(self.close_up(waiting)),
            None => Left::Notified,
        }
    }

    /// Forgets all waiters without dropping them.
    #[cfg_attr(not(feature = "python"), allow(dead_code, reason = "for a forked child of a Python process"))]
    pub(crate) fn leak(&mut self) {
        std::mem::forget(std::mem::take(&mut self.nodes));
        (self.first, self.last, self.back) = (None, None, None);
    }

    /// Links the neighbours of a waiter that is out of the line to each other.
    fn close_up(&mut self, waiting: Waiting<W>) -> W {
        *self.behind(waiting.before) = waiting.behind;
        *self.before(waiting.behind) = waiting.before;
        waiting.waiter
    }

    /// The link of `key` to the one behind it, or the link to the first if `key` is `None`.
    fn behind(&mut self, key: Option<usize>) -> &mut Option<usize> {
        match key.and_then(|key| self.nodes.get_mut(key)?.waiting.as_mut()) {
            Some(waiting) => &mut waiting.behind,
            None => &mut self.first,
        }
    }

    /// The link of `key` to the one before it, or the link to the last if `key` is `None`.
    fn before(&mut self, key: Option<usize>) -> &mut Option<usize> {
        match key.and_then(|key| self.nodes.get_mut(key)?.waiting.as_mut()) {
            Some(waiting) => &mut waiting.before,
            None => &mut self.last,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_waiter_that_comes_back_has_its_place_again() {
        let mut line = WaitQueue::default();
        let [first, second, third] = ["first", "second", "third"].map(|name| line.join(None, name));
        assert_eq!(line.notify_first(), Some((first, "first")));
        assert_eq!(line.notify_first(), Some((second, "second")));
        let second = line.join(Some(second), "second");
        let first = line.join(Some(first), "first");
        assert_eq!(line.waiters().copied().collect::<Vec<_>>(), ["first", "second", "third"]);
        assert_eq!(line.leave(second), Left::Waiting("second"));
        assert_eq!(line.serve_all(), ["first", "third"]);
        assert_eq!([first, second, third].map(|place| line.leave(place)), [const { Left::Served }; 3]);
    }

    #[test]
    fn a_place_is_nobody_elses_after_its_waiter_was_served() {
        let mut line = WaitQueue::default();
        let old = line.join(None, "old");
        line.serve_all();
        let new = line.join(None, "new");
        assert!(!line.consume(old) && line.waiter(old).is_none() && line.leave(old) == Left::Served);
        line.leak();
        assert!(line.is_empty() && line.leave(new) == Left::Served);
        let last = line.join(None, "last");
        assert_eq!((line.leave(new), line.leave(last)), (Left::Served, Left::Waiting("last")));
    }

    #[test]
    fn going_back_in_order_passes_one_waiter_each() {
        for notified in [20, 30] {
            let mut line = WaitQueue::default();
            for name in 0..30 {
                line.join(None, name);
            }
            let places: Vec<_> = (0..notified).filter_map(|_| line.notify_first()).collect();
            for (place, name) in places {
                assert!(line.search(place.number).count() <= 1);
                line.join(Some(place), name);
            }
            assert!(line.waiters().copied().eq(0..30));
        }
    }

    #[test]
    fn a_line_that_was_served_gives_its_memory_back() {
        let mut line = WaitQueue::default();
        for name in 0..1000 {
            line.join(None, name);
        }
        assert_eq!(line.serve_all().len(), 1000);
        assert_eq!(line.nodes.capacity(), 0);
    }

    proptest! {
        /// Compares the line with plain lists of numbers: of those that wait, and of those that are notified.
        #[test]
        fn waiters_are_notified_in_the_order_of_their_places(
            steps in proptest::collection::vec((0_u8..6, 0_usize..20), 0..200),
        ) {
            let (mut line, mut waiting, mut notified) = (WaitQueue::default(), Vec::new(), Vec::new());
            for (step, number) in steps {
                match step {
                    0 | 1 => waiting.push((line.join(None, line.number + 1), line.number)),
                    2 if !waiting.is_empty() => {
                        let (place, number) = waiting.remove(number % waiting.len());
                        prop_assert_eq!(line.leave(place), Left::Waiting(number));
                    }
                    3 if !notified.is_empty() => {
                        let (place, number) = notified.remove(number % notified.len());
                        prop_assert_eq!(line.leave(place), Left::Notified);
                        prop_assert_eq!((line.leave(place), number), (Left::Served, number));
                    }
                    4 if !notified.is_empty() => {
                        let (place, number) = notified.remove(number % notified.len());
                        waiting.push((line.join(Some(place), number), number));
                        waiting.sort_by_key(|(_, number)| *number);
                    }
                    _ => {
                        let first = line.notify_first();
                        prop_assert_eq!(first.map(|(_, number)| number), waiting.first().map(|(_, number)| *number));
                        if first.is_some() {
                            notified.push(waiting.remove(0));
                        }
                    }
                }
                prop_assert_eq!(line.first().copied(), waiting.first().map(|(_, number)| *number));
                prop_assert_eq!(line.is_empty(), waiting.is_empty());
                prop_assert!(line.waiters().copied().eq(waiting.iter().map(|(_, number)| *number)));
            }
            for (place, number) in &mut waiting {
                prop_assert_eq!(line.waiter(*place), Some(number));
            }
            for (place, _) in notified {
                prop_assert!(line.waiter(place).is_none());
                prop_assert!(line.consume(place) && !line.consume(place));
                prop_assert_eq!(line.leave(place), Left::Served);
            }
            prop_assert_eq!(line.serve_all(), waiting.iter().map(|(_, number)| *number).collect::<Vec<_>>());
            prop_assert!(line.nodes.is_empty());
        }
    }
}
