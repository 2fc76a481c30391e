//! Channels, and several futures in one task.

use super::super::{Rt, join, join_and_select, mpsc, oneshot, spawn};
use super::{Entry, local};
use crate::api::{Body, Kind};

pub const LIST: &[Entry] = &[
    ("10 ring_300x300", ring),
    ("11 request_reply", request_reply),
    ("12 mpsc/contended", |kind| mpsc_contended(kind, 1_000_000)),
    ("12 mpsc/full", |kind| mpsc_contended(kind, 100)),
    ("12 mpsc/uncontended", mpsc_uncontended),
    ("13 oneshot", oneshot_alone),
    ("14 join_and_select", join_select),
];

fn ring(kind: Kind) -> Body {
    const TASKS: usize = 300;
    const LAPS: usize = 300;
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let (first, mut previous) = mpsc::bounded::<usize>(1);
            let mut tasks = Vec::new();
            for _ in 1..TASKS {
                let (next, receiver) = mpsc::bounded::<usize>(1);
                let mut from = std::mem::replace(&mut previous, receiver);
                tasks.push(spawn(async move {
                    while let Some(value) = mpsc::recv(&mut from).await {
                        mpsc::send(&next, value).await;
                    }
                }));
            }
            for lap in 0..LAPS {
                mpsc::send(&first, lap).await;
                assert_eq!(mpsc::recv(&mut previous).await, Some(lap));
            }
            drop(first);
            for task in tasks {
                join(task).await;
            }
        }
    })
}

fn request_reply(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let (requests, mut incoming) = mpsc::bounded::<(u64, oneshot::Sender<u64>)>(1024);
            let server = spawn(async move {
                while let Some((value, reply)) = mpsc::recv(&mut incoming).await {
                    oneshot::send(reply, value + 1);
                }
            });
            for value in 0..1000 {
                let (reply, answer) = oneshot::channel();
                mpsc::send(&requests, (value, reply)).await;
                assert_eq!(oneshot::recv(answer).await, value + 1);
            }
            drop(requests);
            join(server).await;
        }
    })
}

fn mpsc_contended(kind: Kind, capacity: usize) -> Body {
    local(Rt::new(kind), move |n| async move {
        for _ in 0..n {
            let (sender, mut receiver) = mpsc::bounded::<usize>(capacity);
            let senders: Vec<_> = (0..5)
                .map(|_| {
                    let sender = sender.clone();
                    spawn(async move {
                        for value in 0..1000 {
                            mpsc::send(&sender, value).await;
                        }
                    })
                })
                .collect();
            drop(sender);
            let mut received = 0;
            while mpsc::recv(&mut receiver).await.is_some() {
                received += 1;
            }
            assert_eq!(received, 5000);
            for sender in senders {
                join(sender).await;
            }
        }
    })
}

fn mpsc_uncontended(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let (sender, mut receiver) = mpsc::bounded::<usize>(5000);
            for value in 0..5000 {
                mpsc::send(&sender, value).await;
            }
            drop(sender);
            while mpsc::recv(&mut receiver).await.is_some() {}
        }
    })
}

fn oneshot_alone(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for value in 0..n {
            let (sender, receiver) = oneshot::channel();
            oneshot::send(sender, value);
            assert_eq!(oneshot::recv(receiver).await, value);
        }
    })
}

fn join_select(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            assert_eq!(std::hint::black_box(join_and_select().await), 3);
        }
    })
}
