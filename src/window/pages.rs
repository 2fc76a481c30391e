//! The answer of each path. Nothing here takes the GIL, or waits for a thread that may need it.

use std::fmt::{self, Display, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::address::group_folder;
use super::answer::{Answer, Content};
use super::exposition;
use super::group;
use super::head::Request;
use super::json::{self, Object, page};
use super::python::Question;
use super::{labels, readiness, trace};
use crate::bridge::runtime;
use crate::clock::monotonic_nanos;
use crate::histogram::{self, BUCKETS, Snapshot};
use crate::kernel::core::probe::heartbeat::Beat;
use crate::kernel::core::probe::registry::{self, Asked, LoopView, SlowCallback};
use crate::metrics::{Table, Value};
use crate::poison::unpoisoned;
use crate::recorder::json::push_string;
use crate::runtime::time::sleep;
use crate::watchdog::detached::{Holder, Reader, Thread};
use crate::watchdog::report::{Doing, Named, Seconds, write_stack};
use crate::watchdog::stack::{Frame, Stack};

/// The paths, and what they answer.
const PATHS: [(&str, &str); 10] = [
    ("/livez", "200 while every running event loop waits, or has ended a turn within the limit"),
    ("/readyz", "200 while the program is ready, and no event loop is late"),
    ("/metrics", "the metrics of event loops and runtime, for Prometheus"),
    ("/loops", "the metrics of each event loop, as JSON"),
    ("/slow", "the last slow turns of each event loop, and its last busy wait, as JSON"),
    ("/stack", "the Python stack of every thread"),
    ("/tasks", "what each task waits for, as JSON; needs the GIL"),
    ("/trace", "?seconds=N: a trace of the next N seconds, which Perfetto opens"),
    ("/labels", "?seconds=N: the CPU time of the next N seconds by label, as JSON"),
    ("/", "this page"),
];
/// The paths that are served on an address that is not loopback.
const PUBLIC: [&str; 3] = ["/livez", "/readyz", "/metrics"];

/// Loops are asked to count their gauges at most once in this time, in nanoseconds.
const ASK_EVERY: u64 = 100_000_000;
/// How often, and how long, it is waited for the gauges.
const LOOKS: u32 = 8;
const LOOK: Duration = Duration::from_micros(250);
/// A loop is late if it was so in a time that is at least as long, in nanoseconds.
const READINESS_TIME: u64 = 1_000_000_000;

/// The sources of the answers, beside the process's own state.
#[derive(Debug)]
pub(super) struct Pages {
    /// How long a turn may last, in nanoseconds.
    limit: u64,
    reader: Option<Reader>,
    /// The folder of this user's sockets.
    folder: PathBuf,
    asked_at: AtomicU64,
    delays: Mutex<Delays>,
    tasks: Question,
}

/// The delays of the loops at an earlier request for readiness.
#[derive(Debug, Default)]
struct Delays {
    at: u64,
    /// By the number of the loop.
    counts: Vec<(u64, [u64; BUCKETS])>,
}

impl Pages {
    pub(super) fn new(limit: u64, reader: Option<Reader>, folder: PathBuf) -> Pages {
        Pages {
            limit,
            reader,
            folder,
            asked_at: AtomicU64::new(0),
            delays: Mutex::default(),
            tasks: Question::default(),
        }
    }

    /// The answer to a request. On a TCP address, it is that of all processes that have the address.
    pub(super) async fn get(&self, request: &Request, tcp: Option<SocketAddr>) -> Answer {
        let path = request.path.as_str();
        let Some(address) = tcp else { return self.own(request, request.parameter("pid").is_some()).await };
        if !address.ip().is_loopback() && !PUBLIC.contains(&path) {
            return Answer::refusal(404);
        }
        let own = self.own(request, true).await;
        if matches!(own.status, 400 | 404) || request.takes_seconds() {
            return own;
        }
        let mut parts = group::ask(&group_folder(&self.folder, address), &format!("{path}?pid=")).await;
        parts.push((std::process::id(), own));
        parts.sort_by_key(|(pid, _)| *pid);
        group::merge(path, &parts)
    }

    /// The answer of this process. With `pid`, metrics have its number.
    async fn own(&self, request: &Request, pid: bool) -> Answer {
        match request.path.as_str() {
            "/" => index(),
            "/livez" => self.livez(),
            "/readyz" => self.readyz(),
            "/metrics" => {
                self.count_gauges().await;
                Answer::new(200, Content::Metrics, exposition::text(&exposition::families(pid)))
            }
            "/loops" => {
                self.count_gauges().await;
                loops()
            }
            "/slow" => slow(),
            "/stack" => self.stacks(),
            "/tasks" => self.tasks().await,
            "/labels" => labels::get(request.parameter("seconds")).await,
            "/trace" => trace::get(request.parameter("seconds")).await,
            _ => Answer::refusal(404),
        }
    }

    // -- liveness and readiness

    fn livez(&self) -> Answer {
        let now = monotonic_nanos();
        let loops = registry::loops(now);
        let stalled: String = loops.iter().filter_map(|view| self.stall(view, now)).collect();
        if stalled.is_empty() {
            let busy: String = loops.iter().filter_map(|view| busy_wait(view, now)).collect();
            return Answer::new(200, Content::Text, format!("alive: {} event loops\n{busy}", loops.len()));
        }
        Answer::new(503, Content::Text, stalled)
    }

    /// Describes a turn that is longer than the limit. `None` without one.
    fn stall(&self, view: &LoopView, now: u64) -> Option<String> {
        let elapsed = now.saturating_sub(view.beat.since()?);
        if elapsed < self.limit {
            return None;
        }
        let reader = self.reader.as_ref();
        let state = view.entry.heartbeat.thread_state().expose_provenance();
        let (holder, thread) = (reader.map(Reader::holder), reader.and_then(|reader| reader.thread(state)));
        let stack = |state| reader.and_then(|reader| reader.stack(state)).unwrap_or_default();
        let own = stack(state);
        let others = match holder {
            Some(Holder::Thread(holder)) if holder.state != state => Some((holder, stack(holder.state))),
            _ => None,
        };
        if view.entry.heartbeat.beat() != view.beat {
            // It has ended just now, so what was read may be of the next one.
            return None;
        }
        let (event_loop, doing, time) = (&view.name, Doing(view.beat), Seconds(elapsed));
        let mut text = format!("the event loop {event_loop:?} {doing} for {time}");
        if let Some(callback) = callback_of(&own) {
            let _ = write!(text, ", in {}", callback.escape_debug());
        }
        match own.first() {
            Some(frame) if is_loops(frame) => text.push_str(", in a callback that is native code"),
            Some(frame) => {
                let _ = write!(text, ", at\n{frame}");
            }
            None => {}
        }
        let thread = Named::new(None, thread);
        let _ = write!(text, "\n{}", WhoHasGil(holder, state));
        let _ = match holder {
            Some(Holder::Nobody) => write!(text, " It runs in {thread}."),
            Some(Holder::Absent) if reader.is_some_and(|reader| reader.is_attached(state)) => {
                write!(text, " It runs Python or native code, in {thread}.")
            }
            Some(Holder::Absent) => {
                write!(text, " It is in a call that has left the interpreter, in {thread}.")
            }
            _ => Ok(()),
        };
        text.push('\n');
        write_stack(&mut text, "Its stack", &own);
        if let Some((_, stack)) = &others {
            write_stack(&mut text, "The stack of the thread that has the GIL", stack);
        }
        Some(text)
    }

    fn readyz(&self) -> Answer {
        if !readiness::is_set() {
            return Answer::line(503, "not ready: the program says so");
        }
        let (limit, now) = (readiness::limit(), monotonic_nanos());
        let loops = registry::loops(now);
        let mut delays = unpoisoned(self.delays.lock());
        let late = loops.iter().find_map(|view| {
            let delay = delays.of(view).max(now.saturating_sub(view.beat.since().unwrap_or(now)));
            (delay >= limit)
                .then(|| format!("not ready: the event loop {:?} is late by {}\n", view.name, Seconds(delay)))
        });
        if now.saturating_sub(delays.at) >= READINESS_TIME {
            let counts = loops.iter().map(|view| (view.number, view.figures.delay.counts)).collect();
            *delays = Delays { at: now, counts };
        }
        match late {
            None => Answer::line(200, "ready"),
            Some(late) => Answer::new(503, Content::Text, late),
        }
    }

    // -- stacks

    fn stacks(&self) -> Answer {
        let Some(reader) = &self.reader else {
            let reason = "the stacks of this build of Python cannot be read\n";
            return Answer::new(503, Content::Text, reason.to_owned());
        };
        let (mut text, holder) = (String::new(), reader.holder());
        let loops = registry::loops(monotonic_nanos());
        for thread in reader.threads() {
            let mut whose = Named::new(None, Some(thread)).to_string();
            let runs = |view: &&LoopView| view.running && view.entry.heartbeat.ident() == thread.ident;
            if let Some(view) = loops.iter().find(runs) {
                let _ = write!(whose, ", which runs the event loop {:?}", view.name);
            }
            if matches!(holder, Holder::Thread(Thread { state, .. }) if state == thread.state) {
                whose.push_str(", which has the GIL");
            }
            write_stack(&mut text, &whose, &reader.stack(thread.state).unwrap_or_default());
            text.push('\n');
        }
        Answer::new(200, Content::Text, text)
    }

    // -- tasks

    async fn tasks(&self) -> Answer {
        let age = match self.tasks.ask("tasks_json").await {
            Ok(text) => return Answer::new(200, Content::Json, text),
            Err(age) => age,
        };
        let holder = self.reader.as_ref().map(Reader::holder);
        let mut text = format!("the tasks could not be asked for in a second. {}", WhoHasGil(holder, 0));
        if let Some(age) = age {
            let _ = write!(text, " The last answer was {} ago.", Seconds(age));
        }
        Answer::new(503, Content::Text, text + "\n")
    }

    // -- gauges

    /// Asks the running loops to count their gauges, and waits a moment for those that are not in the middle of
    /// something.
    async fn count_gauges(&self) {
        let now = monotonic_nanos();
        if now.saturating_sub(self.asked_at.load(Relaxed)) < ASK_EVERY {
            return;
        }
        self.asked_at.store(now, Relaxed);
        let mut awaited = registry::loops(now);
        awaited.retain(|view| view.running);
        awaited.iter().for_each(|view| view.entry.ask(Asked::Gauges));
        for _ in 0..LOOKS {
            awaited.retain(|view| view.entry.is_asked_for(Asked::Gauges));
            if awaited.is_empty() {
                return;
            }
            sleep(LOOK).await;
        }
    }
}

impl Delays {
    /// The longest delay of a loop since the earlier request, in nanoseconds: the lower bound of its bucket.
    fn of(&self, view: &LoopView) -> u64 {
        if self.at == 0 {
            return 0;
        }
        let now = &view.figures.delay.counts;
        let before = self.counts.iter().find(|(number, _)| *number == view.number).map(|(_, counts)| counts);
        // The program may have emptied the histogram meanwhile.
        let before = before.filter(|before| (1..BUCKETS).all(|bucket| before[bucket] <= now[bucket]));
        let is_new = |bucket: &usize| now[*bucket] > before.map_or(0, |before| before[*bucket]);
        let longest = (1..BUCKETS).rev().find(is_new);
        longest.and_then(|bucket| histogram::bounds().nth(bucket - 1)).unwrap_or_default()
    }
}

/// Says who has the GIL, which may be the thread with this state. Unlike the watchdog, the window has not tried to take
/// it, and does not know whether that thread could give it away.
struct WhoHasGil(Option<Holder>, usize);

impl Display for WhoHasGil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(Holder::Thread(holder)) => {
                let its = if holder.state == self.1 { "its " } else { "" };
                write!(f, "The GIL is held by {its}{}.", Named::new(None, Some(holder)))
            }
            Some(Holder::Nobody) => f.write_str("Nobody has the GIL."),
            Some(Holder::Absent) => f.write_str("There is no GIL."),
            Some(Holder::Unknown) | None => f.write_str("It is not known who has the GIL."),
        }
    }
}

