//! Instruction counts by callgrind, which show differences that a clock on a busy machine cannot.
//!
//! A body runs twice in a process of its own, with two numbers of repetitions; the difference leaves out the start of
//! process and runtime. Valgrind runs one thread at a time, so counts of scenarios with races are only typical.
//! Scenarios that spin or sleep are left out.

use std::env;
use std::process::{Command, ExitCode};

use crate::api::Kind;
use crate::harness::{find, matches, runtimes};

/// Scenarios with a meaningful count, and repetitions that take callgrind about a second.
const COUNTED: &[(&str, u64)] = &[
    ("01 spawn_one", 2000),
    ("02 spawn_many_local", 2),
    ("03 spawn_many_remote_idle", 2),
    ("07 chained_spawn", 10),
    ("08 ping_pong", 5),
    ("09 yield_many", 1),
    ("10 ring_300x300", 1),
    ("11 request_reply", 5),
    ("12 mpsc/contended", 2),
    ("12 mpsc/full", 2),
    ("12 mpsc/uncontended", 2),
    ("13 oneshot", 5000),
    ("14 join_and_select", 5000),
    ("16 timeout_ready", 5000),
    ("17 sleep_poll_drop", 5000),
    ("18 timers/10k armed", 5000),
    ("22 block_on_ready", 5000),
    ("23 tcp_ping_pong_64", 500),
    ("27 unix_ping_pong_64", 500),
];

/// `once SCENARIO RUNTIME WORKERS N`
pub fn once(arguments: &[String]) -> ExitCode {
    let [scenario, runtime, workers, repetitions] = arguments else { return usage() };
    let Some((found, kind)) = find(scenario, runtime, workers) else { return usage() };
    let Ok(repetitions) = repetitions.parse() else { return usage() };
    (found.prepare)(kind)(repetitions);
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("usage: runtime-bench once SCENARIO wakeloop|tokio|smol WORKERS REPETITIONS");
    ExitCode::from(2)
}

/// `instructions [FILTER...]`
pub fn compare(filters: &[String]) -> ExitCode {
    let kind = Kind::Workers(1);
    let names: Vec<_> = runtimes(kind).iter().map(|(name, _)| *name).collect();
    println!("instructions per repetition, 1 worker (callgrind)");
    for (scenario, repetitions) in COUNTED.iter().filter(|(name, _)| matches(filters, name)) {
        let mut line = format!("{scenario:<26}");
        let mut ours = 0.0;
        for name in &names {
            let counts = [*repetitions, 3 * repetitions].map(|n| count(scenario, name, n));
            let [Some(few), Some(many)] = counts else {
                line.push_str("     (failed)       ");
                continue;
            };
            let each = (many - few) / (2.0 * *repetitions as f64);
            if *name == names[0] {
                ours = each;
                line.push_str(&format!(" {each:>11.0}"));
            } else {
                line.push_str(&format!(" {each:>11.0} {:>6.2}", each / ours));
            }
        }
        println!("{line}");
    }
    ExitCode::SUCCESS
}

fn count(scenario: &str, runtime: &str, repetitions: u64) -> Option<f64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(env::current_exe().ok()?)
        .args(["once", scenario, runtime, "1", &repetitions.to_string()])
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.lines().find_map(|line| line.split_once("Collected :")?.1.trim().parse().ok())
}
