//! 64 threads, each with one runtime after the other, whose tasks do all kinds of work, and start, await, abort and
//! leave tasks on each other's runtimes, which end meanwhile. It runs for some seconds, or for STRESS_SECONDS.
//!
//! Nothing may be lost: tokens go round in channels that all runtimes share, and at the end each of them is there.
//! Nothing may be left: futures, threads and descriptors are counted.

use std::cell::Cell;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use wakeloop::runtime::net::{TcpListener, TcpStream, UdpSocket, UnixStream};
use wakeloop::runtime::sync::{self, Notify, Semaphore, mpsc, oneshot};
use wakeloop::runtime::time::{interval, sleep, timeout};
use wakeloop::runtime::{
    Builder, Handle, JoinError, JoinHandle, JoinSet, LocalSet, Runtime, fs, spawn_blocking, spawn_local,
    yield_now,
};

const THREADS: usize = 64;
const TOKENS: usize = 200;
const QUEUES: usize = 8;
const PERMITS: usize = 5;
/// What the tasks say that panic on purpose.
const INTENDED: &str = "meant to happen";
/// No wait is longer than this, on a machine that is busy with 64 runtimes.
const PATIENCE: Duration = Duration::from_secs(90);

/// Random numbers of a thread or of a task (xorshift64*).
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn micros(&mut self, limit: u64) -> Duration {
        Duration::from_micros(self.below(limit))
    }

    fn fork(&mut self) -> Chance {
        Chance::new(self.below(1 << 31))
    }
}

/// What the runtimes share.
struct Shared {
    /// Of the last runtime of each thread. It may have ended.
    handles: Mutex<Vec<Handle>>,
    undertaker: Handle,
    queues: Vec<Queue>,
    /// The numbers of the tokens that were dropped, mostly with a future that had them in its hands.
    dropped: Arc<Mutex<VecDeque<usize>>>,
    gate: Arc<Semaphore>,
    /// Every future has a clone of it.
    alive: Arc<()>,
    over: AtomicBool,
    runtimes: AtomicUsize,
    jobs: AtomicUsize,
    /// Jobs that met the end of another runtime.
    ended: AtomicUsize,
}

struct Queue {
    sender: mpsc::Sender<Token>,
    receiver: sync::Mutex<mpsc::Receiver<Token>>,
}

/// Its number comes back when it is dropped.
struct Token {
    number: usize,
    dropped: Arc<Mutex<VecDeque<usize>>>,
}

impl Drop for Token {
    fn drop(&mut self) {
        self.dropped.lock().unwrap().push_back(self.number);
    }
}

impl Shared {
    fn new(undertaker: Handle) -> Shared {
        let queues = (0..QUEUES).map(|number| {
            // Half of them have little room, so that senders wait too.
            let (sender, receiver) = mpsc::bounded(if number % 2 == 0 { 20 } else { TOKENS });
            Queue { sender, receiver: sync::Mutex::new(receiver) }
        });
        Shared {
            handles: Mutex::new(vec![undertaker.clone(); THREADS]),
            undertaker,
            queues: queues.collect(),
            dropped: Arc::new(Mutex::new((0..TOKENS).collect())),
            gate: Arc::new(Semaphore::new(PERMITS)),
            alive: Arc::default(),
            over: AtomicBool::new(false),
            runtimes: AtomicUsize::new(0),
            jobs: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
        }
    }

    fn other(&self, chance: &mut Chance) -> Handle {
        let handles = self.handles.lock().unwrap();
        handles[chance.below(handles.len() as u64) as usize].clone()
    }

    fn dropped_token(&self) -> Option<Token> {
        let number = self.dropped.lock().unwrap().pop_front()?;
        Some(Token { number, dropped: self.dropped.clone() })
    }

    fn is_over(&self) -> bool {
        self.over.load(SeqCst)
    }
}

/// The life of a thread: one runtime after the other. Each lives for a part of a second.
fn live(shared: &Arc<Shared>, number: usize, mut chance: Chance) {
    while !shared.is_over() {
        let runtime = builder(&mut chance).build().unwrap();
        let _replaced = std::mem::replace(&mut shared.handles.lock().unwrap()[number], runtime.handle());
        let until = Instant::now() + chance.micros(500_000);
        let work = runtime.spawn(work(shared.clone(), until, chance.fork()));
        if chance.below(2) == 0 {
            runtime.block_on(LocalSet::new().run_until(local(shared.clone(), chance.fork())));
        }
        runtime.block_on(work).expect("the work neither fails nor is cancelled");
        end(shared, runtime, &mut chance);
        shared.runtimes.fetch_add(1, SeqCst);
    }
}