/// The outermost function that the loop has called: a callback, or the coroutine of a task. `None` if the stack does
/// not reach down to the loop.
fn callback_of(stack: &Stack) -> Option<&str> {
    let own = stack.iter().position(is_loops)?;
    Some(&stack.get(own.checked_sub(1)?)?.function)
}

/// Is it the frame in which the loop runs its turns?
fn is_loops(frame: &Frame) -> bool {
    frame.file.ends_with("wakeloop/loop.py") && frame.function == "EventLoop._run_turns"
}

// -- pages that need nothing but the process's own state

fn index() -> Answer {
    let lines = PATHS.iter().map(|(path, text)| format!("{path:9} {text}\n"));
    let text = format!("wakeloop {}, process {}\n\n", env!("WAKELOOP_VERSION"), std::process::id());
    Answer::new(200, Content::Text, text + &lines.collect::<String>())
}

fn loops() -> Answer {
    let now = monotonic_nanos();
    page(|page| {
        page.list("loops", registry::loops(now), |out, view| {
            json::object(out, |object| write_loop(object, &view, now))
        });
        if let Some(metrics) = runtime::started().map(|runtime| runtime.metrics()) {
            page.object("runtime", |object| write_metrics(object, &metrics));
        }
    })
}

fn write_loop(object: &mut Object<'_>, view: &LoopView, now: u64) {
    let (figures, busy) = (&view.figures, view.beat.since());
    let state = match view.beat {
        _ if !view.running => "stopped",
        Beat::Idle(_) => "waits",
        Beat::Turn(_) => "works",
        Beat::AwaitsGil(_) => "waits for the GIL",
    };
    let running = figures.running.as_secs_f64();
    let utilization = if running > 0.0 { figures.active().as_secs_f64() / running } else { 0.0 };
    object.text("name", &view.name);
    object.plain("generation", view.generation);
    object.plain("running", view.running);
    object.text("state", state);
    object.seconds("busy_seconds", busy.map_or(0, |since| now.saturating_sub(since)));
    object.plain("utilization", utilization);
    if view.counted_at != 0 {
        object.seconds("gauges_age_seconds", now.saturating_sub(view.counted_at));
    }
    object.object("metrics", |object| write_metrics(object, figures));
    write_slow(object, view.entry.long_callbacks(), now);
}

