//! `/trace`: what the flight recorder records from now on.

use std::collections::HashMap;
use std::time::Duration;

use super::answer::{Answer, Content};
use super::period::{self, LetIn, OneAtATime};
use super::python;
use crate::capi::section::FREE_THREADED;
use crate::recorder::recording::{self, Recording};
use crate::recorder::trace::Process;
use crate::runtime::spawn_blocking;
use crate::runtime::time::sleep;

/// There is one trace at a time.
static TRACED: OneAtATime = OneAtATime::new();

/// The trace that is being recorded. Its end is noted also if the connection ends before it.
struct Traced {
    /// The recorder was started for it.
    own: bool,
    _let_in: LetIn,
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.own {
            python::end("stop_trace");
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
    if FREE_THREADED {
        return Answer::line(503, "there is no recorder on a free-threaded build of Python");
    }
    let Some(let_in) = TRACED.enter() else { return Answer::line(503, "another trace is being recorded") };
    let mut traced = Traced { own: false, _let_in: let_in };
    if recording::current().is_none() {
        traced.own = python::begin("start_trace", "stop_trace").await;
    }
    let Some(recording) = recording::current() else {
        return Answer::line(503, "the recorder cannot be started: the GIL could not be taken in a second");
    };
    let begin = recording.clock.now();
    sleep(Duration::from_secs_f64(seconds)).await;
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
