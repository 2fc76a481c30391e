//! `wakeloop-load TARGET` puts a load on a server and reports; see `USAGE`.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use serde_json::{Value, json};
use wakeloop_load::{Config, Http, Report, Summary, Target, Work, allow_many_files, run};

const USAGE: &str = "\
Usage: wakeloop-load TARGET [OPTION]...

Puts a load on a server, checks every byte of its answers, and reports rates, latencies and CPU time.
TARGET is http://IP:PORT/PATH, or an echo server at tcp://IP:PORT, udp://IP:PORT or unix:PATH.

  -c, --connections N   connections that send requests all the time (10)
  -d, --duration S      seconds that are measured (5)
      --warmup S        seconds before that (0.5)
  -n, --count N         end after so many requests, if that is sooner
  -r, --rate N          open loop: requests per second; latencies count from the due times
  -i, --idle N          connections held open beside the active ones (0)
      --workers N       threads of the load generator (1)
      --timeout S      seconds that a connect or an answer may take (10)
      --watch PID       also report this process's CPU time
      --cpu N           run on this core only
      --json            report as JSON
  -h, --help            show this text

Echo servers:
  -s, --size BYTES      the length of a message (1024)
      --lines           each message is one line
      --accept          connect, wait for the server to close, repeat

HTTP servers:
      --post BYTES      POST a body of this length, which the server echoes
      --expect-stdin    each answer has the body that standard input gives; else all have the body of the first
";

