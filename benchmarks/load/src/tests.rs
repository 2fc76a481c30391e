//! Runs against small servers on threads of the standard library, correct ones and faulty ones.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::num::NonZeroUsize;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use crate::{Config, Http, Report, Target, Work, run, run_and_show};

/// Serves each connection with `serve` on a thread of its own, until the test process ends.
fn server(serve: impl Fn(TcpStream) + Copy + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

fn echo(mut stream: impl Read + Write) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
}

/// Answers every request (by its empty line) with `answer`.
fn answer_http(stream: TcpStream, answer: &str) {
    let mut writer = stream.try_clone().expect("a second handle");
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() && writer.write_all(answer.as_bytes()).is_err() {
            break;
        }
    }
}

/// Answers every POST with its body.
fn echo_posts(stream: TcpStream) {
    let mut writer = stream.try_clone().expect("a second handle");
    let mut reader = BufReader::new(stream);
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        if !matches!(reader.read_line(&mut line), Ok(1..)) {
            return;
        }
        if let Some(length) = line.to_lowercase().strip_prefix("content-length:") {
            body.resize(length.trim().parse().expect("a length"), 0);
        }
        if line == "\r\n" {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let answered = reader.read_exact(&mut body).and_then(|()| writer.write_all(head.as_bytes()));
            if answered.and_then(|()| writer.write_all(&body)).is_err() {
                return;
            }
        }
    }
}

fn config(address: SocketAddr, work: Work) -> Config {
    Config {
        target: Target::Tcp(address),
        work,
        connections: 4,
        duration: Duration::from_millis(150),
        timeout: Duration::from_millis(500),
        ..Config::default()
    }
}

fn go(config: &Config) -> Report {
    run(config).expect("the run itself works")
}

#[track_caller]
fn assert_right(report: &Report) {
    assert!(report.errors.is_empty(), "{report:?}");
    assert!(report.requests > 0 && report.latency.count == report.requests, "{report:?}");
    assert!(
        report.latency.p50 <= report.latency.p99 && report.latency.p99 <= report.latency.max,
        "{report:?}"
    );
}

#[track_caller]
fn assert_only_error(report: &Report, kind: &str) {
    assert!(report.errors.len() == 1 && report.errors.contains_key(kind), "{report:?}");
    assert!(report.first_error.as_ref().is_some_and(|text| text.starts_with(kind)), "{report:?}");
}

#[test]
fn echo_of_many_sizes() {
    let address = server(echo);
    for (size, lines) in [(1, false), (1024, false), (1024, true), (300 * 1024, false)] {
        let report = go(&config(address, Work::Echo { size, lines }));
        assert_right(&report);
        assert_eq!(report.bytes, report.requests * size as u64);
    }
}

#[test]
fn datagrams_are_echoed_and_a_lost_one_is_an_error() {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    let address = socket.local_addr().expect("its address");
    let answer = Arc::new(AtomicBool::new(true));
    let answering = answer.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok((n, from)) = socket.recv_from(&mut buffer) {
            if answering.load(Relaxed) {
                let _ = socket.send_to(&buffer[..n], from);
            }
        }
    });
    let config =
        Config { target: Target::Udp(address), ..config(address, Work::Echo { size: 1024, lines: false }) };
    let report = go(&config);
    assert_right(&report);
    assert_eq!(report.bytes, report.requests * 1024);
    answer.store(false, Relaxed);
    assert_only_error(&go(&config), "stalled");
    let long = Config { work: Work::Echo { size: 65_508, lines: false }, ..config.clone() };
    let wrong = run(&long).expect_err("no datagram is that long");
    assert_eq!(wrong.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn a_count_ends_the_window() {
    let config = Config {
        count: Some(500),
        connections: 2,
        duration: Duration::from_secs(20),
        watch_pid: Some(std::process::id() as i32),
        ..config(server(echo), Work::Echo { size: 64, lines: false })
    };
    let report = go(&config);
    assert_right(&report);
    assert!((500..=502).contains(&report.requests) && report.seconds < 15.0, "{report:?}");
    assert!(report.watched_cpu.expect("a process was watched") >= report.own_cpu);
}

#[test]
fn an_open_loop_keeps_its_rate() {
    let config = Config {
        rate: Some(500.0),
        duration: Duration::from_millis(600),
        ..config(server(echo), Work::Echo { size: 64, lines: false })
    };
    let report = go(&config);
    assert_right(&report);
    assert!((250..=301).contains(&report.requests), "{report:?}");
    assert!(report.lag.is_some_and(|lag| lag.count > 0), "{report:?}");
}

#[test]
fn an_open_loop_counts_waiting_as_latency() {
    let slow = |mut stream: TcpStream| {
        let mut byte = [0];
        while let Ok(1) = stream.read(&mut byte) {
            thread::sleep(Duration::from_millis(20));
            if stream.write_all(&byte).is_err() {
                break;
            }
        }
    };
    let config = Config {
        rate: Some(500.0),
        connections: 1,
        duration: Duration::from_millis(400),
        ..config(server(slow), Work::Echo { size: 1, lines: false })
    };
    let report = go(&config);
    assert_right(&report);
    assert!(report.latency.max > Duration::from_millis(250), "{report:?}");
    assert!(report.unsent > 100, "{report:?}");
}

#[test]
fn idle_connections_answer_at_both_ends() {
    let config = Config { idle: 100, ..config(server(echo), Work::Echo { size: 32, lines: false }) };
    let report = go(&config);
    assert_right(&report);
    assert_eq!(report.idle_answered, 100);
}

#[test]
fn unix_socket() {
    let path = std::env::temp_dir().join(format!("wakeloop-load-{}", std::process::id()));
    let listener = UnixListener::bind(&path).expect("a socket in the temporary directory");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || echo(stream));
        }
    });
    let work = Work::Echo { size: 1024, lines: false };
    let report =
        go(&Config { target: Target::Unix(path.clone()), ..config(([127, 0, 0, 1], 0).into(), work) });
    drop(std::fs::remove_file(path));
    assert_right(&report);
}

