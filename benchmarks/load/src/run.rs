//! A run from connect to report. The calling thread keeps time and reads the clocks; the connections live on the
//! runtime's workers.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use wakeloop::runtime::time::{sleep, timeout_at};
use wakeloop::runtime::{Builder, JoinSet, Runtime};

use crate::clock::CpuClock;
use crate::connection::{Connection, Plan};
use crate::stats::{Error, ErrorKind, Phase, Stats};
use crate::{Config, Progress, Report, Target, Work};

/// How many connections are made, and how many idle ones asked, at one time: below the shortest listen backlog in
/// common use.
const AT_ONCE: usize = 64;
/// IPv4 has room for this many bytes behind its header and UDP's.
const LONGEST_DATAGRAM: usize = 65_507;

/// How often a run shows its progress.
const SHOW_EVERY: Duration = Duration::from_secs(1);

/// Runs the load and reports.
pub fn run(config: &Config) -> io::Result<Report> {
    run_with(config, None)
}

/// As [`run`]; calls `show` once a second during warm-up and window.
pub fn run_and_show(config: &Config, show: impl Fn(Progress)) -> io::Result<Report> {
    run_with(config, Some(&show))
}

fn run_with(config: &Config, show: Option<&dyn Fn(Progress)>) -> io::Result<Report> {
    validate(config)?;
    let watched = config.watch_pid.map(CpuClock::of_process).transpose()?;
    let run = Run {
        runtime: Builder::new().worker_threads(config.workers).build()?,
        plan: Arc::new(Plan::new(&config.target, &config.work, config.timeout)),
        stats: Arc::new(Stats::new(config.count)),
        show,
    };

    let start = Instant::now();
    let idle = run.connect(0..config.idle, true);
    let active = run.connect(config.idle..config.idle + config.connections, false);
    let connect_seconds = start.elapsed().as_secs_f64();

    let window = run.measure(config, active, watched)?;
    let idle_answered = run.ask_idle(idle);
    drop(run.runtime);

    let stats = run.stats;
    let (errors, first_error) = stats.errors();
    Ok(Report {
        requests: window.requests,
        seconds: window.seconds,
        bytes: window.bytes,
        connect_seconds,
        idle_answered,
        latency: stats.latency.summary(),
        lag: config.rate.map(|_| stats.lag.summary()),
        unsent: stats.unsent.load(Relaxed),
        errors,
        first_error,
        own_cpu: window.own_cpu,
        watched_cpu: window.watched_cpu,
    })
}

fn validate(config: &Config) -> io::Result<()> {
    let datagrams = matches!(config.target, Target::Udp(_));
    let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    match &config.work {
        Work::Echo { size: 0, .. } => return wrong("an echo needs a size of at least one byte"),
        Work::Echo { size, .. } if datagrams && *size > LONGEST_DATAGRAM => {
            return wrong("no datagram is that long");
        }
        Work::Http(_) | Work::Accept if datagrams => return wrong("datagrams are echoed, nothing else"),
        Work::Accept if config.idle > 0 => return wrong("this kind of load has no idle connections"),
        _ => {}
    }
    match config.rate {
        Some(rate) if !(rate > 0.0 && rate.is_finite()) => wrong("the rate must be a positive number"),
        Some(_) if config.count.is_some() => wrong("a rate and a count exclude each other"),
        _ if config.connections == 0 || config.workers == 0 => wrong("connections and workers start at one"),
        _ => Ok(()),
    }
}

/// The parts that every phase needs.
struct Run<'a> {
    runtime: Runtime,
    plan: Arc<Plan>,
    stats: Arc<Stats>,
    show: Option<&'a dyn Fn(Progress)>,
}

/// The progress of clocks and counters during the window.
struct Window {
    requests: u64,
    bytes: u64,
    seconds: f64,
    own_cpu: Duration,
    watched_cpu: Option<Duration>,
}

