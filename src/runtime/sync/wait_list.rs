//! Futures in line, first come first served. Lives under its owner's lock.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

/// The line.
#[derive(Debug, Default)]
pub(super) struct WaitList {
    nodes: Slab<Node>,
    /// Keys of those that wait, in order. Granted ones are not in it.
    line: VecDeque<usize>,
}

#[derive(Debug)]
struct Node {
    need: usize,
    /// `None` once granted.
    waker: Option<Waker>,
    grant: Option<Grant>,
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
        self.line.is_empty()
    }

    /// Joins the line's end; the key is for the other calls and must be given back with `leave`.
    pub(super) fn join(&mut self, need: usize, waker: &Waker) -> usize {
        let key = self.nodes.insert(Node { need, waker: Some(waker.clone()), grant: None });
        self.line.push_back(key);
        key
    }

    /// Whether it was served; if not, `waker` is the one to wake.
    pub(super) fn poll(&mut self, key: usize, waker: &Waker) -> Option<Grant> {
        let node = &mut self.nodes[key];
        if node.grant.is_none() {
            match &mut node.waker {
                Some(old) => old.clone_from(waker),
                none => *none = Some(waker.clone()),
            }
        }
        node.grant
    }

    /// Leaves, served or not.
    pub(super) fn leave(&mut self, key: usize) -> Option<Grant> {
        let node = self.nodes.remove(key);
        if node.grant.is_none() {
            self.line.retain(|other| *other != key);
        }
        node.grant
    }

    /// What the first in line needs.
    pub(super) fn first_need(&self) -> Option<usize> {
        self.line.front().map(|key| self.nodes[*key].need)
    }

    /// Serves the first in line. The caller wakes it, after unlocking.
    pub(super) fn grant_first(&mut self, grant: Grant) -> Option<Waker> {
        let key = self.line.pop_front()?;
        let node = &mut self.nodes[key];
        node.grant = Some(grant);
        node.waker.take()
    }
}
