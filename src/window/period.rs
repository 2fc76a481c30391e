//! Requests about the next seconds of the process: how many, and one at a time of each kind.

use std::ops::RangeInclusive;

use super::answer::Answer;
use crate::one_user::OneUser;

/// The fewest and the most seconds of a request.
const SECONDS: RangeInclusive<f64> = 0.01..=60.0;

/// The seconds that a request for `path` has given, or the answer to one that has not.
pub(super) fn seconds(path: &str, given: Option<&str>) -> Result<f64, Answer> {
    let seconds = given.and_then(|text| text.parse().ok()).filter(|seconds| SECONDS.contains(seconds));
    seconds.ok_or_else(|| {
        Answer::line(400, &format!("{path}?seconds=N: from {} to {} seconds", SECONDS.start(), SECONDS.end()))
    })
}

/// Lets one request in at a time.
#[derive(Debug)]
pub(super) struct OneAtATime(OneUser);

/// The request that was let in. The next one may come when this is dropped, also if its connection has ended before.
#[derive(Debug)]
pub(super) struct LetIn(&'static OneAtATime);

impl OneAtATime {
    pub(super) const fn new() -> OneAtATime {
        OneAtATime(OneUser::new())
    }

    pub(super) fn enter(&'static self) -> Option<LetIn> {
        self.0.take().then(|| LetIn(self))
    }

    /// In a forked child: the parent's request is not its own.
    pub(super) fn forked(&self) {
        self.0.give_back();
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        self.0.0.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_refused_lets_nobody_in() {
        static PLACE: OneAtATime = OneAtATime::new();
        let first = PLACE.enter();
        assert!(first.is_some() && PLACE.enter().is_none() && PLACE.enter().is_none());
        drop(first);
        assert!(PLACE.enter().is_some());
    }
}
