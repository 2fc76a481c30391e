//! Writes what a recording holds in Chrome's Trace Event Format (the JSON object form), which Perfetto opens.
//!
//! There is a track for each thread with a loop, for each worker of the runtime, and for the GIL, if there is one. A
//! track has slices (`ph: "X"`), which are inside of each other or apart, and instants (`ph: "i"`). Times are
//! microseconds of `CLOCK_MONOTONIC`, as of `loop.time()`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::sync::Arc;

use super::clock::Scale;
use super::event::{Event, Kind, type_name};
use super::json::{push_micros, push_string};
use super::names::Name;

/// The number of the GIL's track: no system has a thread with it.
const GIL: u64 = (1 << 22) + 1;
/// The loop took longer than this, in nanoseconds, to get the GIL: then another thread had it.
const WAITED: u64 = 5_000;

/// The events of a thread that is no loop's.
#[derive(Debug)]
pub(crate) struct Track {
    pub(crate) thread: u64,
    pub(crate) name: String,
    pub(crate) events: Vec<Event>,
}

/// What a recording held at one moment.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) scale: Scale,
    /// The end of the recording, or the moment of the snapshot, in ticks.
    pub(crate) end: u64,
    /// The events of all loops, in the order in which they were written.
    pub(crate) loops: Vec<Event>,
    /// Have all loops written to one ring, each when it had the GIL?
    pub(crate) one_ring: bool,
    /// The threads of the loops, indexed by track.
    pub(crate) threads: Vec<u64>,
    pub(crate) names: HashMap<u64, Arc<Name>>,
    pub(crate) workers: Vec<Track>,
    pub(crate) dropped: u64,
}

/// What the caller knows about the process.
#[derive(Debug, Default)]
pub(crate) struct Process {
    pub(crate) number: u64,
    pub(crate) name: String,
    /// The names of threads, by the system's numbers.
    pub(crate) threads: HashMap<u64, String>,
    /// More about it, for the trace's `otherData`.
    pub(crate) details: Vec<(String, String)>,
}

/// What a track does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TrackState {
    Poll,
    Gil,
    Turn,
    Callback(u64),
    Ready(u64),
    Received(u64, u64),
    Sending(u64, u64),
    Sent(u64, u64),
    TaskPoll(u64),
    Parked,
}

impl Snapshot {
    /// Writes the trace as JSON text.
    pub(crate) fn write_json(&self, process: &Process, file: &mut dyn io::Write) -> io::Result<()> {
        let out = String::with_capacity(CHUNK + 4096);
        let mut writer = Writer { snapshot: self, process: process.number, out, file, written: Ok(()) };
        writer.begin(process);
        for (track, thread) in self.threads.iter().enumerate() {
            let events = self.loops.iter().filter(|event| event.track() == track as u64);
            LoopTrack::new(&mut writer, *thread).write(events);
        }
        if self.one_ring {
            writer.write_gil();
        }
        for worker in &self.workers {
            writer.write_worker(worker);
        }
        writer.finish(process)
    }
}

/// Follows each element. The last one's is taken back, so it stays until then.
const SEPARATOR: &str = ",\n";

/// So many bytes are written at a time.
const CHUNK: usize = 1 << 16;

/// Writes the elements of `traceEvents`.
struct Writer<'a> {
    snapshot: &'a Snapshot,
    process: u64,
    /// What is not written yet.
    out: String,
    file: &'a mut dyn io::Write,
    /// The first error, after which nothing more is written.
    written: io::Result<()>,
}

