//! Spawning, waking, yielding, aborting.

use std::hint;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use super::super::{Rt, abort, detach, join, oneshot, spawn, spawn_blocking, yield_now};
use super::{Entry, local};
use crate::api::{Body, Kind};

pub const LIST: &[Entry] = &[
    ("01 spawn_one", spawn_one),
    ("02 spawn_many_local", spawn_many_local),
    ("03 spawn_many_remote_idle", spawn_many_remote_idle),
    ("04 remote_busy1", remote_busy1),
    ("05 remote_busy2", remote_busy2),
    ("06 remote_spawn/1", |kind| remote_spawn(kind, 1)),
    ("06 remote_spawn/2", |kind| remote_spawn(kind, 2)),
    ("06 remote_spawn/4", |kind| remote_spawn(kind, 4)),
    ("07 chained_spawn", chained_spawn),
    ("08 ping_pong", ping_pong),
    ("09 yield_many", yield_many),
    ("15 spawn_blocking/1", |kind| blocking(kind, 1)),
    ("15 spawn_blocking/16", |kind| blocking(kind, 16)),
    ("20 abort_10k", abort_10k),
    ("21 create_and_drop", create_and_drop),
    ("22 block_on_ready", block_on_ready),
];

const MANY: usize = 10_000;
const STALL: Duration = Duration::from_micros(10);

fn spawn_one(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            join(spawn(async {})).await;
        }
    })
}

fn spawn_many_local(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let (done, all) = oneshot::channel();
            let left = Arc::new((AtomicUsize::new(MANY), std::sync::Mutex::new(Some(done))));
            for _ in 0..MANY {
                let left = left.clone();
                detach(spawn(async move {
                    if left.0.fetch_sub(1, Relaxed) == 1
                        && let Some(done) = left.1.lock().unwrap().take()
                    {
                        oneshot::send(done, ());
                    }
                }));
            }
            oneshot::recv(all).await;
        }
    })
}

fn spawn_and_join(rt: &Rt, count: usize) {
    let tasks: Vec<_> = (0..count).map(|_| rt.spawn(async {})).collect();
    rt.block_on(async {
        for task in tasks {
            join(task).await;
        }
    });
}

fn spawn_many_remote_idle(kind: Kind) -> Body {
    let rt = Rt::new(kind);
    Box::new(move |n| (0..n).for_each(|_| spawn_and_join(&rt, MANY)))
}

fn stall() {
    let start = Instant::now();
    while start.elapsed() < STALL {
        hint::spin_loop();
    }
}

fn remote_busy1(kind: Kind) -> Body {
    let rt = Rt::new(kind);
    Box::new(move |n| {
        for _ in 0..n {
            let stop = Arc::new(AtomicBool::new(false));
            let busy: Vec<_> = (0..8)
                .map(|_| {
                    let stop = stop.clone();
                    rt.spawn(async move {
                        while !stop.load(Relaxed) {
                            yield_now().await;
                            stall();
                        }
                    })
                })
                .collect();
            spawn_and_join(&rt, MANY);
            stop.store(true, Relaxed);
            rt.block_on(async {
                for task in busy {
                    join(task).await;
                }
            });
        }
    })
}

fn remote_busy2(kind: Kind) -> Body {
    fn again(stop: Arc<AtomicBool>, left: Arc<AtomicUsize>) {
        if stop.load(Relaxed) {
            left.fetch_sub(1, Relaxed);
            return;
        }
        detach(spawn(async move {
            stall();
            again(stop, left);
        }));
    }
    let rt = Rt::new(kind);
    Box::new(move |n| {
        for _ in 0..n {
            let (stop, left) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(4)));
            for _ in 0..4 {
                let (stop, left) = (stop.clone(), left.clone());
                detach(rt.spawn(async move { again(stop, left) }));
            }
            spawn_and_join(&rt, 1000);
            stop.store(true, Relaxed);
            rt.block_on(join(rt.spawn(async move {
                while left.load(Relaxed) > 0 {
                    yield_now().await;
                }
            })));
        }
    })
}

fn remote_spawn(kind: Kind, threads: usize) -> Body {
    const TASKS: usize = 12_800;
    let rt = Rt::new(kind);
    Box::new(move |n| {
        for _ in 0..n {
            let barrier = Barrier::new(threads);
            let tasks: Vec<_> = thread::scope(|scope| {
                let spawners: Vec<_> = (0..threads)
                    .map(|_| {
                        scope.spawn(|| {
                            barrier.wait();
                            (0..TASKS / threads).map(|_| rt.spawn(async {})).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                spawners.into_iter().flat_map(|spawner| spawner.join().expect("a spawner")).collect()
            });
            rt.block_on(async {
                for task in tasks {
                    join(task).await;
                }
            });
        }
    })
}

fn chained_spawn(kind: Kind) -> Body {
    fn link(left: usize, done: oneshot::Sender<()>) {
        if left == 0 {
            oneshot::send(done, ());
        } else {
            detach(spawn(async move { link(left - 1, done) }));
        }
    }
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let (done, end) = oneshot::channel();
            link(1000, done);
            oneshot::recv(end).await;
        }
    })
}

fn ping_pong(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let pairs: Vec<_> = (0..1000)
                .map(|_| {
                    spawn(async {
                        let (ping, pinged) = oneshot::channel();
                        let (pong, ponged) = oneshot::channel();
                        let other = spawn(async move {
                            oneshot::recv(pinged).await;
                            oneshot::send(pong, ());
                        });
                        oneshot::send(ping, ());
                        oneshot::recv(ponged).await;
                        detach(other);
                    })
                })
                .collect();
            for pair in pairs {
                join(pair).await;
            }
        }
    })
}

fn yield_many(kind: Kind) -> Body {
    let rt = Rt::new(kind);
    Box::new(move |n| {
        for _ in 0..n {
            let tasks: Vec<_> = (0..200)
                .map(|_| {
                    rt.spawn(async {
                        for _ in 0..1000 {
                            yield_now().await;
                        }
                    })
                })
                .collect();
            rt.block_on(async {
                for task in tasks {
                    join(task).await;
                }
            });
        }
    })
}

fn blocking(kind: Kind, at_once: usize) -> Body {
    local(Rt::new(kind), move |n| async move {
        for _ in 0..n {
            let jobs: Vec<_> = (0..at_once).map(|_| spawn_blocking(|| {})).collect();
            for job in jobs {
                join(job).await;
            }
        }
    })
}

fn abort_10k(kind: Kind) -> Body {
    local(Rt::new(kind), |n| async move {
        for _ in 0..n {
            let tasks: Vec<_> = (0..MANY).map(|_| spawn(std::future::pending::<()>())).collect();
            // This one is behind all of them in the queue, so each was polled once.
            join(spawn(async {})).await;
            abort(tasks).await;
        }
    })
}

fn create_and_drop(kind: Kind) -> Body {
    Box::new(move |n| {
        for _ in 0..n {
            let rt = Rt::new(kind);
            rt.block_on(join(rt.spawn(async {})));
        }
    })
}

fn block_on_ready(kind: Kind) -> Body {
    let rt = Rt::new(kind);
    Box::new(move |n| {
        for _ in 0..n {
            rt.block_on(async {});
        }
    })
}
