//! A million sleeps, and tasks that never wait. Each runtime has a process of its own, whose memory is its own.

use std::env;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use crate::api::{self, Delays, Kind, Sleeps};
use crate::report::{median, write};

const RUNTIMES: [&str; 3] = ["wakeloop", "tokio", "smol"];
const WORKERS: Kind = Kind::Workers(2);
const BUSY: usize = 8;
const SAMPLES: usize = 500;
/// Over how long the sleeps end: a quarter of a million per second.
const SPREAD_PER_MILLION: f64 = 4.0;

/// The arguments of both commands.
struct Options {
    count: usize,
    rounds: usize,
    json: Option<PathBuf>,
    /// Set in the process of one runtime.
    one: Option<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Option<Options> {
        let mut options = Options { count: 1_000_000, rounds: 3, json: None, one: None };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let value = arguments.next()?;
            match argument.as_str() {
                "--count" => options.count = value.parse().ok().filter(|count| *count >= 100)?,
                "--rounds" => options.rounds = value.parse().ok()?,
                "--json" => options.json = Some(value.into()),
                "--one" => options.one = Some(value.clone()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// `sleeps [--count N] [--rounds R] [--json FILE]`
pub fn sleeps(arguments: &[String]) -> ExitCode {
    let Some(options) = Options::parse(arguments) else { return usage("sleeps") };
    if let Some(name) = &options.one {
        let run = match name.as_str() {
            "wakeloop" => api::wakeloop::scenarios::latency::sleeps,
            "tokio" => api::tokio::scenarios::latency::sleeps,
            _ => api::smol::scenarios::latency::sleeps,
        };
        let spread = Duration::from_secs_f64(SPREAD_PER_MILLION * options.count as f64 / 1e6);
        let Sleeps {
            arm_ns,
            cancel_ns,
            bytes_per_sleep,
            bytes_per_task,
            cpu_per_task,
            late_p50,
            late_p99,
            late_max,
        } = run(WORKERS, options.count, spread);
        println!(
            "{arm_ns} {cancel_ns} {bytes_per_sleep} {bytes_per_task} {cpu_per_task} {late_p50} {late_p99} {late_max}"
        );
        return ExitCode::SUCCESS;
    }
    println!("{} sleeps at once; medians of {} rounds", options.count, options.rounds);
    println!(
        "{:<10} {:>9} {:>9} {:>12} | {:>11} {:>11} {:>10} {:>10} {:>10}",
        "", "arm", "cancel", "bytes/sleep", "bytes/task", "CPU/task", "late p50", "late p99", "late max"
    );
    let names = [
        "arm_ns",
        "cancel_ns",
        "bytes_per_sleep",
        "bytes_per_task",
        "cpu_per_task_ns",
        "late_p50_ms",
        "late_p99_ms",
        "late_max_ms",
    ];
    let mut lines = Vec::new();
    for (name, columns) in rounds("sleeps", &options, names.len()) {
        let [arm, cancel, sleep, task, cpu, p50, p99, max] = medians(&columns);
        println!(
            "{name:<10} {arm:>6.0} ns {cancel:>6.0} ns {sleep:>12.1} | {task:>11.1} {cpu:>8.0} ns {p50:>7.2} ms {p99:>7.2} ms {max:>7.2} ms"
        );
        lines.push(line(name, options.count, &names, &[arm, cancel, sleep, task, cpu, p50, p99, max]));
    }
    finish(&options, &lines)
}

/// `delays [--rounds R] [--json FILE]`
pub fn delays(arguments: &[String]) -> ExitCode {
    let Some(options) = Options::parse(arguments) else { return usage("delays") };
    if let Some(name) = &options.one {
        let run = match name.as_str() {
            "wakeloop" => api::wakeloop::scenarios::latency::delays,
            "tokio" => api::tokio::scenarios::latency::delays,
            _ => api::smol::scenarios::latency::delays,
        };
        let mut text = String::new();
        for busy in [0, BUSY] {
            let Delays { timer, socket } = run(WORKERS, busy, SAMPLES);
            for mut delays in [timer, socket] {
                delays.sort_by(f64::total_cmp);
                let at = |part: f64| delays[((delays.len() - 1) as f64 * part) as usize];
                let _ = write!(text, "{} {} ", at(0.5), at(0.99));
            }
        }
        println!("{}", text.trim_end());
        return ExitCode::SUCCESS;
    }
    println!(
        "delay of a timer and of a byte in a socket, 2 workers; medians of {} rounds, in ms",
        options.rounds
    );
    println!("{:<10} {:^35} | {:^35}", "", "idle", "beside 8 tasks that wake themselves");
    println!(
        "{:<10} {:>8} {:>8} {:>8} {:>8} | {:>8} {:>8} {:>8} {:>8}",
        "", "timer", "p99", "socket", "p99", "timer", "p99", "socket", "p99"
    );
    let names = [
        "idle_timer_p50",
        "idle_timer_p99",
        "idle_socket_p50",
        "idle_socket_p99",
        "busy_timer_p50",
        "busy_timer_p99",
        "busy_socket_p50",
        "busy_socket_p99",
    ];
    let mut lines = Vec::new();
    for (name, columns) in rounds("delays", &options, names.len()) {
        let all: [f64; 8] = medians(&columns);
        let [a, b, c, d, e, f, g, h] = all;
        println!("{name:<10} {a:>8.3} {b:>8.3} {c:>8.3} {d:>8.3} | {e:>8.3} {f:>8.3} {g:>8.3} {h:>8.3}");
        lines.push(line(name, BUSY, &names, &all));
    }
    finish(&options, &lines)
}

fn usage(command: &str) -> ExitCode {
    eprintln!("usage: runtime-bench {command} [--count N] [--rounds R] [--json FILE]");
    ExitCode::from(2)
}

/// Runs each runtime in its own process, taking turns; the figures by runtime and place.
fn rounds(command: &str, options: &Options, figures: usize) -> Vec<(&'static str, Vec<Vec<f64>>)> {
    let mut all: Vec<_> = RUNTIMES.iter().map(|name| (*name, vec![Vec::new(); figures])).collect();
    for round in 0..options.rounds {
        for turn in 0..all.len() {
            let count = all.len();
            let (name, columns) = &mut all[(round + turn) % count];
            let output = env::current_exe().and_then(|program| {
                Command::new(program)
                    .args([command, "--one", name, "--count", &options.count.to_string()])
                    .output()
            });
            let text = match output {
                Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
                Ok(output) => {
                    eprintln!("{name}: {}", String::from_utf8_lossy(&output.stderr));
                    continue;
                }
                Err(error) => {
                    eprintln!("{name}: {error}");
                    continue;
                }
            };
            for (column, figure) in columns.iter_mut().zip(text.split_whitespace()) {
                column.extend(figure.parse::<f64>());
            }
        }
    }
    all
}

fn medians<const N: usize>(columns: &[Vec<f64>]) -> [f64; N] {
    std::array::from_fn(|place| median(columns[place].iter().copied()))
}

fn line(runtime: &str, count: usize, names: &[&str], figures: &[f64]) -> String {
    let mut text = format!(r#"{{"runtime": "{runtime}", "count": {count}"#);
    for (name, figure) in names.iter().zip(figures) {
        let _ = write!(text, r#", "{name}": {figure:.4}"#);
    }
    text + "}"
}

fn finish(options: &Options, lines: &[String]) -> ExitCode {
    let Some(path) = &options.json else { return ExitCode::SUCCESS };
    match write(path, &format!("[\n  {}\n]\n", lines.join(",\n  "))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
