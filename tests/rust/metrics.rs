//! Tests of what a runtime says about itself: delays, waits, times, queues.
//!
//! The ignored ones compare times with each other, for which other processes count: `make measure` runs them. Each
//! measures several times and compares the median with a bound.

use std::sync::mpsc::{TryRecvError, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use wakeloop::runtime::{self, Builder, Handle, Histogram, Metrics, Runtime, yield_now};

const LONG: Duration = Duration::from_secs(30);
const BLOCK: Duration = Duration::from_millis(if cfg!(miri) { 2 } else { 50 });
/// How often to measure. What counts is the median.
const ROUNDS: usize = 11;

fn bucket(duration: Duration) -> usize {
    Histogram::bounds().take_while(|bound| *bound <= duration).count()
}

/// The number of durations that are at most one bucket away from this one.
fn near(histogram: &Histogram, duration: Duration) -> u64 {
    let middle = bucket(duration);
    histogram.counts()[middle.saturating_sub(1)..].iter().take(3).sum()
}

fn filled(histogram: &Histogram) -> (usize, usize) {
    let filled = |(index, count): (usize, &u64)| (*count > 0).then_some(index);
    let mut buckets = histogram.counts().iter().enumerate().filter_map(filled);
    let first = buckets.next().expect("something was counted");
    (first, buckets.next_back().unwrap_or(first))
}

fn median<T: PartialOrd + Copy>(mut values: Vec<T>) -> T {
    values.sort_by(|one, other| one.partial_cmp(other).unwrap());
    values[values.len() / 2]
}

fn until(rt: &Runtime, condition: impl Fn(&Metrics) -> bool) -> Metrics {
    let deadline = Instant::now() + LONG;
    loop {
        let metrics = rt.metrics();
        if condition(&metrics) {
            return metrics;
        }
        assert!(Instant::now() < deadline, "{metrics:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn one_worker() -> Runtime {
    Builder::new().worker_threads(1).max_blocking_threads(1).build().unwrap()
}

/// Spawns tasks in a task that then blocks its worker. Returns the shortest and the longest time from a spawn to
/// its poll.
async fn delays_behind_a_long_poll(tasks: usize) -> (Duration, Duration) {
    let (sender, delays) = channel();
    let waiting: Vec<_> = (0..tasks)
        .map(|_| {
            let (sender, spawned) = (sender.clone(), Instant::now());
            runtime::spawn(async move { sender.send(spawned.elapsed()).unwrap() })
        })
        .collect();
    std::thread::sleep(BLOCK);
    for task in waiting {
        task.await.unwrap();
    }
    let delays: Vec<_> = delays.try_iter().collect();
    (*delays.iter().min().unwrap(), *delays.iter().max().unwrap())
}

#[test]
fn the_delay_behind_a_long_poll_is_between_the_poll_and_the_whole_time() {
    let (rt, start) = (one_worker(), Instant::now());
    let tasks = if cfg!(miri) { 3 } else { 300 };
    let (shortest, _) = rt.block_on(rt.spawn(delays_behind_a_long_poll(tasks))).unwrap();
    assert!(shortest >= BLOCK);
    let (delay, whole) = (rt.metrics().delay, start.elapsed());
    assert!(delay.max() >= BLOCK && delay.max() <= whole, "{:?} of {whole:?}", delay.max());
    // How often a delay is sampled depends on the load. That one was sampled does not.
    assert!(delay.sum() >= BLOCK && delay.count() >= 1);
}

#[test]
fn the_delay_of_a_task_from_another_thread_is_measured_too() {
    let rt = one_worker();
    let (begun, blocked) = channel();
    let (release, released) = channel::<()>();
    let blocking = rt.spawn(async move {
        begun.send(()).unwrap();
        released.recv().unwrap();
    });
    blocked.recv().unwrap();
    let (before, start) = (rt.metrics().delay, Instant::now());
    let behind = rt.spawn(async {});
    std::thread::sleep(BLOCK);
    release.send(()).unwrap();
    rt.block_on(behind).unwrap();
    rt.block_on(blocking).unwrap();
    let (after, whole) = (rt.metrics().delay, start.elapsed());
    assert!(after.sum() - before.sum() >= BLOCK, "{:?}", after.sum() - before.sum());
    assert!(after.max() >= BLOCK && after.max() <= whole, "{:?} of {whole:?}", after.max());
}

#[test]
#[ignore = "measures time: make measure"]
fn the_delay_behind_a_long_poll_is_measured_within_a_bucket() {
    let errors: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let rt = one_worker();
            let (shortest, longest) = rt.block_on(rt.spawn(delays_behind_a_long_poll(300))).unwrap();
            let delay = rt.metrics().delay;
            let is_near = near(&delay, shortest) > 0;
            filled(&delay).1.abs_diff(bucket(longest)) + usize::from(!is_near) * 100
        })
        .collect();
    assert!(median(errors.clone()) <= 1, "{errors:?}");
}

#[test]
#[cfg_attr(miri, ignore = "it is about time")]
fn rare_wakes_are_all_measured() {
    const WAKES: u64 = 50;
    let rt = one_worker();
    for _ in 0..WAKES {
        rt.block_on(rt.spawn(async {})).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(rt.metrics().delay.count(), WAKES);
    assert_eq!(rt.metrics().injected, WAKES);
}

#[test]
#[cfg_attr(miri, ignore = "it takes many wakes")]
fn the_samples_of_many_wakes_stand_for_about_all_of_them() {
    let rt = one_worker();
    rt.block_on(rt.spawn(async {
        let tasks: Vec<_> = (0..100)
            .map(|_| {
                runtime::spawn(async {
                    for _ in 0..10_000 {
                        yield_now().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }))
    .unwrap();
    let metrics = rt.metrics();
    assert!(metrics.polls >= 1_000_000);
    let counted = metrics.delay.count();
    assert!(counted.abs_diff(metrics.polls) < metrics.polls / 5, "{counted} for {} polls", metrics.polls);
}

/// Four jobs wait for one thread, which each of them blocks. Returns how long each has waited, and the metrics.
fn waits_of_four_jobs() -> (Vec<Duration>, Metrics) {
    let rt = one_worker();
    let waits = Arc::new(Mutex::new(Vec::new()));
    let jobs: Vec<_> = (0..4)
        .map(|_| {
            let (waits, submitted) = (waits.clone(), Instant::now());
            rt.spawn_blocking(move || {
                waits.lock().unwrap().push(submitted.elapsed());
                std::thread::sleep(BLOCK);
            })
        })
        .collect();
    let during = until(&rt, |metrics| metrics.blocking_jobs > 0);
    assert_eq!(during.blocking_threads, 1);
    assert_eq!(during.blocking_jobs + during.blocking_queue_depth as u64, 4);
    for job in jobs {
        rt.block_on(job).unwrap();
    }
    let after = until(&rt, |metrics| metrics.blocking_idle_threads == 1);
    assert_eq!((after.blocking_jobs, after.blocking_queue_depth), (4, 0));
    let waits = waits.lock().unwrap().clone();
    (waits, after)
}

#[test]
fn the_wait_of_each_blocking_job_is_between_the_jobs_before_it_and_the_whole_time() {
    let (waits, metrics) = waits_of_four_jobs();
    let wait = metrics.blocking_wait;
    assert_eq!(wait.count(), 4);
    // The first job may wait for nothing, and the others for one, two and three.
    assert!(wait.sum() >= 6 * BLOCK && wait.max() >= 3 * BLOCK, "{wait:?}");
    // A job notes its own wait a moment later than the pool does.
    assert!(
        wait.sum() <= waits.iter().sum() && wait.max() <= *waits.iter().max().unwrap(),
        "{wait:?} of {waits:?}"
    );
}

#[test]
#[ignore = "measures time: make measure"]
fn the_wait_of_each_blocking_job_is_measured_within_a_bucket() {
    let far: Vec<_> = (0..ROUNDS)
        .map(|_| {
            let (waits, metrics) = waits_of_four_jobs();
            waits.iter().filter(|truth| near(&metrics.blocking_wait, **truth) == 0).count()
        })
        .collect();
    assert_eq!(median(far.clone()), 0, "{far:?}");
}

#[test]
fn the_depths_are_those_of_the_queues() {
    let rt = one_worker();
    let (begun, blocked) = channel();
    let (release, released) = channel::<()>();
    let blocking = rt.spawn(async move {
        // The last one waits in the LIFO slot.
        let tasks: Vec<_> = (0..11).map(|_| runtime::spawn(async {})).collect();
        begun.send(()).unwrap();
        let _ = released.recv();
        for task in tasks {
            task.await.unwrap();
        }
    });
    blocked.recv().unwrap();
    let others: Vec<_> = (0..7).map(|_| rt.spawn(async {})).collect();
    let metrics = rt.metrics();
    assert_eq!((metrics.local_queue_depth, metrics.injector_depth), (10, 7));
    assert_eq!(metrics.per_worker[0].queue_depth, 10);
    release.send(()).unwrap();
    rt.block_on(async {
        blocking.await.unwrap();
        for other in others {
            other.await.unwrap();
        }
    });
    let metrics = rt.metrics();
    assert_eq!((metrics.local_queue_depth, metrics.injector_depth), (0, 0));
}

/// All that must never fall.
fn counters(metrics: &Metrics) -> Vec<(String, u128)> {
    let mut all = vec![
        ("tasks_spawned", u128::from(metrics.tasks_spawned)),
        ("tasks_completed", metrics.tasks_completed.into()),
        ("injected", metrics.injected.into()),
        ("timers_fired", metrics.timers_fired.into()),
        ("spins", metrics.spins.into()),
        ("spin_hits", metrics.spin_hits.into()),
        ("spin_lost", metrics.spin_lost.as_nanos()),
        ("blocking_jobs", metrics.blocking_jobs.into()),
        ("blocking_wait", metrics.blocking_wait.sum().as_nanos()),
        ("uptime", metrics.uptime.as_nanos()),
        ("busy", metrics.busy.as_nanos()),
        ("idle", metrics.idle.as_nanos()),
        ("delay", metrics.delay.count().into()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_string(), value))
    .collect::<Vec<_>>();
    for (index, worker) in metrics.per_worker.iter().enumerate() {
        let of_worker = [
            ("polls", u128::from(worker.polls)),
            ("lifo_hits", worker.lifo_hits.into()),
            ("steals", worker.steals.into()),
            ("parks", worker.parks.into()),
            ("wakeups", worker.wakeups.into()),
            ("busy", worker.busy.as_nanos()),
            ("idle", worker.idle.as_nanos()),
            ("delay", worker.delay.sum().as_nanos()),
        ];
        all.extend(of_worker.map(|(name, value)| (format!("worker {index}: {name}"), value)));
    }
    all
}

#[test]
fn counters_and_times_never_fall() {
    for builder in [Builder::new().worker_threads(2), Builder::new_current_thread()] {
        let rt = builder.build().unwrap();
        let (handle, (done, is_done)) = (rt.handle(), channel());
        let watcher = std::thread::spawn(move || {
            let (mut last, mut snapshots) = (counters(&handle.metrics()), 0);
            while is_done.try_recv() == Err(TryRecvError::Empty) {
                let now = counters(&handle.metrics());
                for ((name, before), (_, after)) in last.iter().zip(&now) {
                    assert!(after >= before, "{name} was {before} and is {after}");
                }
                (last, snapshots) = (now, snapshots + 1);
            }
            snapshots
        });
        rt.block_on(async {
            for round in 0..if cfg!(miri) { 3 } else { 200 } {
                let tasks: Vec<_> = (0..20).map(|_| runtime::spawn(yield_now())).collect();
                for task in tasks {
                    task.await.unwrap();
                }
                runtime::spawn_blocking(|| ()).await.unwrap();
                runtime::time::sleep(Duration::from_micros(round)).await;
            }
        });
        let metrics = rt.metrics();
        let sum = |of: fn(&runtime::WorkerMetrics) -> u64| metrics.per_worker.iter().map(of).sum::<u64>();
        assert_eq!(metrics.per_worker.len(), metrics.workers);
        assert!(metrics.polls > 0 && metrics.delay.count() > 0 && metrics.blocking_wait.count() > 0);
        assert_eq!(
            (metrics.polls, metrics.delay.count()),
            (sum(|one| one.polls), sum(|one| one.delay.count()))
        );
        done.send(()).unwrap();
        assert!(watcher.join().unwrap() > 0);
    }
}

/// Waits until no worker has woken up for a while, and returns two snapshots of that time.
fn two_while_idle(rt: &Runtime) -> (Metrics, Metrics) {
    let deadline = Instant::now() + LONG;
    loop {
        let before = rt.metrics();
        std::thread::sleep(BLOCK);
        let after = rt.metrics();
        if before.wakeups == after.wakeups && after.parks > after.wakeups {
            return (before, after);
        }
        assert!(Instant::now() < deadline, "{after:?}");
    }
}

#[test]
fn a_worker_that_sleeps_is_idle_and_not_busy() {
    let rt = Builder::new().worker_threads(2).build().unwrap();
    rt.block_on(rt.spawn(runtime::time::sleep(Duration::from_millis(1)))).unwrap();
    until(&rt, |metrics| metrics.parks >= metrics.wakeups + 2);
    let (before, after) = two_while_idle(&rt);
    for (before, after) in before.per_worker.iter().zip(&after.per_worker) {
        assert_eq!(before.busy, after.busy);
        assert!(after.idle - before.idle >= BLOCK);
    }
}

#[test]
fn a_worker_that_blocks_is_busy_and_not_idle() {
    let rt = one_worker();
    let (busy, truth) = rt
        .block_on(rt.spawn(async {
            let (before, start) = (Handle::current().metrics(), Instant::now());
            std::thread::sleep(BLOCK);
            let truth = start.elapsed();
            let after = Handle::current().metrics();
            assert_eq!(before.idle, after.idle);
            (after.busy - before.busy, truth)
        }))
        .unwrap();
    assert!(busy >= truth, "{busy:?} of {truth:?}");
}

#[test]
fn workers_that_were_not_needed_have_zeros() {
    let rt = Builder::new().worker_threads(3).build().unwrap();
    rt.block_on(rt.spawn(async {})).unwrap();
    let metrics = rt.metrics();
    assert_eq!(metrics.per_worker.len(), 3);
    assert_eq!(metrics.per_worker[2], runtime::WorkerMetrics::default());
}

#[test]
fn after_the_end_the_times_of_the_workers_stand_still() {
    for builder in [Builder::new().worker_threads(2), Builder::new_current_thread()] {
        let rt = builder.build().unwrap();
        rt.block_on(async {
            runtime::spawn(yield_now()).await.unwrap();
            runtime::spawn_blocking(|| ()).await.unwrap();
        });
        let (handle, before) = (rt.handle(), rt.metrics());
        drop(rt);
        let ended = handle.metrics();
        std::thread::sleep(Duration::from_millis(2));
        let later = handle.metrics();
        assert_eq!((ended.busy, ended.idle, &ended.per_worker), (later.busy, later.idle, &later.per_worker));
        assert!(ended.busy >= before.busy && ended.busy + ended.idle <= 2 * ended.uptime);
        assert!(ended.polls >= before.polls && ended.delay.count() >= before.delay.count());
        assert_eq!((ended.injector_depth, ended.local_queue_depth), (0, 0));
        assert_eq!(
            (ended.blocking_threads, ended.blocking_idle_threads, ended.blocking_queue_depth),
            (0, 0, 0)
        );
        assert_eq!(ended.blocking_jobs, before.blocking_jobs);
    }
}

/// Two processors on which this thread may run.
#[cfg(target_os = "linux")]
fn two_processors() -> Option<[usize; 2]> {
    // SAFETY: all bits zero is an empty set, and the system writes no more than its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
        set
    };
    // SAFETY: the number is below the size of the set.
    let mut found = (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) });
    Some([found.next()?, found.next()?])
}

/// Binds this thread, and those that it starts from now on, to a processor.
#[cfg(target_os = "linux")]
fn bind_to(cpu: usize) {
    // SAFETY: all bits zero is an empty set, and the number came from such a set.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
    }
}

/// A thread that answers at once each byte of one connection.
#[cfg(target_os = "linux")]
fn answering(cpu: usize) -> (std::net::SocketAddr, std::thread::JoinHandle<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        bind_to(cpu);
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_nodelay(true).unwrap();
        let mut byte = [0];
        while stream.read(&mut byte).unwrap() == 1 {
            stream.write_all(&byte).unwrap();
        }
    });
    (address, thread)
}

/// On one processor, the worker and the thread would take turns, and the worker would not gain by a spin.
#[test]
#[ignore = "measures time: make measure"]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_worker_that_waits_for_quick_answers_spins_and_then_sleeps() {
    let Some([one, other]) = two_processors() else { return };
    let (address, thread) = answering(other);
    bind_to(one);
    let rt = one_worker();
    let pings = rt.spawn(async move {
        let stream = runtime::net::TcpStream::connect(address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let mut seen = Vec::new();
        for _ in 0..ROUNDS {
            let before = Handle::current().metrics();
            for _ in 0..100 {
                stream.write_all(&[0]).await.unwrap();
                stream.read_exact(&mut [0]).await.unwrap();
            }
            let after = Handle::current().metrics();
            seen.push((after.spins - before.spins, after.spin_hits - before.spin_hits));
        }
        seen
    });
    let seen = rt.block_on(pings).unwrap();
    assert!(seen.iter().all(|(spins, hits)| hits <= spins), "{seen:?}");
    assert!(median(seen.iter().map(|(_, hits)| *hits).collect()) > 50, "{seen:?}");
    thread.join().unwrap();
    let (_, first) = two_while_idle(&rt);
    let (_, second) = two_while_idle(&rt);
    assert_eq!((first.spins, first.parks), (second.spins, second.parks));
    assert!(second.spin_hits < second.spins || second.spin_lost.is_zero());
}

/// A spin finds each chunk alone, and so doubles the processor time of the same bytes at the same rate.
#[test]
#[ignore = "measures time: make measure"]
#[cfg(all(target_os = "linux", not(miri)))]
fn a_worker_does_not_spin_for_the_small_chunks_of_a_long_upload() {
    use std::io::Write;

    const CHUNK: usize = 4096;
    let Some([one, other]) = two_processors() else { return };
    bind_to(one);
    let rt = one_worker();
    let spins_of_a_read = || {
        let listener = rt.block_on(runtime::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let sender = std::thread::spawn(move || {
            bind_to(other);
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_nodelay(true).unwrap();
            for _ in 0..20_000 {
                stream.write_all(&[0; CHUNK]).unwrap();
            }
        });
        let before = rt.metrics().spins;
        let receiving = rt.spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            let mut buffer = vec![0; 64 * CHUNK];
            let mut reads = 0;
            while stream.read(&mut buffer).await.unwrap() > 0 {
                reads += 1;
            }
            reads
        });
        let reads: u64 = rt.block_on(receiving).unwrap();
        sender.join().unwrap();
        (rt.metrics().spins - before) as f64 / reads as f64
    };
    let shares: Vec<_> = (0..ROUNDS).map(|_| spins_of_a_read()).collect();
    assert!(median(shares.clone()) < 0.5, "{shares:?}");
}