fn get(expect_body: Option<&[u8]>) -> Work {
    Work::Http(Http {
        host: "localhost".into(),
        path: "/".into(),
        post_size: None,
        chunk: None,
        expect_body: expect_body.map(<[u8]>::to_vec),
    })
}

#[test]
fn http_get() {
    let hello = |stream: TcpStream| answer_http(stream, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
    let address = server(hello);
    assert_right(&go(&config(address, get(Some(b"hello")))));
    assert_right(&go(&config(address, get(None))));
    assert_only_error(&go(&config(address, get(Some(b"hallo")))), "mismatch");
}

#[test]
fn http_post_at_once_and_in_pieces() {
    let address = server(echo_posts);
    for chunk in [None, NonZeroUsize::new(1000), NonZeroUsize::new(5000), NonZeroUsize::new(6000)] {
        let post = Http {
            host: "localhost".into(),
            path: "/".into(),
            post_size: Some(5000),
            chunk,
            expect_body: None,
        };
        assert_right(&go(&config(address, Work::Http(post))));
    }
}

#[test]
fn http_answers_that_are_wrong() {
    let missing = |stream: TcpStream| answer_http(stream, "HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n");
    assert_only_error(&go(&config(server(missing), get(Some(b"")))), "status");
    let chatty = |stream: TcpStream| answer_http(stream, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nmore");
    assert_only_error(&go(&config(server(chatty), get(Some(b"")))), "malformed");
}

#[test]
fn a_wrong_byte_is_noticed() {
    let wrong = |mut stream: TcpStream| {
        let (mut buffer, mut seen) = ([0; 1024], 0);
        while let Ok(n @ 1..) = stream.read(&mut buffer) {
            if seen + n > 2000 && seen <= 2000 {
                buffer[0] ^= 1;
            }
            seen += n;
            if stream.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
    };
    let report = go(&config(server(wrong), Work::Echo { size: 1024, lines: false }));
    assert_only_error(&report, "mismatch");
    assert_eq!(report.errors["mismatch"], 4);
}

#[test]
fn servers_that_close_or_say_nothing() {
    let work = || Work::Echo { size: 1024, lines: false };
    let close = |mut stream: TcpStream| drop(stream.read_exact(&mut [0; 1024]));
    assert_only_error(&go(&config(server(close), work())), "closed early");
    let mute = |mut stream: TcpStream| drop(stream.read_to_end(&mut Vec::new()));
    let report = go(&config(server(mute), work()));
    assert_only_error(&report, "stalled");
    assert_eq!(report.errors["stalled"], 4);
}

#[test]
fn nobody_listens() {
    let address =
        TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port");
    let report = go(&config(address, Work::Echo { size: 1024, lines: false }));
    assert_only_error(&report, "connect");
    assert_eq!(report.requests, 0);
}

#[test]
fn accept_and_close() {
    assert_right(&go(&config(server(drop), Work::Accept)));
}

#[test]
fn options_that_make_no_sense() {
    let work = || Work::Echo { size: 64, lines: false };
    let good = || config(([127, 0, 0, 1], 1).into(), work());
    for bad in [
        Config { work: Work::Echo { size: 0, lines: false }, ..good() },
        Config { rate: Some(0.0), ..good() },
        Config { rate: Some(1.0), count: Some(1), ..good() },
        Config { connections: 0, ..good() },
        Config { workers: 0, ..good() },
        Config { work: Work::Accept, idle: 1, ..good() },
    ] {
        let error = run(&bad).expect_err("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_run_shows_its_progress_once_a_second() {
    let config = Config {
        warmup: Duration::from_millis(1200),
        duration: Duration::from_millis(2300),
        ..config(server(echo), Work::Echo { size: 10, lines: false })
    };
    let shown = std::cell::RefCell::new(Vec::new());
    let report =
        run_and_show(&config, |progress| shown.borrow_mut().push(progress)).expect("the run itself works");
    assert_right(&report);
    let shown = shown.into_inner();
    let phases: Vec<_> = shown.iter().map(|progress| progress.warming_up).collect();
    assert_eq!(phases, [true, false, false]);
    assert!(
        shown[0].requests == 0 && shown[1].requests > 0 && shown[2].requests > shown[1].requests,
        "{shown:?}"
    );
    assert!(shown.iter().all(|progress| progress.errors == 0), "{shown:?}");
}
