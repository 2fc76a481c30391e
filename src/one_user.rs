//! A flag for what has one user at a time.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Says whether something is in use. Who takes it sees all that the last user did with it.
#[derive(Debug, Default)]
pub(crate) struct OneUser(AtomicBool);

impl OneUser {
    pub(crate) const fn new() -> OneUser {
        OneUser(AtomicBool::new(false))
    }

    /// Returns false if it has a user.
    #[must_use]
    pub(crate) fn take(&self) -> bool {
        // Ordering: Acquire pairs with the Release in `give_back`.
        !self.0.swap(true, Acquire)
    }

    pub(crate) fn give_back(&self) {
        // Ordering: Release pairs with the Acquire in `take`.
        self.0.store(false, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_one_user_until_that_one_gives_it_back() {
        let flag = OneUser::new();
        assert!(flag.take());
        assert!(!flag.take() && !flag.take());
        flag.give_back();
        assert!(flag.take());
    }
}
