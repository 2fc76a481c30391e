//! Sleeps and timeouts.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::super::{Rt, join, sleep, spawn, timeout, yield_now};
use super::{Entry, local};
use crate::api::{Body, Kind};

pub const LIST: &[Entry] = &[
    ("16 timeout_ready", timeout_ready),
    ("17 sleep_poll_drop", |kind| arm_and_drop(kind, 0)),
    ("18 timers/10k armed", |kind| arm_and_drop(kind, 10_000)),
    ("18 timers/1M armed", |kind| arm_and_drop(kind, 1_000_000)),
    ("19 timers/10k all_fire", all_fire),
];

fn timeout_ready(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            assert!(timeout(Duration::from_secs(1), async {}).await.is_some());
        }
    })
}

/// Deadlines in a mixed order, between one and three hours from now: none of them comes.
fn far(n: u64) -> Duration {
    Duration::from_micros(3_600_000_000 + n.wrapping_mul(0x9E37_79B9_7F4A_7C15) % 7_200_000_000)
}

/// Yields before the budget of the poll is used up: a sleep that is polled without budget is pending, but not armed.
pub async fn keep_within_budget(n: u64) {
    if n % 64 == 63 {
        yield_now().await;
    }
}

fn arm_and_drop(kind: Kind, others: u64) -> Body {
    let rt = Rt::new(kind);
    let armed: Vec<_> = rt.block_on(join(rt.spawn(async move {
        let mut armed: Vec<_> = (0..others).map(|n| Box::pin(sleep(far(n)))).collect();
        for (n, sleep) in armed.iter_mut().enumerate() {
            assert!(sleep.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
            keep_within_budget(n as u64).await;
        }
        armed
    })));
    let body = local(rt, |n| async move {
        for n in 0..n {
            keep_within_budget(n).await;
            let mut sleep = pin!(sleep(far(n.wrapping_mul(7919))));
            poll_fn(|cx| {
                assert!(sleep.as_mut().poll(cx).is_pending());
                Poll::Ready(())
            })
            .await;
        }
    });
    with(armed, body)
}

/// Keeps `kept` alive while the body runs.
fn with<T: 'static>(kept: Vec<std::pin::Pin<Box<T>>>, mut body: Body) -> Body {
    Box::new(move |n| {
        let _ = &kept;
        body(n);
    })
}

/// 10,000 sleeping tasks whose deadlines are spread over 100 ms.
fn all_fire(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let tasks: Vec<_> = (0..10_000u64)
                .map(|n| {
                    spawn(async move {
                        let _ = sleep(Duration::from_micros(n * 7919 % 10_000 * 10)).await;
                    })
                })
                .collect();
            for task in tasks {
                join(task).await;
            }
        }
    })
}
