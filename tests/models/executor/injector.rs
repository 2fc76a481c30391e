//! The injector in a model. A model checker cannot see into crossbeam's.

use std::collections::VecDeque;

use crossbeam_deque::{Steal, Worker};

use super::super::shim::{Mutex, MutexGuard};
use crate::poison::unpoisoned;

pub(super) struct Injector<T>(Mutex<VecDeque<T>>);

impl<T> Injector<T> {
    pub(super) fn new() -> Injector<T> {
        Injector(Mutex::new(VecDeque::new()))
    }

    pub(super) fn push(&self, task: T) {
        self.lock().push_back(task);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn steal(&self) -> Steal<T> {
        self.lock().pop_front().map_or(Steal::Empty, Steal::Success)
    }

    pub(super) fn steal_batch_with_limit_and_pop(&self, to: &Worker<T>, limit: usize) -> Steal<T> {
        let mut tasks = self.lock();
        let Some(first) = tasks.pop_front() else { return Steal::Empty };
        let batch = tasks.len().min(limit - 1);
        tasks.drain(..batch).for_each(|task| to.push(task));
        Steal::Success(first)
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        unpoisoned(self.0.lock())
    }
}
