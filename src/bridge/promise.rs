//! A job's duty to report.

/// Who is to be told what a job came to. Dropped unkept, as with a job that is cancelled or finds no thread, it tells what
/// stands for that.
pub(super) struct Promise<T, F: FnOnce(T)> {
    tell: Option<F>,
    unkept: fn() -> T,
}

impl<T, F: FnOnce(T)> Promise<T, F> {
    pub(super) fn new(tell: F, unkept: fn() -> T) -> Promise<T, F> {
        Promise { tell: Some(tell), unkept }
    }

    pub(super) fn keep(mut self, outcome: T) {
        if let Some(tell) = self.tell.take() {
            tell(outcome);
        }
    }
}

impl<T, F: FnOnce(T)> Drop for Promise<T, F> {
    fn drop(&mut self) {
        if let Some(tell) = self.tell.take() {
            tell((self.unkept)());
        }
    }
}