fn main() -> ExitCode {
    let options = match Options::parse(lexopt::Parser::from_env()) {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("wakeloop-load: {error}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match options.run() {
        Ok(right) => ExitCode::from(u8::from(!right)),
        Err(error) => {
            eprintln!("wakeloop-load: {error}");
            ExitCode::from(2)
        }
    }
}

/// The command line.
struct Options {
    config: Config,
    json: bool,
    cpu: Option<usize>,
    /// The body that HTTP answers must have is on standard input.
    expect_stdin: bool,
}

impl Options {
    /// `None` if the usage is asked for.
    fn parse(mut arguments: lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
        let mut config = Config {
            duration: Duration::from_secs(5),
            warmup: Duration::from_millis(500),
            ..Config::default()
        };
        let (mut json, mut cpu, mut expect_stdin) = (false, None, false);
        let (mut target, mut post_size) = (None, None);
        let (mut size, mut lines, mut accept) = (1024, false, false);
        while let Some(argument) = arguments.next()? {
            match argument {
                Arg::Value(value) if target.is_none() => target = Some(value),
                Arg::Short('c') | Arg::Long("connections") => {
                    config.connections = arguments.value()?.parse()?
                }
                Arg::Short('d') | Arg::Long("duration") => config.duration = seconds(arguments.value()?)?,
                Arg::Long("warmup") => config.warmup = seconds(arguments.value()?)?,
                Arg::Short('n') | Arg::Long("count") => config.count = Some(arguments.value()?.parse()?),
                Arg::Short('r') | Arg::Long("rate") => config.rate = Some(arguments.value()?.parse()?),
                Arg::Short('i') | Arg::Long("idle") => config.idle = arguments.value()?.parse()?,
                Arg::Long("workers") => config.workers = arguments.value()?.parse()?,
                Arg::Long("timeout") => config.timeout = seconds(arguments.value()?)?,
                Arg::Long("watch") => config.watch_pid = Some(arguments.value()?.parse()?),
                Arg::Long("cpu") => cpu = Some(arguments.value()?.parse()?),
                Arg::Long("json") => json = true,
                Arg::Short('s') | Arg::Long("size") => size = arguments.value()?.parse()?,
                Arg::Long("lines") => lines = true,
                Arg::Long("accept") => accept = true,
                Arg::Long("post") => post_size = Some(arguments.value()?.parse()?),
                Arg::Long("expect-stdin") => expect_stdin = true,
                Arg::Short('h') | Arg::Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        let target = target.ok_or("a target is needed")?.string()?;
        (config.target, config.work) = match parse_target(&target)? {
            (target, Some(path)) => {
                let host = match target {
                    Target::Tcp(address) => address.to_string(),
                    _ => "localhost".to_owned(),
                };
                (target, Work::Http(Http { host, path, post_size, expect_body: None }))
            }
            (target, None) if accept => (target, Work::Accept),
            (target, None) => (target, Work::Echo { size, lines }),
        };
        Ok(Some(Options { config, json, cpu, expect_stdin }))
    }

    /// Runs the load and prints the report; returns whether all went well.
    fn run(mut self) -> io::Result<bool> {
        if let (true, Work::Http(http)) = (self.expect_stdin, &mut self.config.work) {
            let mut body = Vec::new();
            io::stdin().lock().read_to_end(&mut body)?;
            http.expect_body = Some(body);
        }
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        allow_many_files()?;
        let report = run(&self.config)?;
        let text = if self.json { as_json(&report).to_string() } else { as_text(&report) };
        writeln!(io::stdout().lock(), "{text}")?;
        Ok(report.errors.is_empty() && report.requests > 0)
    }
}

fn seconds(value: OsString) -> Result<Duration, lexopt::Error> {
    value.parse_with(|text| text.parse().map_err(|_| "not a number").and_then(duration))
}

fn duration(seconds: f64) -> Result<Duration, &'static str> {
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a length of time")
}

/// The address of a target and, for HTTP, the path.
fn parse_target(target: &str) -> Result<(Target, Option<String>), String> {
    let bad = || format!("{target:?} is not http://IP:PORT/PATH, tcp://IP:PORT, udp://IP:PORT or unix:PATH");
    let (scheme, rest) = target.split_once(':').ok_or_else(bad)?;
    if scheme == "unix" {
        return Ok((Target::Unix(rest.into()), None));
    }
    let rest = rest.strip_prefix("//").ok_or_else(bad)?;
    let (address, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let address = parse_address(address).ok_or_else(bad)?;
    match (scheme, path) {
        ("http", "") => Ok((Target::Tcp(address), Some("/".to_owned()))),
        ("http", path) => Ok((Target::Tcp(address), Some(path.to_owned()))),
        ("tcp", "" | "/") => Ok((Target::Tcp(address), None)),
        ("udp", "" | "/") => Ok((Target::Udp(address), None)),
        _ => Err(bad()),
    }
}

/// An IP address or localhost, with a port; 80 where none is given.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let ip = |text: &str| match text {
        "localhost" => Some(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        _ => text.trim_start_matches('[').trim_end_matches(']').parse().ok(),
    };
    if let Some(ip) = ip(text) {
        return Some(SocketAddr::new(ip, 80));
    }
    let (host, port) = text.rsplit_once(':')?;
    Some(SocketAddr::new(ip(host)?, port.parse().ok()?))
}

/// Keeps this process on one core.
#[cfg(target_os = "linux")]
fn pin(cpu: usize) -> io::Result<()> {
    // SAFETY: a plain bit set, for which zero is a value; the call reads it.
    let done = unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut cpus);
        libc::sched_setaffinity(0, size_of_val(&cpus), &cpus)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(not(target_os = "linux"))]
fn pin(_: usize) -> io::Result<()> {
    Ok(())
}

fn as_json(report: &Report) -> Value {
    json!({
        "requests": report.requests,
        "seconds": report.seconds,
        "rate": report.requests as f64 / report.seconds,
        "bytes": report.bytes,
        "connect_seconds": report.connect_seconds,
        "idle_answered": report.idle_answered,
        "latency_us": summary_as_json(&report.latency),
        "lag_us": report.lag.as_ref().map(summary_as_json),
        "unsent": report.unsent,
        "errors": report.errors,
        "first_error": report.first_error,
        "own_cpu_seconds": report.own_cpu.as_secs_f64(),
        "watched_cpu_seconds": report.watched_cpu.map(|cpu| cpu.as_secs_f64()),
    })
}

fn summary_as_json(summary: &Summary) -> Value {
    json!({
        "count": summary.count,
        "mean": micros(summary.mean),
        "p50": micros(summary.p50),
        "p90": micros(summary.p90),
        "p99": micros(summary.p99),
        "p99.9": micros(summary.p999),
        "max": micros(summary.max),
    })
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn as_text(report: &Report) -> String {
    let Report { requests, seconds, latency, .. } = report;
    let mut lines = vec![
        format!(
            "requests   {requests} in {seconds:.2} s: {:.0}/s, {:.1} MB/s",
            *requests as f64 / seconds,
            report.bytes as f64 / seconds / 1e6
        ),
        format!(
            "latency    mean {:.0} us, p50 {:.0} us, p90 {:.0} us, p99 {:.0} us, p99.9 {:.0} us, max {:.0} us",
            micros(latency.mean),
            micros(latency.p50),
            micros(latency.p90),
            micros(latency.p99),
            micros(latency.p999),
            micros(latency.max)
        ),
    ];
    if let Some(lag) = &report.lag {
        lines.push(format!(
            "own lag    p50 {:.0} us, p99 {:.0} us; {} never sent",
            micros(lag.p50),
            micros(lag.p99),
            report.unsent
        ));
    }
    if report.idle_answered > 0 {
        lines.push(format!(
            "idle       {} connections answered at the start and at the end",
            report.idle_answered
        ));
    }
    if let (Some(cpu), 1..) = (report.watched_cpu, *requests) {
        lines.push(format!("server     {:.2} us of CPU per request", micros(cpu) / *requests as f64));
    }
    let errors: Vec<_> = report.errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    lines.push(match &report.first_error {
        Some(first) => format!("errors     {} (first: {first})", errors.join(", ")),
        None => "errors     none".to_owned(),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Config, lexopt::Error> {
        let words = line.split_whitespace();
        Options::parse(lexopt::Parser::from_args(words)).map(|options| options.expect("no help").config)
    }

    #[test]
    fn targets_are_parsed() {
        for (text, target) in [
            ("tcp://127.0.0.1:8000", Target::Tcp(([127, 0, 0, 1], 8000).into())),
            ("udp://localhost:9", Target::Udp(([127, 0, 0, 1], 9).into())),
            ("tcp://[::1]:8000", Target::Tcp((std::net::Ipv6Addr::LOCALHOST, 8000).into())),
            ("unix:/run/echo.sock", Target::Unix("/run/echo.sock".into())),
        ] {
            let config = parse(text).expect("a target");
            assert_eq!(format!("{:?}", config.target), format!("{target:?}"));
            assert!(matches!(config.work, Work::Echo { size: 1024, lines: false }));
        }
        for text in
            ["", "8000", "tcp:8000", "tcp://example.org:80", "ftp://127.0.0.1:21", "tcp://127.0.0.1:1/path"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_http_target_has_a_path_and_port_80_by_default() {
        for (text, port, wanted) in [("http://127.0.0.1", 80, "/"), ("http://[::1]:81/a?b=c", 81, "/a?b=c")] {
            let config = parse(text).expect("a target");
            assert!(matches!(config.target, Target::Tcp(address) if address.port() == port));
            assert!(matches!(config.work, Work::Http(Http { path, .. }) if path == wanted));
        }
    }

    #[test]
    fn options_that_are_wrong_are_refused() {
        for line in
            ["--nothing", "--duration -1", "--duration x", "-c", "-c -1", "tcp://[::1]:1 tcp://[::1]:2"]
        {
            assert!(parse(&format!("tcp://127.0.0.1:1 {line}")).is_err(), "{line}");
        }
    }
}
