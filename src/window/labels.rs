//! `/labels`: the processor time of each loop's thread from now on, by the label of what runs, and that of the other
//! threads.

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use super::answer::Answer;
use super::json::{self, Object, page};
use super::period::{self, LetIn, OneAtATime};
use crate::clock::{monotonic_nanos, other_thread_nanos};
use crate::kernel::core::probe::labels::{self, LabelSums, Moment};
use crate::kernel::core::probe::registry::{self, Asked};
use crate::runtime::time::sleep;

/// There is one question at a time.
static ASKS: OneAtATime = OneAtATime::new();

/// The question. It ends also if the connection ends before it.
struct LabelQuestion {
    number: u64,
    _let_in: LetIn,
}

impl Drop for LabelQuestion {
    fn drop(&mut self) {
        labels::end();
    }
}

pub(super) fn forked() {
    ASKS.forked();
}

pub(super) async fn get(given: Option<&str>) -> Answer {
    let seconds = match period::seconds("/labels", given) {
        Ok(seconds) => seconds,
        Err(answer) => return answer,
    };
    let Some(let_in) = ASKS.enter() else { return Answer::line(503, "somebody else asks for labels") };
    let question = LabelQuestion { number: labels::begin(), _let_in: let_in };
    let running = registry::loops(monotonic_nanos()).into_iter().filter(|view| view.running);
    running.for_each(|view| view.entry.ask(Asked::Labels));
    let earlier = thread_times();
    sleep(Duration::from_secs_f64(seconds)).await;
    // So that no loop adds to sums that are taken.
    labels::end();
    let mut threads = thread_times();
    let answer = page(|page| {
        page.plain("seconds", seconds);
        page.list("loops", registry::loops(monotonic_nanos()), |out, view| {
            let sums = view.entry.labels.take(question.number).map(close);
            if let Some(sums) = &sums {
                threads.remove(&sums.thread);
            }
            json::object(out, |object| {
                object.text("name", &view.name);
                write(object, sums.as_ref());
            });
        });
        let jobs = labels::take_jobs(question.number).into_iter().map(close).reduce(|mut all, job| {
            all.add(&job);
            all
        });
        page.object("jobs", |object| write_labels(object, jobs.as_ref()));
        let spent = |number: &u64, now: u64| now.saturating_sub(earlier.get(number).copied().unwrap_or(0));
        let mut others: Vec<_> = threads.iter().map(|(number, now)| (spent(number, *now), *number)).collect();
        others.retain(|(nanos, _)| *nanos != 0);
        others.sort_unstable_by(|one, other| other.cmp(one));
        page.list("other_threads", others, |out, (nanos, number)| {
            json::object(out, |object| {
                object.text("name", &thread_name(number));
                object.plain("thread", number);
                object.seconds("cpu_seconds", nanos);
            });
        });
    });
    drop(question);
    answer
}

/// The processor time of each thread of this process, by the system's number of the thread. Empty where the system does
/// not list them.
fn thread_times() -> HashMap<u64, u64> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten();
    let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
    numbers.filter_map(|number| Some((number, other_thread_nanos(number)?))).collect()
}

fn thread_name(number: u64) -> String {
    let name = fs::read(format!("/proc/self/task/{number}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// Adds what runs now.
fn close(mut sums: LabelSums) -> LabelSums {
    if sums.is_running()
        && let Some(cpu) = other_thread_nanos(sums.thread)
    {
        sums.pause(Moment { cpu, now: monotonic_nanos() });
    }
    sums
}

/// Without sums, the loop has not run, or one turn has lasted all the time.
fn write(object: &mut Object<'_>, sums: Option<&LabelSums>) {
    let of = |sum: fn(&LabelSums) -> u64| sums.map_or(0, sum);
    object.seconds("measured_seconds", of(|sums| sums.measured));
    object.seconds("loop_seconds", of(LabelSums::of_loop));
    write_labels(object, sums);
}

/// What is known of a loop and of jobs.
fn write_labels(object: &mut Object<'_>, sums: Option<&LabelSums>) {
    let of = |sum: fn(&LabelSums) -> u64| sums.map_or(0, sum);
    object.seconds("cpu_seconds", of(LabelSums::all));
    object.seconds("unlabelled_seconds", of(LabelSums::unlabelled));
    object.seconds("other_seconds", of(LabelSums::other));
    object.list("labels", sums.map(LabelSums::labels).unwrap_or_default(), |out, (label, nanos)| {
        json::object(out, |object| {
            object.text("label", label);
            object.seconds("seconds", nanos);
        });
    });
}
