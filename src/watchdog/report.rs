//! What is written about a turn that does not end.

use std::fmt::{self, Display, Write};
use std::sync::Arc;
use std::time::Duration;

use super::detached::{Holder, Reader, Thread};
use super::helper::{Answer, Question, Shared};
use super::stack::Stack;
use crate::capi::section::FREE_THREADED;
use crate::kernel::core::probe::heartbeat::{Beat, Heartbeat};

/// What can be said about a thread.
#[derive(Debug, Default)]
pub(crate) struct Named {
    name: Option<String>,
    id: Option<u64>,
}

impl Named {
    pub(crate) fn new(name: Option<String>, thread: Option<Thread>) -> Named {
        Named { name: name.or_else(|| system_name(thread?)), id: thread.map(|thread| thread.native_id) }
    }
}

impl Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.id) {
            (Some(name), Some(id)) => write!(f, "thread {name:?} ({id})"),
            (Some(name), None) => write!(f, "thread {name:?}"),
            (None, Some(id)) => write!(f, "thread {id}"),
            (None, None) => f.write_str("another thread"),
        }
    }
}

/// A report, and the name of the loop for the line about the end of the turn.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) text: String,
    pub(super) event_loop: String,
}

/// Describes a turn that has not ended. `patience` is how long to wait for the GIL, and `elapsed` gives the time since
/// the turn began. Returns `None` if it has just ended.
pub(super) fn describe(
    shared: &Arc<Shared>,
    heartbeat: &'static Heartbeat,
    beat: Beat,
    patience: Duration,
    elapsed: impl FnOnce() -> u64,
) -> Option<Report> {
    let reader = Reader::open();
    let look = || reader.as_ref().map_or(Holder::Unknown, Reader::holder);
    let state = heartbeat.thread_state().expose_provenance();
    let first = look();
    let holder = match first {
        Holder::Thread(thread) if thread.state != state => Some(thread),
        _ => None,
    };
    let question = Question { heartbeat, beat, holder };
    // Without a GIL, a helper that is attached does not keep the loop's thread from going on.
    let answer = if FREE_THREADED { None } else { shared.ask(question, patience) };
    let is_attached = || reader.as_ref().is_some_and(|reader| reader.is_attached(state));
    let gil = match first {
        Holder::Absent => Gil::Absent { runs: is_attached() },
        _ if FREE_THREADED || answer.is_some() => Gil::of(state, first),
        _ => Gil::kept(state, first, look(), patience),
    };
    let answer = answer.unwrap_or_else(|| {
        let stack = |thread| reader.as_ref().and_then(|reader| reader.stack(thread)).unwrap_or_default();
        Answer { stack: stack(state), holder: holder.map(|it| (None, stack(it.state))), ..Answer::default() }
    });
    if !question.is_current() {
        return None;
    }

    let thread = reader.as_ref().and_then(|reader| reader.thread(state));
    let event_loop = format!("the event loop of {}", Named::new(answer.thread, thread));
    let (name, holders_stack) = answer.holder.unwrap_or_default();
    let other = Named::new(name, holder);
    let mut text = format!("wakeloop: {event_loop} {} for {}", Doing(beat), Seconds(elapsed()));
    if let Some(task) = answer.task {
        let _ = write!(text, ", in task {task:?}");
    }
    let _ = writeln!(text, "\n{}", Situation { gil, beat, other: &other });
    write_stack(&mut text, "Its stack", &answer.stack);
    if holder.is_some() {
        write_stack(&mut text, &format!("The stack of {other}"), &holders_stack);
    }
    Some(Report { text, event_loop })
}

/// The line about the end of a turn that was reported.
pub(super) fn describe_end(event_loop: &str, beat: Beat, elapsed: u64) -> String {
    let done = if awaits_gil(beat) { "got the GIL" } else { "ended its turn" };
    format!("wakeloop: {event_loop} {done} after {}\n", Seconds(elapsed))
}

fn awaits_gil(beat: Beat) -> bool {
    matches!(beat, Beat::AwaitsGil(_))
}

/// What the loop has been doing.
pub(crate) struct Doing(pub(crate) Beat);

impl Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if awaits_gil(self.0) { "has waited for the GIL" } else { "has been in one turn" })
    }
}

pub(crate) fn write_stack(text: &mut String, whose: &str, stack: &Stack) {
    if stack.is_empty() {
        let _ = writeln!(text, "{whose} could not be read.");
        return;
    }
    let _ = writeln!(text, "{whose}, most recent call first:");
    for frame in stack {
        let _ = writeln!(text, "{frame}");
    }
}

/// What is known of the GIL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gil {
    /// There is none. Is the loop's thread attached to the interpreter?
    Absent {
        runs: bool,
    },
    /// It could be taken, and before that the holder was not known, or nobody had it, or the loop's thread, or another.
    Unknown,
    Free,
    Loops,
    Others,
    /// It could not be taken for this time: the loop's thread kept it, or another. Or more than one had it, or the
    /// holder is not known.
    KeptByLoop(Duration),
    KeptByOther(Duration),
    NotTaken(Duration),
}

