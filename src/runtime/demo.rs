//! The demo: two tasks that sleep, and every step that the scheduler takes with them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::builder::Builder;
use super::handle::spawn;
use super::metrics::Metrics;
use super::time::sleep;
use super::trace::{TraceEvent, Tracer};
use crate::poison::unpoisoned;

const MILLIS: fn(u64) -> Duration = Duration::from_millis;

/// Runs the demo for about a second and a half: task A sleeps 1 s and then 0.5 s, task B 0.25 s. Writes each
/// scheduling event, then the runtime's counters.
///
/// # Errors
/// When the runtime cannot be made, or `out` cannot be written to.
pub fn run_demo(out: &mut dyn Write) -> io::Result<()> {
    let recorder = Arc::new(Recorder { start: Instant::now(), events: Mutex::default() });
    let runtime = Builder::new().worker_threads(1).tracer(recorder.clone()).build()?;
    writeln!(out, "wakeloop demo: task A sleeps 1 s and 0.5 s, task B 0.25 s, on one worker\n")?;
    writeln!(out, "{:>10}  event", "time")?;
    // Spawned inside a task, so that the order is the same in each run.
    let both = runtime.spawn(async {
        let a = spawn(async {
            sleep(MILLIS(1000)).await;
            sleep(MILLIS(500)).await;
        });
        let b = spawn(sleep(MILLIS(250)));
        (a.await, b.await)
    });
    let finished = matches!(runtime.block_on(both), Ok((Ok(()), Ok(()))));
    let metrics = runtime.metrics();
    drop(runtime);
    recorder.write_to(out)?;
    if !finished {
        return Err(io::Error::other("a task of the demo failed"));
    }
    write_figures(out, &metrics)
}

/// Collects the events. Writing each of them as it happens would disturb the times.
struct Recorder {
    start: Instant,
    events: Mutex<Vec<(Duration, TraceEvent)>>,
}

impl Tracer for Recorder {
    fn event(&self, event: TraceEvent) {
        unpoisoned(self.events.lock()).push((self.start.elapsed(), event));
    }
}

impl Recorder {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut names = Names::default();
        for (at, event) in unpoisoned(self.events.lock()).iter() {
            if let Some(text) = describe(*event, *at, self.start, &mut names) {
                writeln!(out, "{:>7.3} ms  {text}", at.as_secs_f64() * 1000.0)?;
            }
        }
        Ok(())
    }
}

/// The first task spawned is the one that spawns the others.
#[derive(Default)]
struct Names(HashMap<usize, &'static str>);

impl Names {
    fn of(&mut self, task: usize) -> &'static str {
        let next = ["main  ", "task A", "task B"].get(self.0.len()).unwrap_or(&"task  ");
        self.0.entry(task).or_insert(next)
    }
}

fn describe(event: TraceEvent, at: Duration, start: Instant, names: &mut Names) -> Option<String> {
    Some(match event {
        TraceEvent::Spawned { task } => format!("{}  spawned, into the ready queue", names.of(task)),
        TraceEvent::Polled { task } => format!("{}  polled", names.of(task)),
        TraceEvent::Pending { task } => format!("{}  Pending", names.of(task)),
        TraceEvent::Woken { task } => format!("{}  woken, into the ready queue", names.of(task)),
        TraceEvent::Completed { task } => format!("{}  completed", names.of(task)),
        TraceEvent::TimerArmed { deadline } => {
            let wait = deadline.saturating_duration_since(start + at);
            format!("timer   armed, due in {:.1} ms", wait.as_secs_f64() * 1000.0)
        }
        TraceEvent::TimerFired { deadline } => {
            let late = (start + at).saturating_duration_since(deadline);
            format!("timer   fired, {:.0} us late", late.as_secs_f64() * 1e6)
        }
        TraceEvent::Parked { .. } => "worker  nothing to do: sleeps in epoll".to_owned(),
        TraceEvent::Unparked { .. } => "worker  awake".to_owned(),
    })
}

fn write_figures(out: &mut dyn Write, metrics: &Metrics) -> io::Result<()> {
    let percent = 100.0 * metrics.idle.as_secs_f64() / metrics.uptime.as_secs_f64();
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:<16}{value}");
    };
    line("total runtime", format!("{:.3} s", metrics.uptime.as_secs_f64()));
    line("tasks executed", metrics.tasks_completed.to_string());
    line("poll calls", metrics.polls.to_string());
    line("timers fired", metrics.timers_fired.to_string());
    line("wakeups", metrics.wakeups.to_string());
    line("CPU idle time", format!("{:.3} s ({percent:.2} %)", metrics.idle.as_secs_f64()));
    if let Some(kib) = peak_memory() {
        line("peak memory", format!("{:.1} MiB", kib as f64 / 1024.0));
    }
    writeln!(out, "\n{text}")
}

/// Returns the peak memory use of this process, in KiB.
fn peak_memory() -> Option<u64> {
    // On Linux, getrusage would also count the program that started us by exec.
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
        return line.split_whitespace().nth(1)?.parse().ok();
    }
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the call fills the struct if it succeeds, and it is read only then.
    let usage = unsafe {
        (libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) == 0).then(|| usage.assume_init())
    }?;
    let unit = if cfg!(target_vendor = "apple") { 1024 } else { 1 };
    u64::try_from(usage.ru_maxrss).ok().map(|max| max / unit)
}
