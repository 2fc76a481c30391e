//! Reading ahead of a consumer: a task that receives and looks for the end of items while the consumer does
//! something else.
//!
//! Two buffers. The task fills `back`, under a lock that is held for one system call at a time; the consumer takes
//! items from its own `front` without a lock, and when there is no whole item left in it, puts the rest in front of
//! `back` and takes that. So a burst of items costs one lock and, if the consumer waited, one wake.
//!
//! **Cancel safety.** Bytes leave the buffers only when an item is taken. Who waits holds none: giving up the wait
//! loses nothing, and the next `take`, of whatever kind, goes on where the last one ended.
//!
//! **Backpressure.** The task stops at `high` bytes, unless the item that is waited for is longer, and goes on when
//! the consumer has taken the buffer.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use super::TcpStream;
use super::framing::{Found, Want};
use super::read_buffer::{LARGE, ReadBuffer};
use crate::runtime::sync::Notify;
use crate::runtime::{AbortHandle, Handle, unpoisoned};

/// What [`ReadAhead::take`] came to.
#[derive(Debug)]
pub enum Taken<'a> {
    /// The item. Taken whether or not anybody looks at it.
    Item(&'a [u8]),
    /// The stream has ended before the item did; this is the rest, which is taken too.
    Rest(&'a [u8]),
    /// The item is longer than allowed: so many bytes at least. It stays where it is.
    TooLong(usize),
    /// It is not here yet.
    Nothing,
    /// The stream has failed. What came before the failure can still be taken.
    Failed(io::Error),
}

/// The consumer's side.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<Shared>,
    front: ReadBuffer,
    /// How much of `front` was searched in vain for the delimiter of the current item.
    scanned: usize,
    limit: usize,
    task: Option<AbortHandle>,
}

/// What the task and the consumer share.
#[derive(Debug)]
struct Shared {
    stream: Arc<TcpStream>,
    back: Mutex<Back>,
    /// The task waits here while `back` is full.
    room: Notify,
    limit: usize,
    high: usize,
}

#[derive(Debug, Default)]
struct Back {
    buffer: ReadBuffer,
    scanned: usize,
    /// The consumer likes lines: look for their ends in whatever comes.
    lines: bool,
    waiting: Option<(Want, Waker)>,
    /// The task does not read on before there is room.
    full: bool,
    end: Option<End>,
}

/// How a stream came to its end.
#[derive(Clone, Copy, Debug)]
enum End {
    Eof,
    Failed(i32),
    Broken(io::ErrorKind),
}

impl ReadAhead {
    /// Reads `stream`, which nobody else may read. A line, or what ends in another delimiter, is at most `limit` bytes
    /// long. Nothing is read before [`ReadAhead::start`].
    pub fn new(stream: Arc<TcpStream>, limit: usize) -> ReadAhead {
        let high = limit.saturating_mul(2).max(LARGE);
        let shared = Shared { stream, back: Mutex::default(), room: Notify::new(), limit, high };
        ReadAhead { shared: Arc::new(shared), front: ReadBuffer::default(), scanned: 0, limit, task: None }
    }

    /// Whether the task was started.
    pub fn is_started(&self) -> bool {
        self.task.is_some()
    }

    /// Starts the task, with a first read on the calling thread.
    pub fn start(&mut self, runtime: &Handle) {
        let task = runtime.spawn_here(read_on(self.shared.clone()));
        self.task = Some(task.abort_handle());
    }

    /// A new item is wanted: what is known about the search for the last one does not count.
    pub fn begin(&mut self) {
        self.scanned = 0;
    }

