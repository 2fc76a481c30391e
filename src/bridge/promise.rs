//! A job's duty to report its outcome.

/// Reports the outcome of a job once. If it is dropped before, as with a job that is cancelled or finds no thread, it
/// reports what stands for that.
pub(super) struct Promise<T, F: FnOnce(T)> {
    report: Option<F>,
    broken: fn() -> T,
}

impl<T, F: FnOnce(T)> Promise<T, F> {
    /// `broken` gives the outcome of a promise that is dropped.
    pub(super) fn new(report: F, broken: fn() -> T) -> Promise<T, F> {
        Promise { report: Some(report), broken }
    }

    pub(super) fn keep(mut self, outcome: T) {
        if let Some(report) = self.report.take() {
            report(outcome);
        }
    }
}

impl<T, F: FnOnce(T)> Drop for Promise<T, F> {
    fn drop(&mut self) {
        if let Some(report) = self.report.take() {
            report((self.broken)());
        }
    }
}
