//! `wakeloop-load TARGET` puts a load on a server and reports; see `USAGE`.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

use lexopt::{Arg, ValueExt};
use serde_json::{Value, json};
use wakeloop_load::{
    Config, Http, Progress, Report, Summary, Target, Work, allow_many_files, run, run_and_show,
};

const USAGE: &str = "\
Usage: wakeloop-load TARGET [OPTION]...

Puts a load on a server, checks every byte of its answers, and reports rates, latencies and CPU time.
TARGET is http://HOST:PORT/PATH, or an echo server at tcp://HOST:PORT, udp://HOST:PORT or unix:PATH. HOST is an
address or a name. On a terminal, a line shows the progress.

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
      --chunk BYTES     write the body in pieces of this length
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
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("wakeloop-load: {error}");
            ExitCode::from(2)
        }
    }
}

/// The command line.
struct Options {
    /// Its target is set when the name of the host is resolved.
    config: Config,
    place: Place,
    json: bool,
    cpu: Option<usize>,
    /// The body that HTTP answers must have is on standard input.
    expect_stdin: bool,
}

/// Where the server listens, as it was given.
#[derive(Debug, PartialEq)]
enum Place {
    Tcp(String, u16),
    Udp(String, u16),
    Unix(String),
}

impl Place {
    /// Resolves the name. Of several addresses, the first counts at which a server accepts a connection.
    fn resolve(&self) -> io::Result<Target> {
        match self {
            Place::Unix(path) => Ok(Target::Unix(path.into())),
            Place::Udp(host, port) => Ok(Target::Udp(addresses(host, *port)?[0])),
            Place::Tcp(host, port) => {
                let found = addresses(host, *port)?;
                let accepts = |address: &&SocketAddr| {
                    TcpStream::connect_timeout(address, Duration::from_secs(1)).is_ok()
                };
                let first = if found.len() > 1 { found.iter().find(accepts) } else { None };
                Ok(Target::Tcp(*first.unwrap_or(&found[0])))
            }
        }
    }
}

/// The addresses of a host, at least one.
fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{host}: {error}"));
    let found: Vec<_> = (host, port).to_socket_addrs().map_err(named)?.collect();
    if found.is_empty() { Err(io::Error::other(format!("{host} has no address"))) } else { Ok(found) }
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
        let (mut target, mut post_size, mut chunk) = (None, None, None);
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
                Arg::Long("chunk") => chunk = Some(arguments.value()?.parse()?),
                Arg::Long("expect-stdin") => expect_stdin = true,
                Arg::Short('h') | Arg::Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        let target = target.ok_or("a target is needed")?.string()?;
        let (place, http) = parse_target(&target)?;
        config.work = match http {
            Some((host, path)) => Work::Http(Http { host, path, post_size, chunk, expect_body: None }),
            None if accept => Work::Accept,
            None => Work::Echo { size, lines },
        };
        Ok(Some(Options { config, place, json, cpu, expect_stdin }))
    }

    /// Runs the load and prints the report. Returns the exit code: 0 if all went well.
    fn run(mut self) -> io::Result<u8> {
        self.config.target = self.place.resolve()?;
        if let (true, Work::Http(http)) = (self.expect_stdin, &mut self.config.work) {
            let mut body = Vec::new();
            io::stdin().lock().read_to_end(&mut body)?;
            http.expect_body = Some(body);
        }
        if let Some(cpu) = self.cpu {
            pin(cpu)?;
        }
        allow_many_files()?;
        let report = if !self.json && io::stderr().is_terminal() {
            let report = run_and_show(&self.config, |progress| show(&self.config, progress));
            eprint!("{CLEAR_LINE}");
            report
        } else {
            run(&self.config)
        }?;
        if self.json {
            writeln!(io::stdout().lock(), "{}", as_json(&report))?;
        } else if report.requests == 0 {
            eprintln!("wakeloop-load: {}", no_answers(&report));
        } else {
            writeln!(io::stdout().lock(), "{}", as_text(&report))?;
        }
        Ok(u8::from(!report.errors.is_empty() || report.requests == 0))
    }
}

fn seconds(value: OsString) -> Result<Duration, lexopt::Error> {
    value.parse_with(|text| text.parse().map_err(|_| "not a number").and_then(duration))
}

fn duration(seconds: f64) -> Result<Duration, &'static str> {
    Duration::try_from_secs_f64(seconds).map_err(|_| "not a length of time")
}

/// Where a target is and, for HTTP, the name of the host and the path.
fn parse_target(target: &str) -> Result<(Place, Option<(String, String)>), String> {
    let bad =
        || format!("{target:?} is not http://HOST:PORT/PATH, tcp://HOST:PORT, udp://HOST:PORT or unix:PATH");
    let (scheme, rest) = target.split_once(':').ok_or_else(bad)?;
    if scheme == "unix" {
        return Ok((Place::Unix(rest.into()), None));
    }
    let rest = rest.strip_prefix("//").ok_or_else(bad)?;
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (host, port) = split_authority(authority).ok_or_else(bad)?;
    match (scheme, path, port) {
        ("http", path, port) => {
            let path = if path.is_empty() { "/" } else { path };
            Ok((Place::Tcp(host, port.unwrap_or(80)), Some((authority.to_owned(), path.to_owned()))))
        }
        ("tcp", "" | "/", Some(port)) => Ok((Place::Tcp(host, port), None)),
        ("udp", "" | "/", Some(port)) => Ok((Place::Udp(host, port), None)),
        _ => Err(bad()),
    }
}

