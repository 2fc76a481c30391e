//! Tests of timers, and of each kind of socket.

mod common;

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, IoSlice};
use std::net::Shutdown;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::runtimes;
use wakeloop::runtime::net::{TcpListener, TcpStream, UdpSocket, UnixListener, UnixStream};
use wakeloop::runtime::time::{interval, now, sleep, sleep_until, timeout};
use wakeloop::runtime::{self, Builder, testing};

const LONG: Duration = Duration::from_secs(30);
const MS: Duration = Duration::from_millis(1);

#[test]
fn a_sleep_that_is_over_needs_no_runtime_any_more() {
    let long = sleep(Duration::from_millis(5));
    std::thread::sleep(Duration::from_millis(6));
    runtime::block_on(long);
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let handle = rt.handle();
    drop(rt);
    let long = sleep(Duration::from_millis(5));
    std::thread::sleep(Duration::from_millis(6));
    handle.block_on(long);
}

#[test]
fn timers_fire_in_order_and_never_early() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    // On a busy machine the first may be due before the last is armed, and then nothing follows: allow more
    // time.
    for attempt in 1..100 {
        let fired = Arc::new(Mutex::new(Vec::new()));
        let armed = Arc::new(Mutex::new(Vec::new()));
        let start = Instant::now() + attempt * 5 * MS;
        let tasks: Vec<_> = (0..200u32)
            .map(|n| {
                let (fired, armed) = (fired.clone(), armed.clone());
                // Spread over 20 ms, in a scrambled order, with equal deadlines.
                let due = start + Duration::from_micros(u64::from(n * 7919 % 100) * 200);
                rt.spawn(async move {
                    let mut sleep = pin!(sleep_until(due));
                    let mut first = true;
                    poll_fn(|cx| {
                        let over = sleep.as_mut().poll(cx);
                        if std::mem::take(&mut first) {
                            armed.lock().unwrap().push((n, due, Instant::now()));
                        }
                        over
                    })
                    .await;
                    assert!(Instant::now() >= due);
                    fired.lock().unwrap().push(n);
                })
            })
            .collect();
        rt.block_on(async {
            for task in tasks {
                task.await.unwrap();
            }
        });
        let mut armed = armed.lock().unwrap();
        if armed.iter().all(|(_, _, when)| *when < start) {
            // A stable sort: equal deadlines fire in the order in which they were armed.
            armed.sort_by_key(|(_, due, _)| *due);
            let expected: Vec<_> = armed.iter().map(|(n, _, _)| *n).collect();
            assert_eq!(*fired.lock().unwrap(), expected);
            return;
        }
    }
    panic!("two hundred sleeps were never armed in time");
}

#[test]
fn an_earlier_timer_shortens_a_wait_that_is_under_way() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    let long = rt.spawn(sleep(LONG));
    std::thread::sleep(20 * MS);
    let start = Instant::now();
    rt.block_on(sleep(5 * MS));
    assert!(start.elapsed() < LONG / 2);
    long.abort();
}

#[test]
fn a_dropped_sleep_leaves_the_heap() {
    for rt in runtimes() {
        rt.block_on(async {
            for _ in 0..100 {
                assert!(timeout(MS / 10, sleep(LONG)).await.is_err());
            }
        });
        assert_eq!(rt.metrics().timers_armed, 0);
        assert!(rt.metrics().timers_fired > 0);
    }
}

#[test]
fn a_timeout_prefers_a_result_that_is_there() {
    testing::run(1, async {
        assert_eq!(timeout(Duration::ZERO, async { 3 }).await, Ok(3));
        let elapsed = timeout(LONG, std::future::pending::<()>()).await.unwrap_err();
        assert_eq!(std::io::Error::from(elapsed).kind(), ErrorKind::TimedOut);
    });
}

#[test]
fn an_interval_does_not_drift_and_skips_what_it_missed() {
    testing::run(1, async {
        let mut ticks = interval(2 * MS);
        let first = ticks.tick().await;
        for n in 1..5 {
            assert_eq!(ticks.tick().await, first + n * 2 * MS);
            assert_eq!(now(), first + n * 2 * MS);
        }
        testing::advance(11 * MS).await;
        assert_eq!(ticks.tick().await, first + 10 * MS, "it was due when nobody waited");
        assert_eq!(now(), first + 19 * MS);
        assert_eq!(ticks.tick().await, first + 20 * MS);
        assert_eq!(now(), first + 20 * MS);
    });
}