    /// The item, if it is here. Never blocks for longer than a system call of the task.
    pub fn take(&mut self, want: &Want) -> Taken<'_> {
        // In two steps, as what is handed out is borrowed.
        match self.look(want) {
            Look::Item(skip, len) => {
                self.scanned = 0;
                Taken::Item(self.front.take(skip, len))
            }
            Look::Rest => {
                self.scanned = 0;
                let len = self.front.len();
                Taken::Rest(self.front.take(0, len))
            }
            Look::Other(taken) => taken,
        }
    }

    fn look(&mut self, want: &Want) -> Look {
        loop {
            if matches!(want, Want::Line) {
                match self.front.indexed_line() {
                    Some(len) if len > self.limit => return Look::Other(Taken::TooLong(len)),
                    Some(len) => return Look::Item(0, len),
                    None => self.scanned = self.scanned.max(self.front.known()),
                }
            }
            match want.find(self.front.bytes(), &mut self.scanned, self.limit) {
                Found::Item { skip, len } => return Look::Item(skip, len),
                Found::TooLong { len } => return Look::Other(Taken::TooLong(len)),
                Found::More { .. } => {}
            }
            let shared = self.shared.clone();
            let mut back = shared.lock();
            if back.buffer.is_empty() {
                return match back.end {
                    None => Look::Other(Taken::Nothing),
                    Some(End::Eof) => Look::Rest,
                    Some(End::Failed(errno)) => {
                        Look::Other(Taken::Failed(io::Error::from_raw_os_error(errno)))
                    }
                    Some(End::Broken(kind)) => Look::Other(Taken::Failed(kind.into())),
                };
            }
            back.buffer.prepend(&mut self.front);
            std::mem::swap(&mut back.buffer, &mut self.front);
            if back.full {
                back.full = false;
                drop(back);
                shared.room.notify_one();
            }
        }
    }

    /// After [`Taken::Nothing`]: `waker` is woken once `take` has something else to say. False if it has already.
    pub fn wait(&mut self, want: &Want, waker: Waker) -> bool {
        let mut back = self.shared.lock();
        if !back.buffer.is_empty() || back.end.is_some() {
            return false;
        }
        // While somebody waits everything is in `back`, in one piece.
        std::mem::swap(&mut back.buffer, &mut self.front);
        self.front.shrink(back.buffer.len());
        back.scanned = self.scanned;
        back.lines = matches!(want, Want::Line);
        back.waiting = Some((want.clone(), waker));
        let resume = std::mem::take(&mut back.full);
        drop(back);
        if resume {
            self.shared.room.notify_one();
        }
        true
    }

    /// Nobody waits any more. The waker of who did.
    pub fn give_up(&self) -> Option<Waker> {
        // Not dropped under the lock: a waker is anybody's.
        self.shared.lock().waiting.take().map(|(_, waker)| waker)
    }
}

enum Look {
    Item(usize, usize),
    Rest,
    Other(Taken<'static>),
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Back> {
        unpoisoned(self.back.lock())
    }
}

impl Back {
    /// How many bytes the task may collect.
    fn most(&self, shared: &Shared) -> usize {
        match &self.waiting {
            Some((want, _)) => {
                match want.find(self.buffer.bytes(), &mut self.scanned.clone(), shared.limit) {
                    Found::More { total } => shared.high.max(total),
                    _ => shared.high,
                }
            }
            None => shared.high,
        }
    }

    /// One read; ends the wait if it brought what is waited for.
    fn receive(&mut self, shared: &Shared, source: impl io::Read) -> io::Result<(bool, bool, Option<Waker>)> {
        let total = self.most(shared);
        if self.buffer.len() >= total {
            self.full = true;
            return Ok((false, false, None));
        }
        let total = if total > shared.high { total } else { 0 };
        let (got, short) = self.buffer.fill(source, total)?;
        if got == 0 {
            self.end = Some(End::Eof);
        } else if self.lines {
            self.buffer.index_lines();
        }
        Ok((true, short, self.satisfied(shared)))
    }

    /// The waker, if the wait is over.
    fn satisfied(&mut self, shared: &Shared) -> Option<Waker> {
        let (want, _) = self.waiting.as_ref()?;
        let over = self.end.is_some()
            || match want {
                Want::Line if self.buffer.indexed_line().is_some() => true,
                _ => {
                    let found = want.find(self.buffer.bytes(), &mut self.scanned, shared.limit);
                    !matches!(found, Found::More { .. })
                }
            };
        if over { self.waiting.take().map(|(_, waker)| waker) } else { None }
    }

    fn fail(&mut self, error: &io::Error) -> Option<Waker> {
        self.end = Some(error.raw_os_error().map_or(End::Broken(error.kind()), End::Failed));
        self.waiting.take().map(|(_, waker)| waker)
    }
}

/// The task: reads until the stream ends.
async fn read_on(shared: Arc<Shared>) {
    loop {
        let read = shared.stream.receive(|source| {
            let mut back = shared.lock();
            let (read, short, waker) = back.receive(&shared, source)?;
            drop(back);
            if let Some(waker) = waker {
                waker.wake();
            }
            Ok((read, short))
        });
        match read.await {
            Ok((true, _)) if shared.lock().end.is_some() => return,
            Ok((true, _)) => {}
            Ok((false, _)) => shared.room.notified().await,
            Err(error) => {
                let waker = shared.lock().fail(&error);
                if let Some(waker) = waker {
                    waker.wake();
                }
                return;
            }
        }
    }
}
