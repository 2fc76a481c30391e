//! Rounds in which the runtimes take turns.

use std::path::PathBuf;
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
            rounds: 21,
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

pub fn run(options: &Options) {
    let mut rows = Vec::new();
    for &kind in &options.kinds {
        let runtimes = runtimes(kind);
        let names: Vec<_> = runtimes.iter().map(|(name, _)| *name).collect();
        report::heading(kind, &names);
        for (index, scenario) in runtimes[0].1.iter().enumerate() {
            if !matches(&options.filters, scenario.name) {
                continue;
            }
            let bodies = runtimes.iter().map(|(_, scenarios)| (scenarios[index].prepare)(kind)).collect();
            let samples = interleave(bodies, options, scenario.by);
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

/// Samples by runtime, then by round.
fn interleave(mut bodies: Vec<Body>, options: &Options, by: Clock) -> Vec<Vec<Sample>> {
    let repetitions: Vec<u64> = bodies.iter_mut().map(|body| calibrate(body, options.slice, by)).collect();
    let mut samples = vec![Vec::with_capacity(options.rounds); bodies.len()];
    // What sleeps anyway needs no more rounds than patience allows.
    let rounds = if by == Clock::Cpu { options.rounds.div_ceil(3) } else { options.rounds };
    for round in 0..rounds {
        for turn in 0..bodies.len() {
            let index = (round + turn) % bodies.len();
            samples[index].push(measure(&mut bodies[index], repetitions[index]));
        }
    }
    samples
}

/// How many repetitions take about as long as a slice.
fn calibrate(body: &mut Body, slice: Duration, by: Clock) -> u64 {
    if by == Clock::Cpu {
        return 1;
    }
    let mut repetitions = 1;
    loop {
        // The best of three: a neighbour's time slice must not pass for ours.
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
