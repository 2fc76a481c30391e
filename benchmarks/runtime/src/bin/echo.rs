//! Echo servers under load: `echo [--connections N,N] [--sizes N,N] [--seconds S] [--rounds R] [--json FILE]`.
//!
//! Server and client are two processes; the client is wakeloop's load generator, the same for all. Each case is
//! run closed (the next request follows the answer: what rate is reached) and open (a fixed rate that all can
//! serve: what latency, CPU time and memory it costs). Rounds are interleaved, the medians are reported.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wakeloop::load::{self, Config, Report, Target, Work};

const SERVERS: [&str; 4] = ["wakeloop", "tokio", "smol", "threads"];

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(name: &str) -> Server {
        let program = std::env::current_exe().expect("our path").with_file_name("server");
        let mut child = Command::new(program)
            .args([name, "echo"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a port");
        Server { child, port: line.trim().parse().expect("a port") }
    }

    fn rss(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<f64>().ok()).unwrap_or(f64::NAN) * 1024.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[derive(Default)]
struct Figures {
    rate: Vec<f64>,
    closed_p99: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<f64>,
    rss: Vec<f64>,
    errors: u64,
}

fn main() {
    raise_descriptor_limit();
    let (mut connections, mut sizes) = (vec![1, 100, 1000, 10_000], vec![64, 16 << 10]);
    let (mut seconds, mut rounds, mut json) = (2.0, 3, None::<PathBuf>);
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let list = || value.split(',').filter_map(|one| one.parse().ok()).collect::<Vec<usize>>();
        match flag.as_str() {
            "--connections" => connections = list(),
            "--sizes" => sizes = list(),
            "--seconds" => seconds = value.parse().unwrap_or(seconds),
            "--rounds" => rounds = value.parse().unwrap_or(rounds),
            "--json" => json = Some(value.into()),
            _ => {
                eprintln!("unknown option {flag}");
                std::process::exit(2);
            }
        }
    }
    let mut lines = Vec::new();
    for &size in &sizes {
        for &connections in &connections {
            println!("\n{connections} connections, {size} bytes");
            println!(
                "{:<10} {:>10} {:>11} | at a fixed rate {:>9} {:>9} {:>12} {:>11} {:>9} {:>7}",
                "", "requests/s", "closed p99", "p50", "p99", "CPU/request", "RSS", "RSS/conn", "errors"
            );
            for (name, figures) in case(connections, size, seconds, rounds) {
                let rss = median(&figures.rss);
                println!(
                    "{name:<10} {:>10.0} {:>8.2} ms | {:>22.3} ms {:>6.3} ms {:>9.2} us {:>8.1} MB {:>6.1} KB {:>7}",
                    median(&figures.rate),
                    median(&figures.closed_p99) * 1e3,
                    median(&figures.p50) * 1e3,
                    median(&figures.p99) * 1e3,
                    median(&figures.cpu) * 1e6,
                    rss / 1e6,
                    rss / 1e3 / connections as f64,
                    figures.errors,
                );
                lines.push(format!(
                    r#"  {{"server": "{name}", "connections": {connections}, "size": {size}, "requests_per_second": {:.1}, "closed_p99": {:.6}, "p50": {:.6}, "p99": {:.6}, "cpu_per_request": {:.9}, "rss": {rss:.0}, "errors": {}}}"#,
                    median(&figures.rate),
                    median(&figures.closed_p99),
                    median(&figures.p50),
                    median(&figures.p99),
                    median(&figures.cpu),
                    figures.errors
                ));
            }
        }
    }
    if let Some(path) = json {
        let written =
            std::fs::File::create(&path).and_then(|mut file| write!(file, "[\n{}\n]\n", lines.join(",\n")));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
        }
    }
}

fn case(connections: usize, size: usize, seconds: f64, rounds: usize) -> Vec<(&'static str, Figures)> {
    // A thread per connection is left out where the machine would have to hold ten thousand of them.
    let servers: Vec<_> =
        SERVERS.into_iter().filter(|name| *name != "threads" || connections <= 1000).collect();
    let mut all: Vec<_> = servers.iter().map(|name| (*name, Figures::default())).collect();
    let mut fixed = None;
    for round in 0..rounds {
        for turn in 0..all.len() {
            let (name, figures) = &mut all[(round + turn) % servers.len()];
            let server = Server::start(name);
            let mut config = Config {
                target: Target::Tcp(([127, 0, 0, 1], server.port).into()),
                work: Work::Echo { size, lines: false },
                connections,
                warmup: Duration::from_secs_f64(seconds / 4.0),
                duration: Duration::from_secs_f64(seconds),
                patience: Duration::from_secs(30),
                watch_pid: Some(server.child.id() as i32),
                ..Config::default()
            };
            let Some(closed) = run(&config, figures) else { continue };
            let rate = closed.requests as f64 / closed.seconds;
            figures.rate.push(rate);
            figures.closed_p99.push(closed.latency.p99.as_secs_f64());
            // Set once, for all: a third of what the first reached.
            config.rate = Some(*fixed.get_or_insert(rate / 3.0));
            let Some(open) = run(&config, figures) else { continue };
            figures.p50.push(open.latency.p50.as_secs_f64());
            figures.p99.push(open.latency.p99.as_secs_f64());
            if let Some(cpu) = open.watched_cpu {
                figures.cpu.push(cpu.as_secs_f64() / open.requests.max(1) as f64);
            }
            figures.rss.push(server.rss());
        }
    }
    all
}

fn run(config: &Config, figures: &mut Figures) -> Option<Report> {
    match load::run(config, &mut || true) {
        Ok(report) => {
            figures.errors += report.errors.values().sum::<u64>();
            Some(report)
        }
        Err(error) => {
            eprintln!("{error}");
            figures.errors += 1;
            None
        }
    }
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls read or write the struct they are given.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
    }
}
