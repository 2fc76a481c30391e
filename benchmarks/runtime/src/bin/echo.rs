//! Echo and HTTP servers under load:
//! `echo [--protocol echo|http|both] [--connections N,N] [--sizes N,N] [--seconds S] [--rounds R] [--json FILE]`.
//!
//! Server and client are two processes; the client is wakeloop's load generator, the same for all. Each case runs as a
//! closed loop, which shows the highest rate, and as an open loop at a fixed rate that all can serve, which shows latency,
//! CPU time and memory. Rounds are interleaved, and the medians are reported. A ratio is the median of the rounds' ratios:
//! our rate over theirs, or their p99 over ours. HTTP always has 1000 connections, and no sizes.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use wakeloop_load::{Config, Http, Report, Target, Work};

const SERVERS: [&str; 4] = ["wakeloop", "tokio", "smol", "threads"];

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start(name: &str, protocol: &str) -> Server {
        let program = std::env::current_exe().expect("our path").with_file_name("server");
        let mut child = Command::new(program)
            .args([name, protocol])
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
    closed_mean: Vec<f64>,
    closed_p99: Vec<f64>,
    closed_cpu: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    cpu: Vec<f64>,
    rss: Vec<f64>,
    errors: u64,
}

fn main() {
    wakeloop_load::allow_many_files().expect("a limit of our own");
    let (mut connections, mut sizes) = (vec![1, 100, 1000, 10_000], vec![64, 16 << 10]);
    let (mut seconds, mut rounds, mut json) = (2.0, 5, None::<PathBuf>);
    let mut protocol = "both".to_owned();
    let mut arguments = std::env::args().skip(1);
    while let Some(flag) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        let list = || value.split(',').filter_map(|one| one.parse().ok()).collect::<Vec<usize>>();
        match flag.as_str() {
            "--protocol" => protocol = value,
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
    let mut cases = Vec::new();
    if protocol != "http" {
        let echo = |&size| Case { connections: 0, work: Work::Echo { size, lines: false } };
        let all = |of: Case| connections.iter().map(move |&connections| Case { connections, ..of.clone() });
        cases.extend(sizes.iter().map(echo).flat_map(all));
    }
    if protocol != "echo" {
        let body = Some(b"Hello, World!".to_vec());
        let (host, path) = ("localhost".to_owned(), "/".to_owned());
        cases.push(Case {
            connections: 1000,
            work: Work::Http(Http { host, path, post_size: None, chunk: None, expect_body: body }),
        });
    }
    let mut lines = Vec::new();
    for case in cases {
        println!("\n{} connections, {}", case.connections, case.what());
        println!(
            "{:<10} {:>10} {:>6} {:>9} {:>9} {:>6} {:>12} | at a fixed rate {:>9} {:>9} {:>12} {:>11} {:>9} {:>7}",
            "",
            "requests/s",
            "ratio",
            "mean",
            "p99",
            "ratio",
            "CPU/request",
            "p50",
            "p99",
            "CPU/request",
            "RSS",
            "RSS/conn",
            "errors"
        );
        let all = case.measure(seconds, rounds);
        let (our_rate, our_p99) = (all[0].1.rate.clone(), all[0].1.closed_p99.clone());
        for (name, figures) in all {
            let rss = median(&figures.rss);
            let ratio = ratio_of(&our_rate, &figures.rate);
            let p99_ratio = ratio_of(&figures.closed_p99, &our_p99);
            println!(
                "{name:<10} {:>10.0} {ratio:>6.2} {:>6.2} ms {:>6.2} ms {p99_ratio:>6.2} {:>9.2} us | {:>22.3} ms {:>6.3} ms {:>9.2} us {:>8.1} MB {:>6.1} KB {:>7}",
                median(&figures.rate),
                median(&figures.closed_mean) * 1e3,
                median(&figures.closed_p99) * 1e3,
                median(&figures.closed_cpu) * 1e6,
                median(&figures.p50) * 1e3,
                median(&figures.p99) * 1e3,
                median(&figures.cpu) * 1e6,
                rss / 1e6,
                rss / 1e3 / case.connections as f64,
                figures.errors,
            );
            lines.push(format!(
                r#"  {{"server": "{name}", "work": "{}", "connections": {}, "requests_per_second": {:.1}, "ratio": {ratio:.4}, "closed_mean": {:.6}, "closed_p99": {:.6}, "p99_ratio": {p99_ratio:.4}, "closed_cpu_per_request": {:.9}, "p50": {:.6}, "p99": {:.6}, "cpu_per_request": {:.9}, "rss": {rss:.0}, "errors": {}}}"#,
                case.what(),
                case.connections,
                median(&figures.rate),
                median(&figures.closed_mean),
                median(&figures.closed_p99),
                median(&figures.closed_cpu),
                median(&figures.p50),
                median(&figures.p99),
                median(&figures.cpu),
                figures.errors
            ));
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

/// One kind of load.
#[derive(Clone)]
struct Case {
    connections: usize,
    work: Work,
}

impl Case {
    fn what(&self) -> String {
        match &self.work {
            Work::Echo { size, .. } => format!("echo of {size} bytes"),
            _ => "HTTP".to_owned(),
        }
    }

    fn measure(&self, seconds: f64, rounds: usize) -> Vec<(&'static str, Figures)> {
        let protocol = if matches!(self.work, Work::Http(_)) { "http" } else { "echo" };
        // Ten thousand threads are too many for the machine.
        let servers = SERVERS.into_iter().filter(|name| *name != "threads" || self.connections <= 1000);
        let mut all: Vec<_> = servers.map(|name| (name, Figures::default())).collect();
        let count = all.len();
        let mut fixed = None;
        for round in 0..rounds {
            for turn in 0..count {
                let (name, figures) = &mut all[(round + turn) % count];
                let server = Server::start(name, protocol);
                let mut config = Config {
                    target: Target::Tcp(([127, 0, 0, 1], server.port).into()),
                    work: self.work.clone(),
                    connections: self.connections,
                    warmup: Duration::from_secs_f64(seconds / 4.0),
                    duration: Duration::from_secs_f64(seconds),
                    timeout: Duration::from_secs(30),
                    // One thread alone would be the bottleneck.
                    workers: std::thread::available_parallelism().map_or(1, usize::from),
                    watch_pid: Some(server.child.id() as i32),
                    ..Config::default()
                };
                let Some(closed) = run(&config, figures) else { continue };
                let rate = closed.requests as f64 / closed.seconds;
                figures.rate.push(rate);
                figures.closed_mean.push(closed.latency.mean.as_secs_f64());
                figures.closed_p99.push(closed.latency.p99.as_secs_f64());
                figures.closed_cpu.extend(cpu_per_request(&closed));
                // One rate for all: a third of what the first server reached.
                config.rate = Some(*fixed.get_or_insert(rate / 3.0));
                let Some(open) = run(&config, figures) else { continue };
                figures.p50.push(open.latency.p50.as_secs_f64());
                figures.p99.push(open.latency.p99.as_secs_f64());
                figures.cpu.extend(cpu_per_request(&open));
                figures.rss.push(server.rss());
            }
        }
        all
    }
}

fn cpu_per_request(report: &Report) -> Option<f64> {
    Some(report.watched_cpu?.as_secs_f64() / report.requests.max(1) as f64)
}

fn run(config: &Config, figures: &mut Figures) -> Option<Report> {
    match wakeloop_load::run(config) {
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

/// The median of the rounds' ratios.
fn ratio_of(over: &[f64], under: &[f64]) -> f64 {
    median(&over.iter().zip(under).map(|(a, b)| a / b).collect::<Vec<_>>())
}