fn write_metrics<T: Table>(object: &mut Object<'_>, table: &T) {
    for (metric, value) in T::METRICS.iter().zip(table.values()) {
        let name = metric.name();
        match value {
            Value::Number(number) => object.plain(&name, number),
            Value::Time(time) => object.seconds(&name, time.as_nanos() as u64),
            Value::Histogram(histogram) => object.object(&name, |object| write_histogram(object, histogram)),
            Value::Labelled(numbers) => object.object(&name, |object| {
                numbers.into_iter().for_each(|(label, number)| object.plain(label, number));
            }),
        }
    }
}

/// Times are in seconds.
fn write_histogram(object: &mut Object<'_>, histogram: &Snapshot) {
    object.seconds("p50", histogram.percentile(50.0));
    object.seconds("p99", histogram.percentile(99.0));
    object.seconds("max", histogram.max);
    object.seconds("sum", histogram.sum);
    object.list("counts", histogram.counts, |out, count| {
        let _ = write!(out, "{count}");
    });
}

fn slow() -> Answer {
    let now = monotonic_nanos();
    page(|page| {
        page.list("loops", registry::loops(now), |out, view| {
            json::object(out, |object| {
                object.text("name", &view.name);
                write_slow(object, view.entry.slow_turns(), now);
                write_busy_wait(object, &view, now);
            });
        });
    })
}

