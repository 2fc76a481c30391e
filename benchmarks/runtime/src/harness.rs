//! Rounds in which the runtimes take turns, in processes that live for a few of them.
//!
//! The system chooses processors for two threads when they start, and mostly keeps the choice: on one processor they
//! wake each other for a tenth of what it costs on two. So a process is one sample of this choice, and the median over
//! one long-lived process would measure the choice and not the runtime. Each process runs one runtime, so that idle
//! threads of another do not disturb it.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::api::{self, Body, Clock, Kind, Scenario};
use crate::report::{self, Row};

pub struct Options {
    filters: Vec<String>,
    rounds: usize,
    /// How long one body runs per round, about.
    slice: Duration,
    json: Option<PathBuf>,
    kinds: Vec<Kind>,
}

impl Options {
    pub fn parse(arguments: &[String]) -> Option<Options> {
        let mut options = Options {
            filters: Vec::new(),
            rounds: 33,
            slice: Duration::from_millis(5),
            json: None,
            kinds: vec![Kind::Workers(1), Kind::Workers(2), Kind::CurrentThread],
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--rounds" => options.rounds = arguments.next()?.parse().ok().filter(|n| *n > 0)?,
                "--millis" => options.slice = Duration::from_millis(arguments.next()?.parse().ok()?),
                "--json" => options.json = Some(arguments.next()?.into()),
                "--workers" => options.kinds = vec![parse_kind(arguments.next()?)?],
                flag if flag.starts_with('-') => return None,
                filter => options.filters.push(filter.to_owned()),
            }
        }
        Some(options)
    }
}

/// A number of workers, 0 for a runtime on the current thread.
pub fn parse_kind(text: &str) -> Option<Kind> {
    Some(match text.parse().ok()? {
        0 => Kind::CurrentThread,
        workers => Kind::Workers(workers),
    })
}

/// Runtimes with their scenarios, ours first.
pub fn runtimes(kind: Kind) -> Vec<(&'static str, Vec<Scenario>)> {
    let ours = ("wakeloop", api::wakeloop::scenarios::all());
    let tokio = ("tokio", api::tokio::scenarios::all());
    match kind {
        Kind::Workers(_) => vec![ours, tokio, ("smol", api::smol::scenarios::all())],
        Kind::CurrentThread => vec![ours, tokio],
    }
}

pub fn matches(filters: &[String], name: &str) -> bool {
    filters.is_empty() || filters.iter().any(|filter| name.contains(filter.as_str()))
}

/// One measured run of a body, per repetition.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    pub wall: f64,
    pub cpu: f64,
}

impl Sample {
    fn parse(line: &str) -> Option<Sample> {
        let (wall, cpu) = line.split_once(' ')?;
        Some(Sample { wall: wall.parse().ok()?, cpu: cpu.parse().ok()? })
    }
}

pub fn run(options: &Options) {
    let mut rows = Vec::new();
    for &kind in &options.kinds {
        let runtimes = runtimes(kind);
        let names: Vec<_> = runtimes.iter().map(|(name, _)| *name).collect();
        report::heading(kind, &names);
        for scenario in &runtimes[0].1 {
            if !matches(&options.filters, scenario.name) {
                continue;
            }
            let Some(samples) = interleave(scenario, kind, &names, options) else {
                println!("{:<26} FAIL", scenario.name);
                continue;
            };
            let row = Row::new(kind, scenario, &names, &samples);
            row.print();
            rows.push(row);
        }
        report::summary(kind, &rows);
    }
    if let Some(path) = &options.json
        && let Err(error) = report::write_json(path, &rows)
    {
        eprintln!("{}: {error}", path.display());
    }
}

/// Rounds of one process.
const ROUNDS_OF_ONE: usize = 3;

/// Samples by runtime, then by round; none where a process failed.
fn interleave(
    scenario: &Scenario,
    kind: Kind,
    names: &[&str],
    options: &Options,
) -> Option<Vec<Vec<Sample>>> {
    let mut samples = vec![Vec::with_capacity(options.rounds); names.len()];
    // Scenarios that mostly sleep get fewer rounds.
    let rounds = if scenario.by == Clock::Cpu { options.rounds.div_ceil(3) } else { options.rounds };
    for process in 0..rounds.div_ceil(ROUNDS_OF_ONE) {
        for turn in 0..names.len() {
            // All orders take turns, so that no runtime always follows the same other one.
            let index =
                (process / 2 + if process % 2 == 0 { turn } else { names.len() - turn }) % names.len();
            samples[index].extend(rounds_of_a_process(scenario, names[index], kind, options.slice)?);
        }
    }
    Some(samples)
}

fn rounds_of_a_process(
    scenario: &Scenario,
    runtime: &str,
    kind: Kind,
    slice: Duration,
) -> Option<Vec<Sample>> {
    let output = Command::new(env::current_exe().ok()?)
        .args(["rounds", scenario.name, runtime])
        .args([report::workers(kind).to_string(), slice.as_millis().to_string()])
        .stderr(Stdio::inherit())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let samples: Option<Vec<_>> = text.lines().map(Sample::parse).collect();
    samples.filter(|samples| output.status.success() && samples.len() == ROUNDS_OF_ONE)
}

/// `rounds SCENARIO RUNTIME WORKERS MILLIS`: the samples of one process, a line each.
pub fn rounds(arguments: &[String]) -> ExitCode {
    let found = match arguments {
        [scenario, runtime, workers, millis] => find(scenario, runtime, workers).zip(millis.parse().ok()),
        _ => None,
    };
    let Some(((scenario, kind), millis)) = found else {
        eprintln!("usage: runtime-bench rounds SCENARIO wakeloop|tokio|smol WORKERS MILLIS");
        return ExitCode::from(2);
    };
    let mut body = (scenario.prepare)(kind);
    let repetitions = calibrate(&mut body, Duration::from_millis(millis), scenario.by);
    for _ in 0..ROUNDS_OF_ONE {
        let Sample { wall, cpu } = measure(&mut body, repetitions);
        println!("{wall} {cpu}");
    }
    ExitCode::SUCCESS
}

/// A scenario by a part of its name, on the runtime of this name.
pub fn find(scenario: &str, runtime: &str, workers: &str) -> Option<(Scenario, Kind)> {
    let kind = parse_kind(workers)?;
    let (_, all) = runtimes(kind).into_iter().find(|(name, _)| *name == runtime)?;
    Some((all.into_iter().find(|one| one.name.contains(scenario))?, kind))
}

/// How many repetitions take about as long as a slice.
fn calibrate(body: &mut Body, slice: Duration, by: Clock) -> u64 {
    if by == Clock::Cpu {
        return 1;
    }
    let mut repetitions = 1;
    loop {
        // The best of three, which leaves out what other processes took.
        let took = (0..3).map(|_| time(body, repetitions)).min().unwrap_or_default();
        if took >= slice / 2 {
            let scale = slice.as_secs_f64() / took.as_secs_f64();
            return ((repetitions as f64 * scale) as u64).max(1);
        }
        repetitions *= 2;
    }
}

fn time(body: &mut Body, repetitions: u64) -> Duration {
    let start = Instant::now();
    body(repetitions);
    start.elapsed()
}

fn measure(body: &mut Body, repetitions: u64) -> Sample {
    let (wall, cpu) = (Instant::now(), process_cpu());
    body(repetitions);
    Sample {
        wall: wall.elapsed().as_nanos() as f64 / repetitions as f64,
        cpu: (process_cpu() - cpu).as_nanos() as f64 / repetitions as f64,
    }
}

/// CPU time of all threads of this process.
pub fn process_cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the timespec it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
