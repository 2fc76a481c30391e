//! Makes sure that a job reports an outcome, even if it never runs.

/// Reports the outcome of a job exactly once. If it is dropped first, because the job was cancelled or no thread could
/// be started for it, it reports the outcome that `if_dropped` returns.
pub(super) struct Promise<T, F: FnOnce(T)> {
    report: Option<F>,
    if_dropped: fn() -> T,
}

impl<T, F: FnOnce(T)> Promise<T, F> {
    pub(super) fn new(report: F, if_dropped: fn() -> T) -> Promise<T, F> {
        Promise { report: Some(report), if_dropped }
    }

    pub(super) fn complete(mut self, outcome: T) {
        if let Some(report) = self.report.take() {
            report(outcome);
        }
    }
}

impl<T, F: FnOnce(T)> Drop for Promise<T, F> {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report((self.if_dropped)());
        }
    }
}
