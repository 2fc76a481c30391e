//! Reads ahead of a consumer: a task receives, and looks for the ends of items, while the consumer does
//! something else.
//!
//! There are two buffers. The task fills `back`, under a lock that is held for one system call at a time. The
//! consumer takes items from its own `front` without a lock. When `front` has no whole item left, the consumer
//! puts the rest in front of `back` and swaps the two. So a burst of items costs one lock and, if the consumer
//! waited, one wake.
//!
//! **Backpressure.** The task stops at `high` bytes, unless the awaited item is longer. It continues when the
//! consumer has taken the buffer.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use super::read_buffer::LARGE;
use super::received::{ReadProgress, Received};
use super::tcp::TcpStream;
use crate::framing::{ReadRequest, TooLong};
use crate::memory::{is_out_of_memory, out_of_memory};
use crate::poison::unpoisoned;
use crate::runtime::driver::note_received;
use crate::runtime::handle::Handle;
use crate::runtime::sync::Notify;
use crate::runtime::task::AbortHandle;
use crate::runtime::wakers;

/// The consumer's side.
#[derive(Debug)]
pub struct ReadAhead {
    shared: Arc<SharedReader>,
    front: Received,
    task: Option<AbortHandle>,
}

/// The bytes that the consumer has taken from the task.
enum Swapped {
    /// Bytes, after which the task had no memory for more if they are `short`.
    Bytes {
        short: bool,
    },
    End,
    Nothing,
}

/// The state that the task and the consumer share.
#[derive(Debug)]
struct SharedReader {
    stream: Arc<TcpStream>,
    back: Mutex<Back>,
    /// The task waits here while `back` is full.
    room: Notify,
    high: usize,
}

#[derive(Debug)]
struct Back {
    received: Received,
    /// The consumer reads lines, so the task indexes their ends as bytes arrive.
    lines: bool,
    waiting: Option<(ReadRequest, Waker)>,
    /// The task waits for room before it reads on.
    full: bool,
    /// There was no memory for more. Whoever wants more is told so, once, and the task tries again when they ask again.
    short: bool,
}