fn builder(chance: &mut Chance) -> Builder {
    let builder = match chance.below(4) {
        0 => Builder::new().worker_threads(1),
        1 => Builder::new().worker_threads(2),
        _ => Builder::new_current_thread(),
    };
    builder.max_blocking_threads(2)
}

/// Ends a runtime here, on another thread, or in a task of a runtime that lives on.
fn end(shared: &Arc<Shared>, runtime: Runtime, chance: &mut Chance) {
    match chance.below(4) {
        0 => thread::spawn(move || drop(runtime)).join().unwrap(),
        1 => drop(shared.undertaker.spawn(async move { drop(runtime) })),
        2 => drop(runtime.shutdown_timeout(chance.micros(1000))),
        _ => drop(runtime),
    }
}

/// Jobs until the time is over. Most runtimes end without one under way, so that a job that hangs is seen.
async fn work(shared: Arc<Shared>, until: Instant, mut chance: Chance) {
    let mut jobs = JoinSet::new();
    let mut aborted = false;
    while Instant::now() < until && !shared.is_over() {
        for _ in 0..3 {
            let (guard, job) = (shared.alive.clone(), job(shared.clone(), chance.fork()));
            jobs.spawn(async move {
                let _guard = guard;
                timeout(PATIENCE, job).await.expect("no job hangs");
            });
        }
        sleep(chance.micros(2000)).await;
        match chance.below(20) {
            0 | 1 => {
                jobs.abort_all();
                aborted = true;
            }
            2 => return jobs.detach_all(),
            3 => return,
            _ => {}
        }
        while let Some(ended) = jobs.join_next().await {
            match ended {
                Ok(()) => _ = shared.jobs.fetch_add(1, SeqCst),
                Err(error) => assert!(aborted && error.is_cancelled(), "{error}"),
            }
        }
        aborted = false;
    }
}

async fn job(shared: Arc<Shared>, mut chance: Chance) {
    let other = shared.other(&mut chance);
    let (shared, chance) = (&shared, &mut chance);
    match chance.below(16) {
        0..4 => pass_tokens(shared, chance).await,
        4 | 5 => talk(shared, other, chance).await,
        6 => datagrams().await,
        7 => timers(chance).await,
        8 => blocking(shared, other).await,
        9 | 10 => calls(shared, other, chance).await,
        11 => aborts(other, chance).await,
        12 => notifications(shared, other).await,
        13 => permits(shared, other, chance).await,
        14 => panics(shared, other).await,
        _ => inner_runtime(chance),
    }
}

/// Returns a task's output. A task is cancelled if its runtime ends; one that panics fails here too.
fn check<T>(ended: Result<T, JoinError>) -> Option<T> {
    if let Err(error) = &ended {
        assert!(error.is_cancelled(), "{error}");
    }
    ended.ok()
}

/// Awaits a task of another runtime.
async fn outcome<T>(shared: &Shared, task: JoinHandle<T>) -> Option<T> {
    let output = check(task.await);
    if output.is_none() {
        shared.ended.fetch_add(1, SeqCst);
    }
    output
}

async fn pass_tokens(shared: &Shared, chance: &mut Chance) {
    for _ in 0..10 {
        let [from, to] = [0; 2].map(|_| &shared.queues[chance.below(QUEUES as u64) as usize]);
        let passed = timeout(chance.micros(3000), async {
            let token = match shared.dropped_token() {
                Some(token) => token,
                None => from.receiver.lock().await.recv().await.expect("the senders are there"),
            };
            to.sender.send(token).await.expect("the receiver is there");
        });
        // A token that is under way when the time is over is dropped.
        _ = passed.await;
    }
}

/// A conversation with a server on another runtime. The server accepts the client that knows the key: another one may
/// have been told the same port by a server that has ended since.
async fn talk(shared: &Shared, other: Handle, chance: &mut Chance) {
    let (sender, port) = oneshot::channel();
    let key = chance.below(1 << 31).to_le_bytes();
    let server = other.spawn(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        _ = sender.send(listener.local_addr().unwrap());
        let stream = loop {
            let ((stream, _), mut sent) = (listener.accept().await.unwrap(), [0; 8]);
            if stream.read_exact(&mut sent).await.is_ok() && sent == key {
                break stream;
            }
        };
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            if stream.write_all(&buffer[..length]).await.is_err() {
                break;
            }
        }
    });
    let size = [1, 1000, 100_000][chance.below(3) as usize];
    let talk = async {
        let address = port.await.map_err(std::io::Error::other)?;
        let stream = TcpStream::connect(address).await?;
        stream.write_all(&key).await?;
        let sent: Vec<u8> = (0..size).map(|place: usize| (place * 31) as u8).collect();
        let mut got = vec![0; size];
        let (written, read) = wakeloop::join!(stream.write_all(&sent), stream.read_exact(&mut got));
        written?;
        read?;
        assert!(sent == got, "other bytes came back");
        Ok::<(), std::io::Error>(())
    };
    let talked = talk.await;
    if outcome(shared, server).await.is_some() {
        talked.expect("the server was there to the end");
    }
}