impl Run<'_> {
    /// Opens these connections; with `check` each makes one exchange. Those that fail are counted and left out.
    fn connect(&self, ids: std::ops::Range<usize>, check: bool) -> Vec<Connection> {
        let next = Arc::new(AtomicUsize::new(ids.start));
        let mut tasks = JoinSet::new();
        for _ in 0..ids.len().min(AT_ONCE) {
            let (plan, stats, next) = (self.plan.clone(), self.stats.clone(), next.clone());
            let open_some = async move {
                let mut opened = Vec::new();
                loop {
                    let id = next.fetch_add(1, Relaxed);
                    if id >= ids.end {
                        return opened;
                    }
                    match open(plan.clone(), id, check).await {
                        Ok(connection) => opened.push(connection),
                        Err(error) => stats.failed(error),
                    }
                }
            };
            tasks.insert(self.runtime.spawn(open_some));
        }
        self.results(tasks).into_iter().flatten().collect()
    }

    /// Makes one more exchange on every idle connection; returns how many answered.
    fn ask_idle(&self, idle: Vec<Connection>) -> usize {
        let mut tasks = JoinSet::new();
        let at_once = idle.len().min(AT_ONCE);
        let idle = Arc::new(Mutex::new(idle));
        for _ in 0..at_once {
            let (stats, idle) = (self.stats.clone(), idle.clone());
            let ask_some = async move {
                let mut answered = 0;
                loop {
                    let connection = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some(mut connection) = connection else { return answered };
                    match connection.exchange_in_time().await {
                        Ok(_) => answered += 1,
                        Err(error) => stats.failed(error),
                    }
                }
            };
            tasks.insert(self.runtime.spawn(ask_some));
        }
        self.results(tasks).into_iter().sum()
    }

    /// Warm-up and window.
    fn measure(
        &self,
        config: &Config,
        active: Vec<Connection>,
        watched: Option<CpuClock>,
    ) -> io::Result<Window> {
        let start = Instant::now();
        let schedule = config.rate.map(|rate| Schedule {
            end: start + config.warmup + config.duration,
            interval: Duration::from_secs_f64(active.len() as f64 / rate),
        });
        let connections = active.len() as u32;
        let mut tasks = JoinSet::new();
        for (place, connection) in active.into_iter().enumerate() {
            let stats = self.stats.clone();
            let exchange_all = async move {
                let ended = match schedule {
                    None => closed_loop(connection, &stats).await,
                    Some(schedule) => {
                        let first = start + schedule.interval * place as u32 / connections;
                        open_loop(connection, &stats, schedule, first).await
                    }
                };
                if let Err(error) = ended {
                    stats.failed(error);
                }
            };
            tasks.insert(self.runtime.spawn(exchange_all));
        }
        self.wait_and_show(&mut tasks, start + config.warmup);

        let watched_before = watched.map(CpuClock::read).transpose()?;
        let (began, own_before) = (Instant::now(), CpuClock::own().read()?);
        self.stats.enter(Phase::Window);
        self.wait_and_show(&mut tasks, began + config.duration);
        self.stats.enter(Phase::Over);
        let window = Window {
            requests: self.stats.requests(),
            bytes: self.stats.bytes(),
            seconds: began.elapsed().as_secs_f64(),
            own_cpu: CpuClock::own().read()? - own_before,
            watched_cpu: match (watched, watched_before) {
                (Some(clock), Some(before)) => Some(clock.read()? - before),
                _ => None,
            },
        };

        self.wait(&mut tasks, Instant::now() + config.timeout);
        for _ in 0..tasks.len() {
            self.stats
                .failed(Error::new(ErrorKind::Stalled, format!("no answer within {:?}", config.timeout)));
        }
        Ok(window)
    }

    /// As `wait`, and shows the progress meanwhile.
    fn wait_and_show(&self, tasks: &mut JoinSet<()>, deadline: Instant) {
        if let Some(show) = self.show {
            let (began, warming_up) = (Instant::now(), self.stats.phase() == Phase::Warmup);
            while !tasks.is_empty() && Instant::now() + SHOW_EVERY < deadline {
                self.wait(tasks, Instant::now() + SHOW_EVERY);
                let (requests, errors) = (self.stats.requests(), self.stats.error_count());
                show(Progress { warming_up, elapsed: began.elapsed(), requests, errors });
            }
        }
        self.wait(tasks, deadline);
    }

    /// Waits until all tasks have ended, or until the deadline.
    fn wait(&self, tasks: &mut JoinSet<()>, deadline: Instant) {
        let all = async { while tasks.join_next().await.is_some() {} };
        // Tasks that still run stay in the set.
        let _ = self.runtime.block_on(async { timeout_at(deadline, all).await });
    }

    /// Waits until all tasks have ended; returns what they found.
    fn results<T: Send + 'static>(&self, mut tasks: JoinSet<T>) -> Vec<T> {
        self.runtime.block_on(async {
            let mut found = Vec::new();
            while let Some(result) = tasks.join_next().await {
                found.push(result.expect("no task of the load panics"));
            }
            found
        })
    }
}

async fn open(plan: Arc<Plan>, id: usize, check: bool) -> Result<Connection, Error> {
    let mut connection = Connection::open(plan, id).await?;
    if check {
        connection.exchange_in_time().await?;
    }
    Ok(connection)
}

/// Sends the next request as soon as the last was answered.
async fn closed_loop(mut connection: Connection, stats: &Stats) -> Result<(), Error> {
    let mut sent = Instant::now();
    while stats.may_start() {
        let bytes = connection.exchange().await?;
        let now = Instant::now();
        stats.answered(bytes, now - sent);
        sent = now;
    }
    Ok(())
}

/// When requests are due.
#[derive(Clone, Copy)]
struct Schedule {
    end: Instant,
    /// Between two requests of one connection.
    interval: Duration,
}

/// Sends requests at their due times, or as soon afterwards as the last was answered.
async fn open_loop(
    mut connection: Connection,
    stats: &Stats,
    schedule: Schedule,
    first: Instant,
) -> Result<(), Error> {
    let mut due = first;
    while due < schedule.end {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
            if stats.phase() == Phase::Window {
                stats.lag.record(due.elapsed());
            }
        }
        if stats.phase() == Phase::Over {
            let missed = (schedule.end - due).as_nanos().div_ceil(schedule.interval.as_nanos().max(1));
            stats.unsent.fetch_add(missed as u64, Relaxed);
            break;
        }
        let bytes = connection.exchange().await?;
        stats.answered(bytes, due.elapsed());
        due += schedule.interval;
    }
    Ok(())
}