impl ReadAhead {
    /// Reads `stream`, which nobody else may read, after the bytes in `received`. It reads nothing before
    /// [`ReadAhead::start`].
    pub fn new(stream: Arc<TcpStream>, received: Received) -> ReadAhead {
        let limit = received.limit();
        let high = limit.saturating_mul(2).max(LARGE);
        let back =
            Back { received: Received::new(limit), lines: false, waiting: None, full: false, short: false };
        let shared = SharedReader { stream, back: Mutex::new(back), room: Notify::new(), high };
        ReadAhead { shared: Arc::new(shared), front: received, task: None }
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

    /// See [`Received::begin`].
    pub fn begin(&mut self) {
        self.front.begin();
    }

    /// Passes the item to `keep`, if it is here. If `keep` fails, nothing was taken. Never blocks for longer than a system
    /// call of the task.
    pub fn try_take<T, E>(
        &mut self,
        request: &ReadRequest,
        keep: impl FnOnce(ReadProgress<&[u8]>) -> Result<T, E>,
    ) -> Result<T, E> {
        while !self.front.has(request) {
            match self.swap() {
                Ok(Swapped::Bytes { short: true }) if !self.front.has(request) => {
                    return keep(ReadProgress::Failed(out_of_memory()));
                }
                Ok(Swapped::Bytes { .. } | Swapped::End) => {}
                Ok(Swapped::Nothing) => break,
                Err(error) => return keep(ReadProgress::Failed(error)),
            }
        }
        self.front.try_take(request, keep)
    }

    /// Whether the consumer has found the end of the stream; see [`Received::at_eof`].
    pub fn at_eof(&self) -> bool {
        self.front.at_eof() && self.shared.lock().received.is_empty()
    }

    /// See [`Received::discard`].
    pub fn discard(&mut self, line: TooLong) {
        self.front.discard(line);
    }

    /// Takes what the task has received, or the end of the stream.
    ///
    /// # Errors
    /// `OutOfMemory`. All bytes stay where they are.
    fn swap(&mut self) -> io::Result<Swapped> {
        let mut back = self.shared.lock();
        let short = std::mem::take(&mut back.short);
        if back.received.is_empty() {
            if short {
                return Err(out_of_memory());
            }
            self.front.end = back.received.end;
            return Ok(if self.front.end.is_some() { Swapped::End } else { Swapped::Nothing });
        }
        back.received.buffer.prepend(&mut self.front.buffer)?;
        std::mem::swap(&mut back.received.buffer, &mut self.front.buffer);
        if std::mem::take(&mut back.full) {
            drop(back);
            self.shared.room.notify_one();
        }
        Ok(Swapped::Bytes { short })
    }

    /// Call this after [`ReadProgress::Pending`]: `waker` is woken once `take` has another result. Returns false if it
    /// has one already.
    pub fn wait(&mut self, request: &ReadRequest, waker: Waker) -> bool {
        let mut back = self.shared.lock();
        if !back.received.is_empty() || back.received.end.is_some() || back.short {
            return false;
        }
        // While a consumer waits, everything is in `back`, in one piece.
        std::mem::swap(&mut back.received.buffer, &mut self.front.buffer);
        self.front.buffer.shrink(back.received.len());
        back.received.searched = self.front.searched;
        back.lines = matches!(request, ReadRequest::Line);
        // Not dropped under the lock: dropping a waker may run foreign code.
        let replaced = back.waiting.replace((request.clone(), waker));
        let resume = std::mem::take(&mut back.full);
        drop(back);
        drop(replaced);
        if resume {
            self.shared.room.notify_one();
        }
        true
    }

    /// Ends the wait. Returns the waker of the waiting task.
    pub fn give_up(&self) -> Option<Waker> {
        // Not dropped under the lock: dropping a waker may run foreign code.
        self.shared.lock().waiting.take().map(|(_, waker)| waker)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl SharedReader {
    fn lock(&self) -> MutexGuard<'_, Back> {
        unpoisoned(self.back.lock())
    }
}

impl Back {
    /// Reads once, unless the buffer already holds `high` bytes, or as many as the awaited item needs if that
    /// is more. Returns whether it has read, whether that was all there was, and the waker of a wait that is
    /// over.
    fn receive(&mut self, high: usize, source: impl io::Read) -> io::Result<(bool, bool, Option<Waker>)> {
        let awaited = self.waiting.as_ref().map_or(0, |(request, _)| self.received.total(request));
        if self.received.len() >= awaited.max(high) {
            self.full = true;
            return Ok((false, false, None));
        }
        let filled = self.received.fill(if awaited > high { awaited } else { 0 }, source);
        if filled.as_ref().is_err_and(is_out_of_memory) {
            (self.full, self.short) = (true, true);
            return Ok((false, false, self.waiting.take().map(|(_, waker)| waker)));
        }
        let (got, short) = filled?;
        note_received(got);
        if self.lines && got > 0 {
            self.received.buffer.index_lines();
        }
        Ok((true, short, self.satisfied()))
    }

    /// Returns the waker, if the wait is over.
    fn satisfied(&mut self) -> Option<Waker> {
        let (_, waker) = self.waiting.take_if(|(request, _)| self.received.has(request))?;
        Some(waker)
    }
}

/// Runs the task: reads until the stream ends.
async fn read_on(shared: Arc<SharedReader>) {
    loop {
        let read = shared.stream.receive(|source| {
            let mut back = shared.lock();
            let (read, short, waker) = back.receive(shared.high, source)?;
            drop(back);
            wakers::wake(waker);
            Ok((read, short))
        });
        match read.await {
            Ok(true) if shared.lock().received.end.is_some() => return,
            Ok(true) => {}
            Ok(false) => shared.room.notified().await,
            Err(error) => {
                let mut back = shared.lock();
                back.received.fail(&error);
                let waker = back.satisfied();
                drop(back);
                wakers::wake(waker);
                return;
            }
        }
    }
}

#[cfg(all(test, not(any(wakeloop_loom, wakeloop_shuttle))))]
mod tests {
    use std::io::Write;
    use std::net;
    use std::sync::mpsc;
    use std::task::Wake;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::runtime::Builder;

    /// Calls a function when the last waker is dropped.
    struct OnDrop(Box<dyn Fn() + Send + Sync>);

    impl Wake for OnDrop {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for OnDrop {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    #[test]
    fn a_waker_that_is_replaced_is_not_dropped_under_the_lock_that_the_task_needs() {
        let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, _) = listener.accept().unwrap();
        own.set_nonblocking(true).unwrap();
        let seen = own.try_clone().unwrap();
        let rt = Builder::new().worker_threads(1).build().unwrap();
        let stream = rt.block_on(async { TcpStream::from_std(own).unwrap() });
        let mut ahead = ReadAhead::new(Arc::new(stream), Received::new(1 << 16));
        ahead.start(&rt.handle());
        let (told, result) = mpsc::channel();
        let hook = move || {
            (&peer).write_all(b"x").unwrap();
            let end = Instant::now() + Duration::from_secs(5);
            // The task receives the byte, for which it needs the lock.
            while seen.peek(&mut [0]).is_ok() && Instant::now() < end {
                std::thread::yield_now();
            }
            told.send(seen.peek(&mut [0]).is_err()).unwrap();
        };
        let request = ReadRequest::Exact(2);
        assert!(ahead.wait(&request, Waker::from(Arc::new(OnDrop(Box::new(hook))))));
        ahead.wait(&request, Waker::noop().clone());
        assert!(result.recv().unwrap(), "the waker was dropped under the lock");
    }
}