impl Gil {
    fn of(state: usize, before: Holder) -> Gil {
        match before {
            Holder::Unknown | Holder::Absent => Gil::Unknown,
            Holder::Nobody => Gil::Free,
            Holder::Thread(thread) if thread.state == state => Gil::Loops,
            Holder::Thread(_) => Gil::Others,
        }
    }

    fn kept(state: usize, before: Holder, after: Holder, time: Duration) -> Gil {
        match before {
            Holder::Thread(thread) if before == after && thread.state == state => Gil::KeptByLoop(time),
            Holder::Thread(_) if before == after => Gil::KeptByOther(time),
            _ => Gil::NotTaken(time),
        }
    }
}

/// The second line of a report.
struct Situation<'a> {
    gil: Gil,
    beat: Beat,
    /// The thread that has the GIL, if it is not the loop's.
    other: &'a Named,
}

impl Display for Situation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let other = self.other;
        let seconds = |time: Duration| Seconds(time.as_nanos() as u64);
        match self.gil {
            Gil::Absent { runs: true } => {
                f.write_str("There is no GIL. It runs Python code, or native code.")
            }
            Gil::Absent { runs: false } => {
                f.write_str("There is no GIL. It is in a call that has left the interpreter.")
            }
            Gil::KeptByLoop(time) => write!(
                f,
                "No progress: the GIL is held by this thread itself, which did not release it in {}. \
                 Most likely it is in native code.",
                seconds(time)
            ),
            Gil::KeptByOther(time) => write!(
                f,
                "No progress: the GIL is held by {other}, which did not release it in {}. \
                 Most likely it is in native code.",
                seconds(time)
            ),
            Gil::NotTaken(time) => write!(f, "No progress: the GIL could not be taken in {}.", seconds(time)),
            Gil::Others if awaits_gil(self.beat) => write!(f, "It has polled. The GIL is held by {other}."),
            _ if awaits_gil(self.beat) => f.write_str("It has polled."),
            Gil::Loops => f.write_str("It has the GIL: it runs Python code."),
            Gil::Free => f.write_str("Nobody has the GIL: it is in a call that has released it."),
            Gil::Others => write!(
                f,
                "The GIL is held by {other}: it waits for it, or is in a call that has released it."
            ),
            Gil::Unknown => f.write_str("It runs Python code, or is in a call that has released the GIL."),
        }
    }
}

/// A time in nanoseconds, written in seconds, with two digits at least.
pub(crate) struct Seconds(pub(crate) u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0 as f64 / 1e9;
        let places = if seconds < 0.1 { 3 } else { 2 };
        write!(f, "{seconds:.places$} s")
    }
}

/// The name of a thread without the GIL. Python gives its names to the system since 3.14. Before, threads have the name
/// of the process, which says nothing.
fn system_name(thread: Thread) -> Option<String> {
    let process = u64::from(std::process::id());
    if thread.native_id == process {
        return Some("MainThread".to_owned());
    }
    let name = |id| std::fs::read(format!("/proc/self/task/{id}/comm")).ok();
    let name = name(thread.native_id).filter(|own| name(process).as_ref() != Some(own))?;
    Some(String::from_utf8_lossy(name.trim_ascii_end()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_two_digits_at_least() {
        let texts = [12_300_000, 100_000_000, 12_345_000_000].map(|nanos| Seconds(nanos).to_string());
        assert_eq!(texts, ["0.012 s", "0.10 s", "12.35 s"]);
    }

    #[test]
    fn the_situation_follows_from_who_had_the_gil() {
        const TIME: Duration = Duration::from_millis(100);
        let thread = |state| Holder::Thread(Thread { state, ident: 0, native_id: 0 });
        assert_eq!(Gil::of(8, thread(8)), Gil::Loops);
        assert_eq!(Gil::of(8, thread(16)), Gil::Others);
        assert_eq!(Gil::of(8, Holder::Nobody), Gil::Free);
        assert_eq!(Gil::of(8, Holder::Unknown), Gil::Unknown);
        assert_eq!(Gil::kept(8, thread(8), thread(8), TIME), Gil::KeptByLoop(TIME));
        assert_eq!(Gil::kept(8, thread(16), thread(16), TIME), Gil::KeptByOther(TIME));
        for (before, after) in
            [(thread(8), thread(16)), (Holder::Nobody, thread(8)), (Holder::Unknown, Holder::Unknown)]
        {
            assert_eq!(Gil::kept(8, before, after, TIME), Gil::NotTaken(TIME));
        }
    }

    #[test]
    fn a_thread_is_named_as_far_as_it_is_known() {
        let named = |name: Option<&str>, id| Named { name: name.map(str::to_owned), id }.to_string();
        assert_eq!(named(Some("a\x1b[m"), Some(7)), r#"thread "a\u{1b}[m" (7)"#);
        assert_eq!(named(Some("a"), None), r#"thread "a""#);
        assert_eq!(named(None, Some(7)), "thread 7");
    }
}
