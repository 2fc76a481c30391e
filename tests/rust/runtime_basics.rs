//! Tests of the runtime's basics: spawn, join, sleep, echo.

use std::io::ErrorKind;
use std::process::Command;
use std::time::{Duration, Instant};

use wakeloop::runtime::net::{TcpListener, TcpStream};
use wakeloop::runtime::time::{sleep, timeout};
use wakeloop::runtime::{self, Builder, Runtime, yield_now};

#[test]
fn a_spawned_task_gives_its_output() {
    let rt = Runtime::new().unwrap();
    assert_eq!(rt.block_on(async { runtime::spawn(async { 6 * 7 }).await.unwrap() }), 42);
}

#[test]
fn a_sleep_is_never_early() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    rt.block_on(async {
        for micros in [0, 50, 700, 1500, 5300] {
            let start = Instant::now();
            sleep(Duration::from_micros(micros)).await;
            assert!(start.elapsed() >= Duration::from_micros(micros));
        }
    });
}

#[test]
fn a_thousand_tasks_yield_a_hundred_times() {
    for workers in [1, 2, 4] {
        let rt = Builder::new().worker_threads(workers).build().unwrap();
        rt.block_on(async {
            let tasks: Vec<_> = (0..1000)
                .map(|n| {
                    runtime::spawn(async move {
                        for _ in 0..100 {
                            yield_now().await;
                        }
                        n
                    })
                })
                .collect();
            for (n, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap(), n);
            }
        });
    }
}

#[test]
fn bytes_come_back_from_an_echo_server() {
    let runtimes =
        [Builder::new_current_thread(), Builder::new().worker_threads(1), Builder::new().worker_threads(2)];
    for builder in runtimes {
        let rt = builder.build().unwrap();
        rt.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let server = runtime::spawn(async move {
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    runtime::spawn(async move {
                        let mut buffer = [0; 4096];
                        loop {
                            match stream.read(&mut buffer).await.unwrap() {
                                0 => break,
                                n => stream.write_all(&buffer[..n]).await.unwrap(),
                            }
                        }
                    });
                }
            });
            let clients: Vec<_> = (0..20)
                .map(|n: u8| {
                    runtime::spawn(async move {
                        let stream = TcpStream::connect(address).await.unwrap();
                        for round in 0..50 {
                            let message = vec![n; 1 + round * 61];
                            stream.write_all(&message).await.unwrap();
                            let mut reply = vec![0; message.len()];
                            stream.read_exact(&mut reply).await.unwrap();
                            assert_eq!(reply, message);
                        }
                    })
                })
                .collect();
            for client in clients {
                timeout(Duration::from_secs(20), client).await.unwrap().unwrap();
            }
            server.abort();
            assert!(server.await.unwrap_err().is_cancelled());
        });
    }
}

/// The environment variable that makes this process build runtimes, for the test below.
const BUILDER: &str = "WAKELOOP_TEST_BUILDS";

#[test]
fn a_variable_that_means_nothing_is_an_error_of_the_builder() {
    const NAME: &str = "a_variable_that_means_nothing_is_an_error_of_the_builder";
    if std::env::var_os(BUILDER).is_some() {
        for builder in [Builder::new(), Builder::new().worker_threads(1), Builder::new_current_thread()] {
            match builder.build() {
                Ok(_) => println!("a runtime was built"),
                Err(error) => println!("{:?}: {error}", error.kind()),
            }
        }
        return;
    }
    let built = |name: &str, value: &str| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", NAME, "--nocapture"]).env(BUILDER, "1").env(name, value);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    for (name, value, allowed) in [
        ("WAKELOOP_WORKERS", "many", "a number from 1 to 1024"),
        ("WAKELOOP_WORKERS", "0", "a number from 1 to 1024"),
        ("WAKELOOP_SPIN", "20us", "off, auto or microseconds up to 1000"),
    ] {
        let refusal = format!("{:?}: {name} is '{value}'; it can be {allowed}", ErrorKind::InvalidInput);
        assert_eq!(built(name, value).matches(&refusal).count(), 3, "{refusal}");
    }
    for (name, value) in [("WAKELOOP_WORKERS", " 2 "), ("WAKELOOP_WORKERS", ""), ("WAKELOOP_SPIN", "OFF")] {
        assert_eq!(built(name, value).matches("a runtime was built").count(), 3, "{name}={value}");
    }
}
