//! The runtime beside tokio and smol: `make bench-runtime`.
//!
//! Criterion would measure one runtime for seconds, then the next. On a shared machine the ratio of two such runs says
//! more about other processes than about the runtimes. So rounds are interleaved: the runtimes take turns of a few
//! rounds, each in a process of its own and in changing order. The report has the ratio of the medians over all rounds,
//! for wall time and for the CPU time of the process.
//!
//! ```text
//! runtime-bench [FILTER...] [--rounds N] [--millis M] [--json FILE]   ratios of all scenarios that match
//! runtime-bench rounds SCENARIO RUNTIME WORKERS MILLIS                the rounds of one process
//! runtime-bench once SCENARIO RUNTIME WORKERS N                       one body, for valgrind and perf
//! runtime-bench instructions [FILTER...]                              instructions per repetition (callgrind)
//! runtime-bench sleeps [--count N] [--rounds R] [--json FILE]         a million sleeps: memory, cost, lateness
//! runtime-bench delays [--rounds R] [--json FILE]                     timer and socket beside tasks that never wait
//! ```

mod api;
mod harness;
mod instructions;
mod latency;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("rounds") => harness::rounds(&arguments[1..]),
        Some("once") => instructions::once(&arguments[1..]),
        Some("sleeps") => latency::sleeps(&arguments[1..]),
        Some("delays") => latency::delays(&arguments[1..]),
        Some("instructions") => instructions::compare(&arguments[1..]),
        _ => match harness::Options::parse(&arguments) {
            Some(options) => {
                harness::run(&options);
                ExitCode::SUCCESS
            }
            None => {
                eprintln!("usage: runtime-bench [FILTER...] [--rounds N] [--millis M] [--json FILE]");
                ExitCode::from(2)
            }
        },
    }
}