async fn datagrams() {
    let here = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let there = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    for number in 0..3u8 {
        here.send_to(&[number], there.local_addr().unwrap()).await.unwrap();
        assert_eq!(there.receive().await.unwrap(), (vec![number], here.local_addr().unwrap()));
    }
}

async fn timers(chance: &mut Chance) {
    let mut sleeps = JoinSet::new();
    for _ in 0..10 {
        let length = chance.micros(5000);
        sleeps.spawn(async move {
            let start = Instant::now();
            sleep(length).await;
            assert!(start.elapsed() >= length);
            assert!(timeout(length, sleep(PATIENCE)).await.is_err());
        });
    }
    let mut ticks = interval(Duration::from_micros(500));
    for _ in 0..3 {
        ticks.tick().await;
    }
    while let Some(ended) = sleeps.join_next().await {
        check(ended);
    }
}

async fn blocking(shared: &Shared, other: Handle) {
    let here: Vec<_> = (0..3).map(|n| spawn_blocking(move || n)).collect();
    let there = other.spawn_blocking(|| thread::current().id());
    for (n, job) in here.into_iter().enumerate() {
        assert_eq!(check(job.await).unwrap_or(n), n);
    }
    if let Some(thread) = outcome(shared, there).await {
        assert_ne!(thread, thread::current().id());
    }
    let (notified, output) = oneshot::channel();
    let job = other.spawn_blocking_and_notify(|| 7, |number| _ = notified.send(number));
    if let Ok(number) = output.await {
        assert_eq!(number, 7);
    }
    outcome(shared, job).await;
    // It fails if this runtime ends.
    if let Ok(content) = fs::read("Cargo.toml").await {
        assert!(content.starts_with(b"#"));
    }
}

/// Tasks on another runtime that are awaited, or left alone.
async fn calls(shared: &Shared, other: Handle, chance: &mut Chance) {
    for n in 0..4 {
        let guard = shared.alive.clone();
        let call = async move {
            let _guard = guard;
            yield_now().await;
            n
        };
        let call = if chance.below(2) == 0 { other.spawn(call) } else { other.spawn_here(call) };
        if chance.below(4) == 0 {
            drop(call);
        } else if let Some(output) = outcome(shared, call).await {
            assert_eq!(output, n);
        }
    }
    assert!(other.metrics().workers <= 2);
    // A socket of another runtime: an error ends the wait if that ends first.
    let Ok((near, far)) = other.enter(UnixStream::pair) else { return };
    let (sent, read) = wakeloop::join!(
        near.write_all(b"x"),
        timeout(Duration::from_millis(50), async { far.read_exact(&mut [0; 1]).await })
    );
    _ = (sent, read);
}

async fn aborts(other: Handle, chance: &mut Chance) {
    let (sender, receiver) = oneshot::channel::<()>();
    let task = other.spawn(async move {
        let _sender = sender;
        sleep(PATIENCE * 2).await;
    });
    sleep(chance.micros(500)).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert!(receiver.await.is_err(), "the task's future is dropped");
}

