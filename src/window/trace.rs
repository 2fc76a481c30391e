//! `/trace`: what the flight recorder records from now on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;

use super::answer::{Answer, Content};
use super::period::{self, OneAtATime};
use super::python;
use crate::clock::monotonic_nanos;
use crate::kernel::observe::recording::{PyRecording, refresh_all};
use crate::recorder::recording::{self, Recording};
use crate::recorder::trace::Process;
use crate::runtime::spawn_blocking;
use crate::runtime::time::sleep;

/// There is one trace at a time.
static TRACED: OneAtATime = OneAtATime::new();
/// How often it is looked whether the recording goes on.
const LOOK: Duration = Duration::from_millis(50);

/// The recording that is read, or was started for a trace. That ends also if the connection ends before it.
struct Traced {
    recording: Arc<Recording>,
    own: bool,
}

impl Traced {
    /// The recording that `start_trace` has returned, or the one of the program, for which it has failed. `None` if
    /// there is neither.
    fn new(started: PyResult<Bound<'_, PyAny>>) -> Option<Traced> {
        if let Ok(started) = started {
            let recording = started.cast::<PyRecording>().ok()?.get().recording.clone();
            return Some(Traced { recording, own: true });
        }
        Traced::of_program()
    }

    fn of_program() -> Option<Traced> {
        let recording = recording::current().filter(|recording| !recording.gives_way)?;
        Some(Traced { recording, own: false })
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.own {
            // At once, so that the next trace begins with a recording of its own. The loops take notice when the GIL
            // can be had; without a thread, when they next begin to run.
            self.recording.stop();
            let _ = python::when_attached(|_| refresh_all());
        }
    }
}

pub(super) fn forked() {
    TRACED.forked();
}

/// Records for so many seconds, and answers with the trace in Chrome's format. If the recorder does not run, it is
/// started for this, which needs the GIL.
pub(super) async fn get(given: Option<&str>) -> Answer {
    let seconds = match period::seconds("/trace", given) {
        Ok(seconds) => seconds,
        Err(answer) => return answer,
    };
    let Some(_let_in) = TRACED.enter() else { return Answer::line(503, "another trace is being recorded") };
    let traced = match Traced::of_program() {
        Some(traced) => traced,
        None => match python::begin("start_trace", Traced::new).await {
            Some(Some(traced)) => traced,
            Some(None) => return Answer::line(503, "the recorder cannot be started"),
            None => {
                let reason = "the recorder cannot be started: the GIL could not be taken in a second";
                return Answer::line(503, reason);
            }
        },
    };
    let recording = traced.recording.clone();
    let begin = recording.clock.now();
    let end = monotonic_nanos() + (seconds * 1e9) as u64;
    while recording.is_active() {
        let left = end.saturating_sub(monotonic_nanos());
        if left == 0 {
            break;
        }
        sleep(LOOK.min(Duration::from_nanos(left))).await;
    }
    if traced.own && !recording.is_active() {
        let reason = "the program has started its own recorder, which takes the place of this trace";
        return Answer::line(503, reason);
    }
    let text = spawn_blocking(move || write(&recording, begin)).await;
    drop(traced);
    match text.ok().flatten() {
        Some(text) => Answer::new(200, Content::Json, text),
        None => Answer::line(503, "the trace could not be written"),
    }
}

/// The events of a recording since `begin`.
fn write(recording: &Recording, begin: u64) -> Option<String> {
    let mut snapshot = recording.snapshot();
    let events = snapshot.workers.iter_mut().map(|track| &mut track.events).chain([&mut snapshot.loops]);
    events.for_each(|events| events.retain(|event| event.ticks >= begin));
    let number = std::process::id().into();
    let process =
        Process { number, name: "wakeloop".to_owned(), threads: HashMap::new(), details: Vec::new() };
    let mut text = Vec::new();
    snapshot.write_json(&process, &mut text).ok()?;
    String::from_utf8(text).ok()
}
