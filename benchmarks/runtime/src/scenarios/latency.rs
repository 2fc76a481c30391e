//! Memory and cost of a million sleeps, how late they are, and how long tasks that never wait delay others.

use std::future::{Future, poll_fn};
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use super::super::*;
use super::timers::keep_within_budget;
use crate::api::{Delays, Kind, Sleeps};
use crate::harness::process_cpu;
use crate::report::{peak_memory, resident_memory};

/// How long after the start the first of the sleeps ends, per sleep: by then all are armed.
const HEAD_START: Duration = Duration::from_micros(8);

/// `count` sleeps at once: first bare ones, armed and cancelled; then one in each of `count` tasks, due one after the
/// other within `spread`.
pub fn sleeps(kind: Kind, count: usize, spread: Duration) -> Sleeps {
    let rt = Rt::new(kind);
    let lateness: Arc<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(0)).collect();
    // Memory that the runtime keeps from the first part counts as well.
    let memory = resident_memory();
    let mut figures = rt.block_on(join(rt.spawn(arm_and_cancel(count))));
    let cpu = process_cpu();
    let all = lateness.clone();
    rt.block_on(join(rt.spawn(async move {
        let start = Instant::now() + HEAD_START * count as u32;
        let tasks: Vec<_> = (0..count)
            .map(|n| {
                // In a mixed order.
                let place = (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % count as u64;
                let due = start + spread.mul_f64(place as f64 / count as f64);
                let all = all.clone();
                spawn(async move {
                    let _ = sleep(due.saturating_duration_since(Instant::now())).await;
                    all[n].store(due.elapsed().as_micros().max(1) as u32, Relaxed);
                })
            })
            .collect();
        assert!(Instant::now() < start, "the sleeps were armed too slowly");
        for task in tasks {
            join(task).await;
        }
    })));
    figures.cpu_per_task = (process_cpu() - cpu).as_nanos() as f64 / count as f64;
    figures.bytes_per_task = (peak_memory() - memory) / count as f64;
    let mut lateness: Vec<f64> = lateness.iter().map(|one| f64::from(one.load(Relaxed)) / 1e3).collect();
    lateness.sort_by(f64::total_cmp);
    figures.late_p50 = lateness[count / 2];
    figures.late_p99 = lateness[count - 1 - count / 100];
    figures.late_max = lateness[count - 1];
    figures
}

async fn arm_and_cancel(count: usize) -> Sleeps {
    let far = |n: usize| {
        Duration::from_micros(3_600_000_000 + (n as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) % 7_200_000_000)
    };
    // The list is no memory of the sleeps: its pages are touched before.
    let mut armed = Vec::with_capacity(count);
    armed.resize_with(count, || None);
    let (memory, cpu) = (resident_memory(), process_cpu());
    for (n, slot) in armed.iter_mut().enumerate() {
        let mut one = Box::pin(sleep(far(n)));
        assert!(one.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        *slot = Some(one);
        keep_within_budget(n as u64).await;
    }
    let (arm, bytes) = (process_cpu() - cpu, resident_memory() - memory);
    let cpu = process_cpu();
    drop(armed);
    Sleeps {
        arm_ns: arm.as_nanos() as f64 / count as f64,
        cancel_ns: (process_cpu() - cpu).as_nanos() as f64 / count as f64,
        bytes_per_sleep: bytes / count as f64,
        ..Sleeps::default()
    }
}

/// How late a timer fires, and how long a byte stays in a socket, beside `busy` tasks that wake themselves in each
/// poll.
pub fn delays(kind: Kind, busy: usize, samples: usize) -> Delays {
    let rt = Rt::new(kind);
    let stop = Arc::new(AtomicBool::new(false));
    let busy: Vec<_> = (0..busy)
        .map(|_| {
            let stop = stop.clone();
            rt.spawn(poll_fn(move |cx| {
                if stop.load(Relaxed) {
                    return Poll::Ready(());
                }
                cx.waker().wake_by_ref();
                Poll::Pending
            }))
        })
        .collect();
    let delays = rt.block_on(join(rt.spawn(async move {
        Delays { timer: timer_delays(samples).await, socket: socket_delays(samples).await }
    })));
    stop.store(true, Relaxed);
    rt.block_on(async {
        for task in busy {
            join(task).await;
        }
    });
    delays
}

async fn timer_delays(samples: usize) -> Vec<f64> {
    const SLEEP: Duration = Duration::from_millis(2);
    let mut late = Vec::with_capacity(samples);
    for _ in 0..samples {
        let start = Instant::now();
        let _ = sleep(SLEEP).await;
        late.push((start.elapsed() - SLEEP).as_secs_f64() * 1e3);
    }
    late
}

/// Another thread writes the time, and the task reads it.
async fn socket_delays(samples: usize) -> Vec<f64> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.expect("a listener");
    let address = listener.local_addr().expect("an address");
    let base = Instant::now();
    let writer = thread::spawn(move || {
        let mut stream = std::net::TcpStream::connect(address).expect("a connection");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        for _ in 0..samples {
            thread::sleep(Duration::from_millis(1));
            let now = base.elapsed().as_nanos() as u64;
            stream.write_all(&now.to_le_bytes()).expect("an open stream");
        }
    });
    #[allow(unused_mut)]
    let (mut stream, _) = listener.accept().await.expect("a connection");
    let mut delays = Vec::with_capacity(samples);
    let mut buffer = [0u8; 8];
    for _ in 0..samples {
        stream.read_exact(&mut buffer).await.expect("an open stream");
        let written = Duration::from_nanos(u64::from_le_bytes(buffer));
        delays.push(base.elapsed().saturating_sub(written).as_secs_f64() * 1e3);
    }
    writer.join().expect("the writer ends well");
    delays
}