#[test]
fn a_sleep_for_ever_does_not_overflow() {
    testing::run(1, async { assert!(timeout(LONG, sleep(Duration::MAX)).await.is_err()) });
}

#[test]
fn a_large_transfer_goes_both_ways_at_once_on_one_stream() {
    const SIZE: usize = 3_000_000;
    for rt in runtimes() {
        rt.block_on(async {
            let listener = TcpListener::bind(("localhost", 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let client =
                runtime::spawn(async move { both_ways(TcpStream::connect(address).await.unwrap()).await });
            let (stream, peer) = listener.accept().await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), peer);
            assert_eq!(stream.local_addr().unwrap(), address);
            stream.set_nodelay(true).unwrap();
            timeout(LONG, both_ways(stream)).await.unwrap();
            client.await.unwrap();
        });
    }

    async fn both_ways(stream: TcpStream) {
        let stream = Arc::new(stream);
        let writing = stream.clone();
        let writer = runtime::spawn(async move {
            let data: Vec<u8> = (0..SIZE).map(|n| n as u8).collect();
            let sent =
                writing.write_vectored(&[IoSlice::new(&data[..10]), IoSlice::new(&data[10..20])]).await;
            writing.write_all(&data[sent.unwrap()..]).await.unwrap();
            writing.shutdown(Shutdown::Write).unwrap();
        });
        let mut got = 0;
        let mut buffer = vec![0; 50_000];
        loop {
            match stream.read(&mut buffer).await.unwrap() {
                0 => break,
                n => {
                    assert!(buffer[..n].iter().enumerate().all(|(at, byte)| *byte == (got + at) as u8));
                    got += n;
                }
            }
        }
        assert_eq!(got, SIZE);
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 0, "the end stays the end");
        writer.await.unwrap();
    }
}

#[test]
fn an_aborted_reader_frees_its_registration_and_the_stream_goes_on() {
    for rt in runtimes() {
        rt.block_on(async {
            let (a, b) = UnixStream::pair().unwrap();
            let b = Arc::new(b);
            let reading = b.clone();
            let reader = runtime::spawn(async move { reading.read(&mut [0; 8]).await });
            sleep(2 * MS).await;
            reader.abort();
            assert!(reader.await.unwrap_err().is_cancelled());
            a.write_all(b"later").await.unwrap();
            let mut buffer = [0; 5];
            timeout(LONG, b.read_exact(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer, b"later");
            let owner = runtime::spawn(async move { a.read(&mut [0; 8]).await });
            sleep(2 * MS).await;
            owner.abort();
            assert!(owner.await.is_err());
            // The aborted task owned the other end.
            assert_eq!(timeout(LONG, b.read(&mut buffer)).await.unwrap().unwrap(), 0);
        });
        assert_eq!(rt.metrics().sockets, 0);
    }
}

#[test]
fn several_tasks_accept_from_one_listener() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    rt.block_on(async {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let acceptors: Vec<_> = (0..4)
            .map(|_| {
                let listener = listener.clone();
                runtime::spawn(async move { listener.accept().await.map(drop) })
            })
            .collect();
        sleep(2 * MS).await;
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(TcpStream::connect(address).await.unwrap());
        }
        for acceptor in acceptors {
            timeout(LONG, acceptor).await.expect("each gets one").unwrap().unwrap();
        }
    });
}

#[test]
fn a_refused_connection_is_an_error() {
    let rt = Builder::new_current_thread().build().unwrap();
    rt.block_on(async {
        let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let error = timeout(LONG, TcpStream::connect(unused)).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        let error = TcpStream::connect_timeout(unused, LONG).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert!(TcpStream::connect("no port here").await.is_err());
    });
}

#[test]
fn writing_to_a_closed_peer_is_an_error_and_not_a_signal() {
    for rt in runtimes() {
        rt.block_on(async {
            let (a, b) = UnixStream::pair().unwrap();
            drop(b);
            let error = timeout(LONG, a.write_all(&[0; 100_000])).await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BrokenPipe);
            assert_eq!(timeout(LONG, a.read(&mut [0; 4])).await.unwrap().unwrap(), 0);
        });
    }
}

