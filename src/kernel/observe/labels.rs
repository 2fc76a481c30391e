//! Splits the processor time of a loop's thread by the labels of what it runs (`wakeloop.label`), while the window
//! asks.
//!
//! A question asks the loops as one for gauges does, and the loop looks at it where it looks for that. It then sees its
//! entries by the flag for all that sees them. So there is nothing to look at while nobody asks.
//!
//! A job of an executor, or of the blocking pool, counts for the label of who has submitted it, from its beginning on.
//!
//! The clock is read where another label begins: before an entry, by the value of the variable in the entry's context,
//! and where the program enters or leaves a label. What the loop does between two entries counts for the first.

use std::cell::Cell;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::super::core::probe::labels::{JobSums, LOOP, LabelSums, Labels, Moment, UNLABELLED, question};
use super::super::core::probe::registry::Asked;
use super::super::core::{Core, Entry};
use crate::capi::once::Once;
use crate::capi::recycle::context::value_in;
use crate::capi::{Raised, Ref};
use crate::clock::{monotonic_nanos, thread_nanos};
use crate::recorder::thread::thread_number;

/// The `ContextVar` of the label: a string, or None.
static VARIABLE: Once<Ref> = Once::new();

thread_local! {
    /// The sums of the loop or the job that runs in this thread, while somebody asks.
    static CURRENT: Cell<Option<&'static Labels>> = const { Cell::new(None) };
}

/// The variable, which is made by the module's initialisation.
pub(crate) fn variable() -> PyResult<Ref> {
    // SAFETY: a C string, and no default value; an owned reference or null with an error.
    let made =
        unsafe { Ref::from_owned(ffi::PyContextVar_New(c"wakeloop.label".as_ptr(), std::ptr::null_mut())) };
    let made = made.ok_or(Raised)?;
    VARIABLE.set(made.clone_ref());
    Ok(made)
}

fn moment() -> Moment {
    Moment { cpu: thread_nanos(), now: monotonic_nanos() }
}

// -- runs and turns

/// The loop begins to run.
pub(in crate::kernel) fn enter(core: &Core) {
    if question() != 0 {
        begin(core);
    }
}

#[cold]
fn begin(core: &Core) {
    let labels = &core.probe.registered.entry().labels;
    if let Some(outer) = CURRENT.take()
        && !std::ptr::eq(outer, labels)
    {
        // A loop that runs inside of another one's callback.
        outer.change(|sums| sums.pause(moment()));
    }
    if labels.begin(thread_number(), moment()) {
        CURRENT.set(Some(labels));
        core.instrumentation.set_labelled(true);
        core.probe.registered.keep_asked(Asked::Labels);
    }
}

/// The loop stops running.
pub(in crate::kernel) fn leave(core: &Core) {
    if core.instrumentation.is_labelled() {
        core.instrumentation.set_labelled(false);
        CURRENT.set(None);
        core.probe.registered.entry().labels.change(|sums| sums.pause(moment()));
    }
}

/// The loop is about to poll, and somebody asks or has asked.
pub(in crate::kernel) fn turn_ends(core: &Core) {
    // Before the look at the question: the next one sets it again.
    core.probe.registered.answered(Asked::Labels);
    if switch(&core.probe.registered.entry().labels, |_| LOOP) {
        core.probe.registered.keep_asked(Asked::Labels);
        return;
    }
    core.instrumentation.set_labelled(false);
    CURRENT.set(None);
    enter(core);
}

/// The loop has waited, and somebody may have asked meanwhile.
pub(in crate::kernel) fn wait_ended(core: &Core) {
    let is_counting =
        core.instrumentation.is_labelled() && core.probe.registered.entry().labels.change(|_| ()).is_some();
    if !is_counting {
        enter(core);
    }
}

// -- what runs

/// Switches to what `next` gives. False if nobody asks any more, or this loop has not begun.
fn switch(labels: &Labels, next: impl FnOnce(&mut LabelSums) -> usize) -> bool {
    let switched = labels.change(|sums| {
        let next = next(sums);
        sums.switch(next, monotonic_nanos, thread_nanos);
    });
    switched.is_some()
}

fn switch_to(labels: &'static Labels, label: Option<&Ref>) {
    CURRENT.set(Some(labels));
    let key = label.and_then(|label| Some((label, label.text_hash()?)));
    switch(labels, |sums| match key {
        Some((label, key)) => sums.number(key, || label.escaped_text()),
        None => UNLABELLED,
    });
}

/// An entry is about to run.
pub(in crate::kernel) fn entry(core: &Core, entry: &Entry) {
    let context = match entry {
        Entry::Call { context, .. } => Some(context.clone_ref()),
        Entry::Handle(handle) => handle.context_to_run(),
        // Native functions enter a context themselves, and foreign handles are rare.
        Entry::Native { .. } | Entry::Foreign(_) => None,
    };
    let label = context.and_then(|context| value_in(context, VARIABLE.get()?));
    switch_to(&core.probe.registered.entry().labels, label.as_ref());
}

/// An event is about to be handled.
pub(in crate::kernel) fn event(core: &Core) {
    switch_to(&core.probe.registered.entry().labels, None);
}

// -- jobs

/// A job that runs in this thread, and is counted.
struct CountedJob(&'static JobSums);

impl CountedJob {
    #[cold]
    fn begin(label: Option<Ref>) -> CountedJob {
        let job = CountedJob(JobSums::take());
        job.0.labels.begin(thread_number(), moment());
        switch_to(&job.0.labels, label.as_ref());
        job
    }
}

impl Drop for CountedJob {
    fn drop(&mut self) {
        CURRENT.set(None);
        self.0.labels.change(|sums| sums.pause(moment()));
        self.0.give_back();
    }
}

/// Runs a job of the blocking pool, or of an executor. While somebody asks, its processor time counts for the label. A
/// job in a loop's thread counts as what the loop does.
pub(crate) fn run_job<R>(label: impl FnOnce() -> Option<Ref>, run: impl FnOnce() -> R) -> R {
    let is_counted = question() != 0 && CURRENT.get().is_none();
    let _counted = is_counted.then(|| CountedJob::begin(label()));
    run()
}

/// The label in the current context.
pub(crate) fn label_now() -> Option<Ref> {
    VARIABLE.get().and_then(crate::capi::recycle::context::value_now)
}

/// Does somebody ask for labels? Then a job is passed to an executor with its label.
#[pyfunction]
pub(crate) fn _counts_labels() -> bool {
    question() != 0
}

/// Calls func(*args), a job of an executor, for which the label counts.
#[pyfunction]
#[pyo3(signature = (label, func, /, *args))]
pub(crate) fn _run_labelled(
    label: Bound<'_, PyAny>,
    func: Bound<'_, PyAny>,
    args: Bound<'_, PyTuple>,
) -> PyResult<Py<PyAny>> {
    run_job(|| Some(Ref::from(label)), || func.call1(args).map(Bound::unbind))
}

/// The label of the current context has changed. Called by `wakeloop.label`.
#[pyfunction]
pub(crate) fn _label_changed() {
    if question() == 0 {
        return;
    }
    if let Some(labels) = CURRENT.get() {
        let label = label_now();
        switch_to(labels, label.as_ref());
    }
}
