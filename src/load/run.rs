//! A run from connect to report. The calling thread keeps time and reads the clocks; the connections live on the
//! runtime's workers.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::clock::CpuClock;
use super::conversation::{Conversation, Plan};
use super::tally::{Fault, Kind, Latch, Phase, Tally};
use super::{Config, Report, Target, Work};
use crate::runtime::time::sleep;
use crate::runtime::{Builder, Handle};

/// Connections made, and idle ones asked, at one time: below the shortest listen backlog in common use.
const AT_ONCE: usize = 64;
/// How often the caller is asked whether to go on.
const LOOK: Duration = Duration::from_millis(100);
/// What IPv4 has room for, behind its header and UDP's.
const LONGEST_DATAGRAM: usize = 65_507;

/// Runs the load and reports. `go_on` is called on this thread about ten times a second; when it returns false the
/// run ends with `ErrorKind::Interrupted`.
pub fn run(config: &Config, go_on: &mut dyn FnMut() -> bool) -> io::Result<Report> {
    validate(config)?;
    let watched = config.watch_pid.map(CpuClock::of_process).transpose()?;
    let runtime = Builder::new().worker_threads(config.workers).build()?;
    let mut run = Run {
        handle: runtime.handle().clone(),
        plan: Arc::new(Plan::new(&config.target, &config.work, config.patience)),
        tally: Arc::new(Tally::new(config.count)),
        go_on,
    };

    let start = Instant::now();
    let idle = run.connect(0..config.idle, true)?;
    let active = run.connect(config.idle..config.idle + config.connections, false)?;
    let connect_seconds = start.elapsed().as_secs_f64();

    let window = run.measure(config, active, watched)?;
    let idle_answered = run.ask_idle(idle)?;
    drop(runtime);

    let tally = run.tally;
    let (errors, first_error) = tally.errors();
    Ok(Report {
        requests: window.requests,
        seconds: window.seconds,
        bytes: window.bytes,
        connect_seconds,
        idle_answered,
        latency: tally.latency.summary(),
        lag: config.rate.map(|_| tally.lag.summary()),
        unsent: tally.unsent.load(Relaxed),
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

/// What is needed in every phase.
struct Run<'a> {
    handle: Handle,
    plan: Arc<Plan>,
    tally: Arc<Tally>,
    go_on: &'a mut dyn FnMut() -> bool,
}

/// What the clocks and counters said at the end of the window, less what they said at its start.
struct Window {
    requests: u64,
    bytes: u64,
    seconds: f64,
    own_cpu: Duration,
    watched_cpu: Option<Duration>,
}

impl Run<'_> {
    /// Opens these connections; with `prove` each answers once. What fails is counted and left out.
    fn connect(&mut self, ids: std::ops::Range<usize>, prove: bool) -> io::Result<Vec<Conversation>> {
        let opened = Arc::new(Mutex::new(Vec::with_capacity(ids.len())));
        let next = Arc::new(AtomicUsize::new(ids.start));
        let tasks = ids.len().min(AT_ONCE);
        self.crew((0..tasks).map(|_| {
            let (plan, tally) = (self.plan.clone(), self.tally.clone());
            let (opened, next, end) = (opened.clone(), next.clone(), ids.end);
            async move {
                loop {
                    let id = next.fetch_add(1, Relaxed);
                    if id >= end {
                        return;
                    }
                    match open(plan.clone(), id, prove).await {
                        Ok(conversation) => {
                            opened.lock().unwrap_or_else(PoisonError::into_inner).push(conversation)
                        }
                        Err(fault) => tally.failed(fault),
                    }
                }
            }
        }))
        .finish(self.go_on)?;
        Ok(std::mem::take(&mut opened.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Asks every idle connection once more; returns how many answered.
    fn ask_idle(&mut self, idle: Vec<Conversation>) -> io::Result<usize> {
        let answered = Arc::new(AtomicUsize::new(0));
        let tasks = idle.len().min(AT_ONCE);
        let idle = Arc::new(Mutex::new(idle));
        self.crew((0..tasks).map(|_| {
            let (tally, answered, idle) = (self.tally.clone(), answered.clone(), idle.clone());
            async move {
                loop {
                    let conversation = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
                    let Some(mut conversation) = conversation else { return };
                    match conversation.exchange_in_time().await {
                        Ok(_) => drop(answered.fetch_add(1, Relaxed)),
                        Err(fault) => tally.failed(fault),
                    }
                }
            }
        }))
        .finish(self.go_on)?;
        Ok(answered.load(Relaxed))
    }

    /// Warm-up and window.
    fn measure(
        &mut self,
        config: &Config,
        active: Vec<Conversation>,
        watched: Option<CpuClock>,
    ) -> io::Result<Window> {
        let start = Instant::now();
        let schedule = config.rate.map(|rate| Schedule {
            end: start + config.warmup + config.duration,
            interval: Duration::from_secs_f64(active.len() as f64 / rate),
        });
        let connections = active.len() as u32;
        let crew = self.crew(active.into_iter().enumerate().map(|(place, conversation)| {
            let tally = self.tally.clone();
            async move {
                let asked = match schedule {
                    None => closed_loop(conversation, &tally).await,
                    Some(schedule) => {
                        let first = start + schedule.interval * place as u32 / connections;
                        open_loop(conversation, &tally, schedule, first).await
                    }
                };
                if let Err(fault) = asked {
                    tally.failed(fault);
                }
            }
        }));
        crew.wait_until(start + config.warmup, self.go_on)?;

        let other = watched.map(CpuClock::read).transpose()?;
        let (began, own) = (Instant::now(), CpuClock::own().read()?);
        self.tally.enter(Phase::Window);
        crew.wait_until(began + config.duration, self.go_on)?;
        self.tally.enter(Phase::Over);
        let window = Window {
            requests: self.tally.requests(),
            bytes: self.tally.bytes(),
            seconds: began.elapsed().as_secs_f64(),
            own_cpu: CpuClock::own().read()? - own,
            watched_cpu: match (watched, other) {
                (Some(clock), Some(before)) => Some(clock.read()? - before),
                _ => None,
            },
        };

        for _ in 0..crew.wait_until(Instant::now() + config.patience, self.go_on)? {
            self.tally.failed(Fault::new(Kind::Stalled, format!("no answer within {:?}", config.patience)));
        }
        Ok(window)
    }

    /// Spawns these tasks.
    fn crew<F: Future<Output = ()> + Send + 'static>(&self, tasks: impl ExactSizeIterator<Item = F>) -> Crew {
        let latch = Arc::new(Latch::new(tasks.len()));
        for task in tasks {
            let share = latch.share();
            drop(self.handle.spawn(async move {
                task.await;
                drop(share);
            }));
        }
        Crew(latch)
    }
}

/// Tasks that run together.
struct Crew(Arc<Latch>);

impl Crew {
    /// Waits until all have ended or the deadline is there; returns how many still run.
    fn wait_until(&self, deadline: Instant, go_on: &mut dyn FnMut() -> bool) -> io::Result<usize> {
        loop {
            let now = Instant::now();
            let running = self.0.wait_until(deadline.min(now + LOOK));
            if running == 0 || now >= deadline {
                return Ok(running);
            }
            if !go_on() {
                return Err(io::Error::from(io::ErrorKind::Interrupted));
            }
        }
    }

    /// Waits until all have ended.
    fn finish(&self, go_on: &mut dyn FnMut() -> bool) -> io::Result<()> {
        while self.wait_until(Instant::now() + LOOK, go_on)? > 0 {}
        Ok(())
    }
}

async fn open(plan: Arc<Plan>, id: usize, prove: bool) -> Result<Conversation, Fault> {
    let mut conversation = Conversation::open(plan, id).await?;
    if prove {
        conversation.exchange_in_time().await?;
    }
    Ok(conversation)
}

/// Asks again as soon as it has its answer.
async fn closed_loop(mut conversation: Conversation, tally: &Tally) -> Result<(), Fault> {
    let mut sent = Instant::now();
    while tally.may_start() {
        let bytes = conversation.exchange().await?;
        let now = Instant::now();
        tally.answered(bytes, now - sent);
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

/// Asks at its due times, or as soon after as the answer before has come.
async fn open_loop(
    mut conversation: Conversation,
    tally: &Tally,
    schedule: Schedule,
    first: Instant,
) -> Result<(), Fault> {
    let mut due = first;
    while due < schedule.end {
        let wait = due.saturating_duration_since(Instant::now());
        if !wait.is_zero() {
            sleep(wait).await;
            if tally.phase() == Phase::Window {
                tally.lag.record(due.elapsed());
            }
        }
        if tally.phase() == Phase::Over {
            let missed = (schedule.end - due).as_nanos().div_ceil(schedule.interval.as_nanos().max(1));
            tally.unsent.fetch_add(missed as u64, Relaxed);
            break;
        }
        let bytes = conversation.exchange().await?;
        tally.answered(bytes, due.elapsed());
        due += schedule.interval;
    }
    Ok(())
}