#[test]
fn datagrams_arrive_whole() {
    for rt in runtimes() {
        rt.block_on(async {
            let a = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let b = Arc::new(UdpSocket::bind("127.0.0.1:0").await.unwrap());
            let (to_a, to_b) = (a.local_addr().unwrap(), b.local_addr().unwrap());
            let echo = b.clone();
            let echo = runtime::spawn(async move {
                let mut buffer = [0; 2000];
                for _ in 0..20 {
                    let (n, from) = echo.recv_from(&mut buffer).await.unwrap();
                    assert_eq!(from, to_a);
                    echo.send_to(&buffer[..n], from).await.unwrap();
                }
            });
            a.connect(to_b).await.unwrap();
            let mut buffer = [0; 2000];
            for size in (0..20).map(|n| n * 60) {
                assert_eq!(a.send(&vec![7; size]).await.unwrap(), size);
                assert_eq!(timeout(LONG, a.recv(&mut buffer)).await.unwrap().unwrap(), size);
            }
            echo.await.unwrap();
        });
    }
}

#[test]
fn a_unix_listener_accepts_and_streams_survive_the_std_round_trip() {
    let path = std::env::temp_dir().join(format!("wakeloop-{}.sock", std::process::id()));
    for rt in runtimes() {
        let _ = std::fs::remove_file(&path);
        rt.block_on(async {
            let listener = UnixListener::bind(&path).unwrap();
            let connecting = path.clone();
            let client = runtime::spawn(async move {
                let stream = UnixStream::connect(connecting).await.unwrap();
                let stream = UnixStream::from_std(stream.into_std()).unwrap();
                stream.write_all(b"hello").await.unwrap();
            });
            let (stream, _) = listener.accept().await.unwrap();
            let mut buffer = [0; 5];
            timeout(LONG, stream.read_exact(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer, b"hello");
            client.await.unwrap();
            let error = stream.read_exact(&mut buffer).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        });
    }
    let _ = std::fs::remove_file(&path);
}

#[test]
fn a_socket_outside_a_runtime_is_an_error() {
    let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(UnixStream::from_std(a).is_err());
}

#[test]
fn a_socket_that_outlives_its_runtime_reports_an_error() {
    let rt = Builder::new().worker_threads(1).build().unwrap();
    let (a, _b) = rt.block_on(async { UnixStream::pair() }).unwrap();
    drop(rt);
    assert!(runtime::block_on(a.read(&mut [0; 1])).is_err());
}

#[test]
fn many_connections_come_and_go() {
    for rt in runtimes() {
        rt.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = runtime::spawn(async move {
                for _ in 0..200 {
                    let (stream, _) = listener.accept().await.unwrap();
                    runtime::spawn(async move {
                        let mut buffer = [0; 16];
                        let n = stream.read(&mut buffer).await.unwrap();
                        stream.write_all(&buffer[..n]).await.unwrap();
                    });
                }
            });
            for n in 0..200u8 {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.write_all(&[n]).await.unwrap();
                let mut buffer = [0; 2];
                assert_eq!(timeout(LONG, stream.read(&mut buffer)).await.unwrap().unwrap(), 1);
                assert_eq!(buffer[0], n);
            }
            server.await.unwrap();
        });
    }
}

#[test]
fn join_and_select_drive_several_futures_in_one_task() {
    testing::explore(0..20, || async {
        let start = now();
        let (a, b, c) = wakeloop::join!(
            async {
                sleep(20 * MS).await;
                1
            },
            async {
                sleep(20 * MS).await;
                "two"
            },
            async { 3.0 },
        );
        assert_eq!((a, b, c), (1, "two", 3.0));
        assert_eq!(now() - start, 20 * MS, "both slept at the same time");
        let winner = wakeloop::select! {
            () = sleep(LONG) => "long",
            () = sleep(MS) => "short",
            () = sleep(LONG) => "long too",
        };
        assert_eq!(winner, "short");
        assert_eq!(now() - start, 21 * MS);
    });
}

#[test]
fn the_longest_duration_is_no_error() {
    testing::run(1, async {
        assert_eq!(timeout(Duration::MAX, async { 7 }).await, Ok(7));
        let mut once = interval(Duration::MAX);
        once.tick().await;
        timeout(LONG, once.tick()).await.unwrap_err();
        timeout(LONG, timeout(Duration::MAX, sleep(Duration::MAX))).await.unwrap_err();
    });
    let rt = Builder::new().worker_threads(1).build().unwrap();
    assert!(rt.shutdown_timeout(Duration::MAX));
}