/// The task or callback for which a loop waits busily now.
fn busy_wait(view: &LoopView, now: u64) -> Option<String> {
    let (found, true) = view.entry.busy_wait(now)? else { return None };
    let (event_loop, time) = (&view.name, Seconds(now.saturating_sub(found.at) + found.nanos));
    let mut lines = found.name.lines();
    let printable = |line: &str| line.chars().map(registry::printable).collect::<String>();
    let name = printable(lines.next().unwrap_or_default());
    let mut text = format!("the event loop {event_loop:?} has been waiting busily for {time}, in {name}\n");
    for line in lines {
        let _ = writeln!(text, "  {}", printable(line));
    }
    Some(text)
}

/// The last one of a loop, if there was one.
fn write_busy_wait(object: &mut Object<'_>, view: &LoopView, now: u64) {
    object.list("busy_waits", view.entry.busy_wait(now), |out, (found, goes_on)| {
        json::object(out, |object| {
            let mut lines = found.name.lines();
            object.text("name", lines.next().unwrap_or_default());
            object.list("stack", lines, push_string);
            object.seconds("seconds", found.nanos);
            object.seconds("ago", now.saturating_sub(found.at));
            object.plain("goes_on", goes_on);
        });
    });
}

/// The names come from the program; JSON escapes them.
fn write_slow(object: &mut Object<'_>, slow: Vec<SlowCallback>, now: u64) {
    object.list("slow", slow, |out, slow| {
        json::object(out, |object| {
            object.text("name", &slow.name);
            object.seconds("seconds", slow.nanos);
            object.seconds("ago", now.saturating_sub(slow.at));
        });
    });
}