/// A host, with brackets around an IPv6 address, and the port if there is one.
fn split_authority(text: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, behind) = rest.split_once(']')?;
            (host, if behind.is_empty() { None } else { Some(behind.strip_prefix(':')?) })
        }
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = port.map(str::parse).transpose().ok()?;
    if host.is_empty() { None } else { Some((host.to_owned(), port)) }
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

/// Moves to the beginning of the terminal's line, and clears it.
const CLEAR_LINE: &str = "\r\x1b[K";

/// Shows the progress on the terminal.
fn show(config: &Config, progress: Progress) {
    eprint!("{CLEAR_LINE}{}", progress_line(config, progress));
}

fn progress_line(config: &Config, progress: Progress) -> String {
    let Progress { warming_up, elapsed, requests, errors } = progress;
    let errors = if errors > 0 { format!(", {errors} errors") } else { String::new() };
    if warming_up {
        return format!("warming up{errors}");
    }
    let seconds = elapsed.as_secs_f64();
    format!(
        "{seconds:.0} of {} s: {requests} requests, {:.0}/s{errors}",
        config.duration.as_secs_f64(),
        requests as f64 / seconds.max(f64::MIN_POSITIVE)
    )
}

/// What to say where there is nothing to put into a table.
fn no_answers(report: &Report) -> String {
    match &report.first_error {
        Some(first) => format!("no request was answered: {} (first: {first})", errors_by_kind(report)),
        None => format!("no request was answered in {:.2} s", report.seconds),
    }
}

fn errors_by_kind(report: &Report) -> String {
    let errors: Vec<_> = report.errors.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    errors.join(", ")
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
    lines.push(match &report.first_error {
        Some(first) => format!("errors     {} (first: {first})", errors_by_kind(report)),
        None => "errors     none".to_owned(),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, lexopt::Error> {
        let words = line.split_whitespace();
        Options::parse(lexopt::Parser::from_args(words)).map(|options| options.expect("no help"))
    }

    #[test]
    fn targets_are_parsed() {
        for (text, place) in [
            ("tcp://127.0.0.1:8000", Place::Tcp("127.0.0.1".into(), 8000)),
            ("udp://localhost:9", Place::Udp("localhost".into(), 9)),
            ("tcp://[::1]:8000", Place::Tcp("::1".into(), 8000)),
            ("tcp://example.org:80", Place::Tcp("example.org".into(), 80)),
            ("unix:/run/echo.sock", Place::Unix("/run/echo.sock".into())),
        ] {
            let options = parse(text).expect("a target");
            assert_eq!(options.place, place);
            assert!(matches!(options.config.work, Work::Echo { size: 1024, lines: false }));
        }
        for text in [
            "",
            "8000",
            "tcp:8000",
            "tcp://127.0.0.1",
            "tcp://:80",
            "tcp://::1:80",
            "tcp://[::1:80",
            "tcp://localhost:99999",
            "ftp://127.0.0.1:21",
            "tcp://127.0.0.1:1/path",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_resolves_to_the_address_that_accepts() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        for host in ["127.0.0.1", "localhost"] {
            let target = Place::Tcp(host.into(), address.port()).resolve().expect("an address");
            assert!(matches!(target, Target::Tcp(found) if found == address), "{target:?}");
        }
        let failure = Place::Tcp("two words".into(), 80).resolve().expect_err("no name");
        assert!(failure.to_string().starts_with("two words: "), "{failure}");
    }

    #[test]
    fn progress_is_one_short_line() {
        let config = Config { duration: Duration::from_secs(5), ..Config::default() };
        let progress = |warming_up, errors| {
            let elapsed = Duration::from_secs(2);
            progress_line(&config, Progress { warming_up, elapsed, requests: 3000, errors })
        };
        assert_eq!(progress(true, 0), "warming up");
        assert_eq!(progress(false, 0), "2 of 5 s: 3000 requests, 1500/s");
        assert_eq!(progress(false, 4), "2 of 5 s: 3000 requests, 1500/s, 4 errors");
    }

    #[test]
    fn a_run_without_answers_has_no_table() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        drop(listener);
        let config = Config { target: Target::Tcp(address), connections: 3, ..Config::default() };
        let report = run(&config).expect("the run itself works");
        let text = no_answers(&report);
        assert!(text.starts_with("no request was answered: 3 connect (first: connect: "), "{text}");
    }

    #[test]
    fn an_http_target_has_a_path_and_port_80_by_default() {
        for (text, port, wanted) in [("http://127.0.0.1", 80, "/"), ("http://[::1]:81/a?b=c", 81, "/a?b=c")] {
            let options = parse(text).expect("a target");
            assert!(matches!(options.place, Place::Tcp(_, found) if found == port));
            assert!(matches!(options.config.work, Work::Http(Http { path, .. }) if path == wanted));
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
