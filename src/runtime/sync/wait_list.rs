//! Futures in line, first come first served. Lives under its owner's lock.
//!
//! A doubly linked list, so that leaving costs the same everywhere in the line. No waker is woken or dropped here, as
//! that may run any code: they are handed to the owner, who has unlocked by then.

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
    /// Out of the line; its future has not noticed yet.
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
    /// It alone: if it does not use what it got, the next must have it.
    Own,
    /// With all others, or by a close.
    Shared,
}

impl WaitList {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Joins the line's end; the key is for the other calls and must be given back with `leave`.
    pub(super) fn join(&mut self, need: usize, waker: &Waker) -> usize {
        let place = Place { need, waker: waker.clone(), before: self.last, behind: None };
        let key = self.nodes.insert(Node::InLine(place));
        *self.behind(self.last) = Some(key);
        self.last = Some(key);
        key
    }

    /// How it was served; if it was not, `waker` is the one to wake, and the one before comes back.
    pub(super) fn poll(&mut self, key: usize, waker: &Waker) -> Result<Grant, Option<Waker>> {
        match &mut self.nodes[key] {
            Node::Served(grant) => Ok(*grant),
            Node::InLine(place) => Err(wakers::renew(&mut place.waker, waker)),
        }
    }

    /// Leaves: how it was served, or the waker, if it was not.
    pub(super) fn leave(&mut self, key: usize) -> Result<Grant, Waker> {
        match self.nodes.remove(key) {
            Node::Served(grant) => Ok(grant),
            Node::InLine(place) => Err(self.close_up(place)),
        }
    }

    /// What the first in line needs.
    pub(super) fn first_need(&self) -> Option<usize> {
        match self.nodes.get(self.first?) {
            Some(Node::InLine(place)) => Some(place.need),
            _ => None,
        }
    }

    /// Serves the first in line. The caller wakes it, after unlocking.
    pub(super) fn grant_first(&mut self, grant: Grant) -> Option<Waker> {
        let first = self.first?;
        match std::mem::replace(&mut self.nodes[first], Node::Served(grant)) {
            Node::InLine(place) => Some(self.close_up(place)),
            Node::Served(_) => None,
        }
    }

    /// Serves everybody with a shared grant; whom the caller wakes, after unlocking.
    pub(super) fn grant_all(&mut self) -> Vec<Waker> {
        std::iter::from_fn(|| self.grant_first(Grant::Shared)).collect()
    }

    /// Those before and behind a place that is given up are neighbours now.
    fn close_up(&mut self, place: Place) -> Waker {
        *self.behind(place.before) = place.behind;
        *self.before(place.behind) = place.before;
        place.waker
    }

    /// Who stands behind `key`, or is first.
    fn behind(&mut self, key: Option<usize>) -> &mut Option<usize> {
        match key.map(|key| &mut self.nodes[key]) {
            Some(Node::InLine(place)) => &mut place.behind,
            _ => &mut self.first,
        }
    }

    /// Who stands before `key`, or is last.
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
        /// Against a plain queue.
        #[test]
        fn a_line_is_served_in_order_whoever_leaves(steps in proptest::collection::vec((0u8..4, 0usize..20), 0..200)) {
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