async fn notifications(shared: &Shared, other: Handle) {
    let (ask, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (asked, answers) = (ask.clone(), answer.clone());
    let task = other.spawn(async move {
        for _ in 0..5 {
            asked.notified().await;
            answers.notify_one();
        }
    });
    let mut asking = Box::pin(async {
        for _ in 0..5 {
            ask.notify_one();
            answer.notified().await;
        }
    });
    // The other task does not end before the last answer, unless its runtime does.
    let mut task = Box::pin(outcome(shared, task));
    std::future::poll_fn(|cx| {
        if asking.as_mut().poll(cx).is_ready() {
            std::task::Poll::Ready(())
        } else {
            task.as_mut().poll(cx).map(drop)
        }
    })
    .await;
}

async fn permits(shared: &Shared, other: Handle, chance: &mut Chance) {
    let (gate, length) = (shared.gate.clone(), chance.micros(500));
    let task = other.spawn(async move {
        let _permit = gate.acquire_owned(2).await;
        sleep(length).await;
    });
    // A wait that is over gives its place in the line to the next.
    if let Ok(permit) = timeout(chance.micros(2000), shared.gate.acquire(3)).await {
        yield_now().await;
        drop(permit);
    }
    outcome(shared, task).await;
}

async fn panics(shared: &Shared, other: Handle) {
    let task = other.spawn(async {
        yield_now().await;
        panic!("{INTENDED}")
    });
    let error = task.await.map(|()| "it has not panicked").unwrap_err();
    if error.is_panic() {
        assert_eq!(error.panic_message(), Some(INTENDED));
    } else {
        shared.ended.fetch_add(1, SeqCst);
    }
}

/// A runtime that is made and ended inside a task.
fn inner_runtime(chance: &mut Chance) {
    let runtime = builder(chance).build().unwrap();
    for n in 0..4 {
        runtime.spawn(async move { sleep(Duration::from_micros(n * 100)).await });
    }
    if chance.below(2) == 0 {
        drop(runtime);
    } else {
        runtime.shutdown_timeout(Duration::ZERO);
    }
}

/// Tasks that stay on their thread, and are woken from other runtimes.
async fn local(shared: Arc<Shared>, mut chance: Chance) {
    let woken = Rc::new(Cell::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let (woken, shared, other) = (woken.clone(), shared.clone(), shared.other(&mut chance));
            spawn_local(async move {
                let there = other.spawn(sleep(Duration::from_micros(300)));
                timeout(PATIENCE, outcome(&shared, there)).await.expect("the other runtime answers, or ends");
                woken.set(woken.get() + 1);
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(woken.get(), 4);
}

/// Waits until `done`, and returns whether it came so far.
fn comes(done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// The entries of a directory of /proc. Only Linux has it.
fn listed(directory: &str) -> Vec<PathBuf> {
    std::fs::read_dir(directory).map_or(Vec::new(), |list| list.map(|entry| entry.unwrap().path()).collect())
}

/// What the descriptors of the process are. Pipes are left out: runtimes have none, but a sanitizer has two to the
/// program that finds the names for its first report.
fn descriptors() -> Vec<PathBuf> {
    let targets = listed("/proc/self/fd").into_iter().filter_map(|link| std::fs::read_link(link).ok());
    targets.filter(|target| !target.to_string_lossy().starts_with("pipe:")).collect()
}

/// How many threads and descriptors the process has.
fn system_objects() -> [usize; 2] {
    [listed("/proc/self/task").len(), descriptors().len()]
}

#[test]
fn runtimes_64_in_64_threads_lose_and_leave_nothing() {
    let length = std::env::var("STRESS_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let hook = std::panic::take_hook();
    let panicked = failures.clone();
    std::panic::set_hook(Box::new(move |info| {
        if info.payload_as_str() != Some(INTENDED) {
            panicked.lock().unwrap().push(info.to_string());
        }
    }));
    let before = system_objects();
    let undertaker = Builder::new().worker_threads(1).build().unwrap();
    let shared = Arc::new(Shared::new(undertaker.handle()));
    let threads: Vec<_> = (0..THREADS)
        .map(|number| {
            let (shared, chance) = (shared.clone(), Chance::new(number as u64 + 1));
            thread::spawn(move || live(&shared, number, chance))
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(length);
    while Instant::now() < deadline && failures.lock().unwrap().is_empty() {
        thread::sleep(Duration::from_millis(50));
    }
    shared.over.store(true, SeqCst);
    let all_end = comes(|| threads.iter().all(|thread| thread.is_finished()));
    std::panic::set_hook(hook);
    assert!(failures.lock().unwrap().is_empty(), "{}", failures.lock().unwrap().join("\n"));
    assert!(all_end, "threads hang");
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    drop(undertaker);
    shared.handles.lock().unwrap().clear();
    let left = || Arc::strong_count(&shared.alive) - 1;
    assert!(comes(|| left() == 0), "{} futures are left", left());
    assert!(comes(|| Arc::strong_count(&shared) == 1), "a task is left");
    let [runtimes, jobs, ended] =
        [&shared.runtimes, &shared.jobs, &shared.ended].map(|count| count.load(SeqCst));
    println!("{runtimes} runtimes, {jobs} jobs, {ended} of them met the end of another runtime");
    assert!(runtimes >= THREADS && jobs > 0);
    assert_eq!(shared.gate.available(), PERMITS);
    let dropped = shared.dropped.clone();
    drop(shared);
    let same = comes(|| system_objects() == before);
    assert!(same, "threads, descriptors: {before:?}, now {:?}: {:?}", system_objects(), descriptors());
    let mut tokens: Vec<usize> = dropped.lock().unwrap().iter().copied().collect();
    tokens.sort_unstable();
    assert!(tokens.into_iter().eq(0..TOKENS), "tokens were lost or doubled");
}