impl Writer<'_> {
    fn begin(&mut self, process: &Process) {
        self.out.push_str("{\"traceEvents\":[\n");
        self.metadata("process_name", process.number, &process.name);
        for (place, thread) in self.snapshot.threads.iter().enumerate() {
            let name = process.threads.get(thread).map_or("", String::as_str);
            self.thread(*thread, place as u64, &format!("event loop {name}"));
        }
        if self.snapshot.one_ring {
            self.thread(GIL, 1 << 10, "GIL");
        }
        for worker in &self.snapshot.workers {
            self.thread(worker.thread, 1 << 11, &format!("runtime {}", worker.name));
        }
    }

    fn thread(&mut self, thread: u64, place: u64, name: &str) {
        self.metadata("thread_name", thread, name.trim_end());
        let _ = writeln!(
            self.out,
            r#"{{"ph":"M","pid":{},"tid":{thread},"name":"thread_sort_index","args":{{"sort_index":{place}}}}},"#,
            self.process,
        );
    }

    fn metadata(&mut self, what: &str, thread: u64, name: &str) {
        let _ = write!(
            self.out,
            r#"{{"ph":"M","pid":{},"tid":{thread},"name":"{what}","args":{{"name":"#,
            self.process,
        );
        push_string(&mut self.out, name);
        self.out.push_str("}}");
        self.out.push_str(SEPARATOR);
    }

    fn finish(mut self, process: &Process) -> io::Result<()> {
        self.out.truncate(self.out.len() - SEPARATOR.len());
        self.out.push_str("\n],\"displayTimeUnit\":\"ns\",\"otherData\":{");
        for (key, value) in &process.details {
            push_string(&mut self.out, key);
            self.out.push(':');
            push_string(&mut self.out, value);
            self.out.push(',');
        }
        let _ = writeln!(self.out, "\"events_dropped\":\"{}\"}}}}", self.snapshot.dropped);
        self.write(self.out.len());
        self.written
    }

    /// Writes the first bytes of what there is.
    fn write(&mut self, count: usize) {
        if self.written.is_ok() {
            self.written = self.file.write_all(&self.out.as_bytes()[..count]);
        }
        self.out.drain(..count);
    }

    fn nanos(&self, ticks: u64) -> u64 {
        self.snapshot.scale.nanos(ticks)
    }

    /// The beginning of an element, up to its name.
    fn head(&mut self, kind: &str, thread: u64, category: &str, nanos: u64) {
        let _ = write!(
            self.out,
            r#"{{"ph":"{kind}","pid":{},"tid":{thread},"cat":"{category}","ts":"#,
            self.process,
        );
        push_micros(&mut self.out, nanos);
    }

    /// A slice. `unfinished` says that it was cut by the end of the recording.
    fn slice(&mut self, thread: u64, state: TrackState, from: u64, to: u64, unfinished: bool) {
        let category = match state {
            TrackState::Poll => "poll",
            TrackState::Gil => "gil",
            TrackState::Turn => "turn",
            TrackState::Callback(number) => {
                self.snapshot.names.get(&number).map_or("callback", |name| name.category)
            }
            TrackState::Ready(_)
            | TrackState::Received(..)
            | TrackState::Sending(..)
            | TrackState::Sent(..) => "io",
            TrackState::TaskPoll(_) | TrackState::Parked => "runtime",
        };
        self.head("X", thread, category, from);
        self.out.push_str(",\"dur\":");
        push_micros(&mut self.out, to.saturating_sub(from));
        self.out.push_str(",\"name\":");
        let mut arguments = Vec::new();
        let name = match state {
            TrackState::Poll => "poll",
            TrackState::Gil => "wait for the GIL",
            TrackState::Turn => "turn",
            TrackState::Callback(number) => match self.snapshot.names.get(&number) {
                Some(name) => {
                    arguments.extend(name.details.iter().map(|(key, value)| (*key, Value::Text(value))));
                    &name.text
                }
                None => "(name not kept)",
            },
            TrackState::Ready(fd) => {
                arguments.push(("fd", Value::Number(fd)));
                "I/O"
            }
            TrackState::Received(fd, bytes) => {
                arguments.extend([("fd", Value::Number(fd)), ("bytes", Value::Number(bytes))]);
                "receive"
            }
            TrackState::Sending(fd, pending) => {
                arguments.extend([("fd", Value::Number(fd)), ("pending", Value::Number(pending))]);
                "send"
            }
            TrackState::Sent(fd, bytes) => {
                arguments.extend([("fd", Value::Number(fd)), ("bytes", Value::Number(bytes))]);
                "send"
            }
            TrackState::TaskPoll(number) => type_name(number),
            TrackState::Parked => "parked",
        };
        if unfinished {
            arguments.push(("unfinished", Value::True));
        }
        push_string(&mut self.out, name);
        self.arguments(&arguments);
    }

    fn instant(
        &mut self,
        thread: u64,
        category: &str,
        name: &str,
        nanos: u64,
        arguments: &[(&str, Value<'_>)],
    ) {
        self.head("i", thread, category, nanos);
        let _ = write!(self.out, ",\"s\":\"t\",\"name\":\"{name}\"");
        self.arguments(arguments);
    }

    /// The arguments of an element, and its end.
    fn arguments(&mut self, arguments: &[(&str, Value<'_>)]) {
        if !arguments.is_empty() {
            self.out.push_str(",\"args\":");
            for (place, (key, value)) in arguments.iter().enumerate() {
                let _ = write!(self.out, "{}\"{key}\":", if place == 0 { '{' } else { ',' });
                match value {
                    Value::Text(text) => push_string(&mut self.out, text),
                    Value::Number(number) => {
                        let _ = write!(self.out, "{number}");
                    }
                    Value::Micros(nanos) => push_micros(&mut self.out, *nanos),
                    Value::True => self.out.push_str("true"),
                }
            }
            self.out.push('}');
        }
        self.out.push('}');
        self.out.push_str(SEPARATOR);
        if self.out.len() >= CHUNK {
            self.write(self.out.len() - SEPARATOR.len());
        }
    }

    /// A worker's track: it polls a task, sleeps, or looks for one.
    fn write_worker(&mut self, worker: &Track) {
        let mut state: Option<(TrackState, u64)> = None;
        let mut now = 0;
        for event in &worker.events {
            // Never back, as in `LoopTrack::write`.
            now = now.max(self.nanos(event.ticks));
            let next = match event.kind() {
                Some(Kind::TaskPoll) => Some(TrackState::TaskPoll(event.number())),
                Some(Kind::Park) => Some(TrackState::Parked),
                Some(Kind::Unpark) => None,
                Some(Kind::Steal) => {
                    self.instant(worker.thread, "runtime", "steal", now, &[]);
                    continue;
                }
                _ => continue,
            };
            if let Some((before, from)) = std::mem::replace(&mut state, next.map(|next| (next, now))) {
                self.slice(worker.thread, before, from, now, false);
            }
        }
        if let Some((state, from)) = state {
            self.slice(worker.thread, state, from, self.nanos(self.snapshot.end), true);
        }
    }

    /// The GIL's track: which loop had it. All loops write one ring, so the thread of an event had the GIL then. Between
    /// two events of a loop the interpreter may lend it to a thread without a loop, which is not seen here.
    fn write_gil(&mut self) {
        // The loop that has the GIL, and since when; and since when each loop polls.
        let mut holder: Option<(u64, u64)> = None;
        let mut polls: HashMap<u64, u64> = HashMap::new();
        let (mut free_since, mut now) = (0, 0);
        for event in &self.snapshot.loops {
            // Never back, as in `LoopTrack::write`.
            now = now.max(self.nanos(event.ticks));
            let track = event.track();
            let waited = match event.kind() {
                Some(Kind::Polled) => event.number().checked_sub(1),
                _ => None,
            };
            if let Some((other, since)) = holder
                && (other != track || waited.is_some())
            {
                let until = polls.get(&other).copied().unwrap_or(now).min(now);
                self.held(other, since, until);
                (holder, free_since) = (None, until.max(since));
            }
            if let Some(waited) = waited
                && waited > WAITED
                && let Some(from) = now.checked_sub(waited)
                && from >= free_since
            {
                self.head("X", GIL, "gil", from);
                self.out.push_str(",\"dur\":");
                push_micros(&mut self.out, waited);
                self.out.push_str(",\"name\":\"another thread\"");
                self.arguments(&[]);
            }
            holder = holder.or(Some((track, now)));
            match event.kind() {
                Some(Kind::Poll) => drop(polls.insert(track, now)),
                Some(Kind::Leave) => {
                    self.held(track, holder.map_or(now, |(_, since)| since), now);
                    (holder, free_since) = (None, now);
                }
                _ => drop(polls.remove(&track)),
            }
        }
        if let Some((track, since)) = holder {
            let until = polls.get(&track).copied().unwrap_or_else(|| self.nanos(self.snapshot.end));
            self.held(track, since, until);
        }
    }

    fn held(&mut self, track: u64, from: u64, to: u64) {
        if to > from {
            self.head("X", GIL, "gil", from);
            self.out.push_str(",\"dur\":");
            push_micros(&mut self.out, to - from);
            let thread = self.snapshot.threads.get(track as usize).copied().unwrap_or_default();
            let _ = write!(self.out, ",\"name\":\"event loop\"");
            self.arguments(&[("thread", Value::Number(thread))]);
        }
    }
}

enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Micros(u64),
    True,
}

/// A loop's track. A turn has callbacks and I/O, and a callback may send.
struct LoopTrack<'a, 'b> {
    writer: &'a mut Writer<'b>,
    thread: u64,
    turn: Option<u64>,
    state: Option<(TrackState, u64)>,
    inner: Option<(TrackState, u64)>,
    end: u64,
}

impl<'a, 'b> LoopTrack<'a, 'b> {
    fn new(writer: &'a mut Writer<'b>, thread: u64) -> LoopTrack<'a, 'b> {
        LoopTrack { writer, thread, turn: None, state: None, inner: None, end: 0 }
    }

    fn write<'e>(mut self, events: impl Iterator<Item = &'e Event>) {
        for event in events {
            // Never back: the counters of two processors may differ a little.
            self.end = self.end.max(self.writer.nanos(event.ticks));
            if event.begins_turn() {
                self.close_turn(self.end, false);
                self.turn = Some(self.end);
            }
            if let Some(kind) = event.kind() {
                self.event(kind, *event, self.end);
            }
        }
        let end = self.end.max(self.writer.nanos(self.writer.snapshot.end));
        self.close_turn(end, true);
    }

    fn event(&mut self, kind: Kind, event: Event, now: u64) {
        match kind {
            Kind::Poll => {
                self.close_turn(now, false);
                self.state = Some((TrackState::Poll, now));
            }
            Kind::Polled => {
                let waited =
                    Some(event.number().saturating_sub(1)).filter(|waited| *waited > WAITED).unwrap_or(0);
                // The poll has ended before the wait.
                let back = self.state.map_or(now, |(_, from)| now.saturating_sub(waited).max(from));
                self.close(back, false);
                if waited > 0 {
                    self.writer.slice(self.thread, TrackState::Gil, back, now, false);
                }
                self.turn = Some(now);
            }
            Kind::Timer => {
                let late = [("late_us", Value::Micros(event.number()))];
                self.writer.instant(self.thread, "timer", "timer", now, &late);
            }
            Kind::Callback => self.enter(TrackState::Callback(event.number()), now),
            Kind::Ready => self.enter(TrackState::Ready(event.number()), now),
            Kind::Received => {
                let (fd, bytes) = event.transferred();
                if let Some((state @ TrackState::Ready(_), _)) = &mut self.state {
                    *state = TrackState::Received(fd, bytes);
                    self.close(now, false);
                } else {
                    // The event's next receive, or one of a callback.
                    let bytes = [("fd", Value::Number(fd)), ("bytes", Value::Number(bytes))];
                    self.writer.instant(self.thread, "io", "receive", now, &bytes);
                }
            }
            Kind::Flush | Kind::Write => {
                let (fd, pending) = event.transferred();
                if kind == Kind::Flush {
                    self.enter(TrackState::Sending(fd, pending), now);
                } else {
                    self.inner = Some((TrackState::Sending(fd, pending), now));
                }
            }
            Kind::Written => {
                let (_, left) = event.transferred();
                let place = if self.inner.is_some() { &mut self.inner } else { &mut self.state };
                if let Some((TrackState::Sending(fd, pending), from)) = *place {
                    *place = None;
                    let sent = TrackState::Sent(fd, pending.saturating_sub(left));
                    self.writer.slice(self.thread, sent, from, now, false);
                }
            }
            Kind::SlowTurn => {
                let took = [("took_us", Value::Micros(event.number()))];
                self.writer.instant(self.thread, "turn", "slow turn", now, &took);
            }
            Kind::Leave => self.close_turn(now, false),
            Kind::TaskPoll | Kind::Steal | Kind::Park | Kind::Unpark => {}
        }
    }

    fn enter(&mut self, state: TrackState, now: u64) {
        self.close(now, false);
        self.state = Some((state, now));
    }

    fn close(&mut self, now: u64, unfinished: bool) {
        for (state, from) in [self.inner.take(), self.state.take()].into_iter().flatten() {
            self.writer.slice(self.thread, state, from, now, unfinished);
        }
    }

    fn close_turn(&mut self, now: u64, unfinished: bool) {
        self.close(now, unfinished);
        if let Some(from) = self.turn.take() {
            self.writer.slice(self.thread, TrackState::Turn, from, now, unfinished);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::Moment;
    use super::super::event::{Origin, transfer};
    use super::*;

    /// An event. Above [`TURN`], the track is that of an event with which a turn begins.
    fn event(ticks: u64, kind: Kind, track: u64, number: u64) -> Event {
        let origin = Origin::track((track % TURN) as usize);
        Event::new(ticks, kind, if track < TURN { origin } else { origin.with_turn() }, number)
    }

    const TURN: u64 = 100;

    /// A snapshot at tick 1,000 of events in which a tick is a microsecond; `(ticks, kind, track, number)`.
    fn snapshot(events: &[(u64, Kind, u64, u64)]) -> Snapshot {
        let moment = |micros| Moment { ticks: micros, nanos: micros * 1000 };
        let name = Name {
            text: "say \"hi\"".to_owned(),
            category: "task",
            details: vec![("module", "m".to_owned())],
        };
        Snapshot {
            scale: Scale::between(moment(0), moment(1000)),
            end: 1000,
            one_ring: true,
            loops: events
                .iter()
                .map(|&(ticks, kind, track, number)| event(ticks, kind, track, number))
                .collect(),
            threads: vec![11, 22],
            names: HashMap::from([(1, Arc::new(name))]),
            workers: Vec::new(),
            dropped: 9,
        }
    }

    fn json(snapshot: &Snapshot, process: &Process) -> String {
        let mut text = Vec::new();
        snapshot.write_json(process, &mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_long_trace_is_written_in_chunks_up_to_the_first_error() {
        struct Disk(Vec<usize>);
        impl io::Write for Disk {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                self.0.push(bytes.len());
                if self.0.len() == 3 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let events: Vec<_> = (0..5000).map(|tick| (tick, Kind::Callback, 0, 1)).collect();
        let snapshot = snapshot(&events);
        let text = json(&snapshot, &Process::default());
        assert!(text.len() > 4 * CHUNK && text.matches("\"ph\":\"X\"").count() >= 4999);
        assert!(
            text.ends_with("}\n],\"displayTimeUnit\":\"ns\",\"otherData\":{\"events_dropped\":\"9\"}}\n")
        );
        let mut disk = Disk(Vec::new());
        let error = snapshot.write_json(&Process::default(), &mut disk).unwrap_err();
        assert_eq!((error.kind(), disk.0.len()), (io::ErrorKind::StorageFull, 3));
        assert!(disk.0.iter().all(|count| (CHUNK..CHUNK + 4096).contains(count)));
    }

    /// The slices and instants of a thread: name, time, duration and arguments.
    fn elements(snapshot: &Snapshot, thread: u64) -> Vec<String> {
        let text = json(snapshot, &Process { number: 7, ..Process::default() });
        let wanted = format!(",\"tid\":{thread},");
        let lines = text.lines().filter(|line| line.contains(&wanted) && !line.contains("\"ph\":\"M\""));
        lines
            .map(|line| {
                let of = |key: &str| {
                    let rest = line.split_once(&format!("\"{key}\":"))?.1;
                    Some(rest.split([',', '}']).next()?.trim_matches('"').to_owned())
                };
                let arguments =
                    line.split_once("\"args\":{").map_or("", |(_, rest)| rest.split('}').next().unwrap());
                let [name, from, took] = ["name", "ts", "dur"].map(|key| of(key).unwrap_or_default());
                format!("{name} {from} {took} {arguments}").trim_end().to_owned()
            })
            .collect()
    }

    #[test]
    fn a_turn_holds_its_callbacks_and_its_io() {
        let events = [
            (10, Kind::Poll, 0, 0),
            (30, Kind::Polled, 0, 6_001),
            (31, Kind::Ready, 0, 6),
            (33, Kind::Received, 0, transfer(6, 1024)),
            (33, Kind::Callback, 0, 1),
            (40, Kind::Write, 0, transfer(6, 10)),
            (42, Kind::Written, 0, transfer(6, 3)),
            (50, Kind::Flush, 0, transfer(6, 8)),
            (55, Kind::Written, 0, transfer(6, 0)),
            (60, Kind::Timer, TURN, 2_500),
            (62, Kind::Callback, 0, 99),
            (70, Kind::Leave, 0, 0),
        ];
        let expected = [
            "poll 10.000 14.000",
            "wait for the GIL 24.000 6.000",
            r#"receive 31.000 2.000 "fd":6,"bytes":1024"#,
            r#"send 40.000 2.000 "fd":6,"bytes":7"#,
            r#"say \"hi\ 33.000 17.000 "module":"m""#,
            r#"send 50.000 5.000 "fd":6,"bytes":8"#,
            "turn 30.000 30.000",
            r#"timer 60.000  "late_us":2.500"#,
            "(name not kept) 62.000 8.000",
            "turn 60.000 10.000",
        ];
        assert_eq!(elements(&snapshot(&events), 11), expected);
        assert_eq!(elements(&snapshot(&events), 22), [""; 0]);
    }

    #[test]
    fn what_goes_on_at_the_moment_of_the_snapshot_is_marked() {
        let events = [(10, Kind::Polled, 0, 0), (20, Kind::Callback, 0, 1), (30, Kind::Poll, 1, 0)];
        let expected = [
            r#"say \"hi\ 20.000 980.000 "module":"m","unfinished":true"#,
            r#"turn 10.000 990.000 "unfinished":true"#,
        ];
        assert_eq!(elements(&snapshot(&events), 11), expected);
        assert_eq!(elements(&snapshot(&events), 22), [r#"poll 30.000 970.000 "unfinished":true"#]);
    }

    #[test]
    fn the_gil_is_held_by_one_loop_at_a_time_or_by_another_thread() {
        let events = [
            (10, Kind::Callback, TURN, 1),
            (20, Kind::Poll, 0, 0),
            (30, Kind::Callback, 1, 1),
            (40, Kind::Poll, 1, 0),
            // It got the GIL as soon as the poll was over.
            (60, Kind::Polled, 0, 1),
            (70, Kind::Poll, 0, 0),
            (100, Kind::Polled, 1, 20_001),
            // The interpreter has switched between the two threads.
            (110, Kind::Callback, 0, 1),
        ];
        let expected = [
            r#"event loop 10.000 10.000 "thread":11"#,
            r#"event loop 30.000 10.000 "thread":22"#,
            r#"event loop 60.000 10.000 "thread":11"#,
            "another thread 80.000 20.000",
            r#"event loop 100.000 10.000 "thread":22"#,
            r#"event loop 110.000 890.000 "thread":11"#,
        ];
        assert_eq!(elements(&snapshot(&events), GIL), expected);
    }

    #[test]
    fn the_tracks_of_the_gil_and_of_a_worker_never_go_back_in_time() {
        let mut snapshot = snapshot(&[
            (10, Kind::Callback, TURN, 1),
            (40, Kind::Callback, 1, 1),
            (38, Kind::Callback, 0, 1),
            (50, Kind::Poll, 0, 0),
        ]);
        let events = [(5, Kind::Park), (10, Kind::Unpark), (8, Kind::Park), (12, Kind::Unpark)];
        let events = events.map(|(ticks, kind)| event(ticks, kind, 0, 0)).to_vec();
        snapshot.workers.push(Track { thread: 33, name: "worker".to_owned(), events });
        let expected = [r#"event loop 10.000 30.000 "thread":11"#, r#"event loop 40.000 10.000 "thread":11"#];
        assert_eq!(elements(&snapshot, GIL), expected);
        assert_eq!(elements(&snapshot, 33), ["parked 5.000 5.000", "parked 10.000 2.000"]);
    }

    #[test]
    fn a_wait_for_the_gil_that_is_longer_than_the_clock_has_run_is_left_out() {
        let snapshot = snapshot(&[(1, Kind::Polled, 0, 6_000_001)]);
        assert_eq!(elements(&snapshot, GIL), ["event loop 1.000 999.000 \"thread\":11"]);
    }

    #[test]
    fn a_worker_polls_steals_and_sleeps() {
        use super::super::event::{TypeName, type_number};
        static NAME: TypeName = || "a future";

        let task = type_number(&NAME);
        let events = [
            (10, Kind::TaskPoll, 0, task),
            (20, Kind::Park, 0, 0),
            (30, Kind::Unpark, 0, 0),
            (31, Kind::Steal, 0, 0),
            (32, Kind::TaskPoll, 0, task),
        ];
        let mut snapshot = snapshot(&events);
        let track =
            Track { thread: 33, name: "wakeloop-0".to_owned(), events: std::mem::take(&mut snapshot.loops) };
        snapshot.workers.push(track);
        let expected = [
            "a future 10.000 10.000",
            "parked 20.000 10.000",
            "steal 31.000",
            r#"a future 32.000 968.000 "unfinished":true"#,
        ];
        assert_eq!(elements(&snapshot, 33), expected);
    }

    #[test]
    fn a_trace_without_events_is_an_object_too() {
        let process =
            Process { number: 7, details: vec![("a\n".to_owned(), "b".to_owned())], ..Process::default() };
        let text = json(&snapshot(&[]), &process);
        assert!(text.starts_with("{\"traceEvents\":[\n{"), "{text}");
        let end =
            "}\n],\"displayTimeUnit\":\"ns\",\"otherData\":{\"a\\u000a\":\"b\",\"events_dropped\":\"9\"}}\n";
        assert!(text.ends_with(end), "{text}");
    }
}
