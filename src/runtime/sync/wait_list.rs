//! A line of waiting futures, first come, first served. Its owner's lock guards it.
//!
//! It is a doubly linked list, so leaving costs the same everywhere in the line. It never wakes or drops a
//! waker, because that may run foreign code: it returns wakers to the owner, which wakes or drops them after it
//! has unlocked.

use std::task::Waker;

use slab::Slab;

use crate::runtime::wakers;

/// The line.
#[derive(Debug, Default)]
pub(super) struct WaitList {
    nodes: Slab<Node>,
    first: Option<usize>,
    last: Option<usize>,
}

#[derive(Debug)]
enum Node {
    InLine(Place),
    /// Out of the line. Its future has not noticed yet.
    Served(Grant),
}

#[derive(Debug)]
struct Place {
    need: usize,
    waker: Waker,
    before: Option<usize>,
    behind: Option<usize>,
}

/// How a waiter was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grant {
    /// It was served alone. If it does not use what it got, the next one must get that.
    Own,
    /// It was served with all others, or by a close.
    Shared,
}

impl WaitList {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Joins the end of the line. Returns a key for the other calls; the key must be given back with `leave`.
    pub(super) fn join(&mut self, need: usize, waker: &Waker) -> usize {
        let place = Place { need, waker: waker.clone(), before: self.last, behind: None };
        let key = self.nodes.insert(Node::InLine(place));
        *self.behind(self.last) = Some(key);
        self.last = Some(key);
        key
    }

    /// Returns how it was served. If it was not, stores `waker` as the one to wake, and returns the earlier
    /// one.
    pub(super) fn poll(&mut self, key: usize, waker: &Waker) -> Result<Grant, Option<Waker>> {
        match &mut self.nodes[key] {
            Node::Served(grant) => Ok(*grant),
            Node::InLine(place) => Err(wakers::renew(&mut place.waker, waker)),
        }
    }

    /// Leaves the line. Returns how it was served, or the waker if it was not.
    pub(super) fn leave(&mut self, key: usize) -> Result<Grant, Waker> {
        match self.nodes.remove(key) {
            Node::Served(grant) => Ok(grant),
            Node::InLine(place) => Err(self.close_up(place)),
        }
    }

    /// Returns the need of the first in line.
    pub(super) fn first_need(&self) -> Option<usize> {
        match self.nodes.get(self.first?) {
            Some(Node::InLine(place)) => Some(place.need),
            _ => None,
        }
    }

    /// Serves the first in line. The caller wakes the returned waker after unlocking.
    pub(super) fn grant_first(&mut self, grant: Grant) -> Option<Waker> {
        let first = self.first?;
        match std::mem::replace(&mut self.nodes[first], Node::Served(grant)) {
            Node::InLine(place) => Some(self.close_up(place)),
            Node::Served(_) => None,
        }
    }

    /// Serves everybody with a shared grant. The caller wakes the returned wakers after unlocking.
    pub(super) fn grant_all(&mut self) -> Vec<Waker> {
        std::iter::from_fn(|| self.grant_first(Grant::Shared)).collect()
    }

    /// Links the neighbours of a removed place to each other.
    fn close_up(&mut self, place: Place) -> Waker {
        *self.behind(place.before) = place.behind;
        *self.before(place.behind) = place.before;
        place.waker
    }

    /// Returns the link of `key` to the one behind it, or the link to the first if `key` is None.
    fn behind(&mut self, key: Option<usize>) -> &mut Option<usize> {
        match key.map(|key| &mut self.nodes[key]) {
            Some(Node::InLine(place)) => &mut place.behind,
            _ => &mut self.first,
        }
    }

    /// Returns the link of `key` to the one before it, or the link to the last if `key` is None.
    fn before(&mut self, key: Option<usize>) -> &mut Option<usize> {
        match key.map(|key| &mut self.nodes[key]) {
            Some(Node::InLine(place)) => &mut place.before,
            _ => &mut self.last,
        }
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the list with a plain queue.
        #[test]
        fn a_line_is_served_in_order_whatever_place_leaves_it(steps in proptest::collection::vec((0u8..4, 0usize..20), 0..200)) {
            let (mut line, mut model, mut served) = (WaitList::default(), VecDeque::new(), Vec::new());
            for (step, number) in steps {
                match step {
                    0 | 1 => model.push_back((line.join(number, Waker::noop()), number)),
                    2 if !model.is_empty() => {
                        let (key, _) = model.remove(number % model.len()).unwrap();
                        prop_assert!(line.leave(key).is_err());
                    }
                    _ => {
                        prop_assert_eq!(line.grant_first(Grant::Own).is_some(), !model.is_empty());
                        served.extend(model.pop_front());
                    }
                }
                prop_assert_eq!(line.first_need(), model.front().map(|(_, need)| *need));
                prop_assert_eq!(line.is_empty(), model.is_empty());
            }
            prop_assert_eq!(line.grant_all().len(), model.len());
            for (key, _) in served {
                prop_assert_eq!(line.leave(key).unwrap(), Grant::Own);
            }
            for (key, _) in model {
                prop_assert_eq!(line.poll(key, Waker::noop()).unwrap(), Grant::Shared);
                prop_assert_eq!(line.leave(key).unwrap(), Grant::Shared);
            }
        }
    }
}
