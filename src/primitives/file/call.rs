//! One awaitable operation on a file.
//!
//! It waits for its turn, then tries to do the operation at once, and else has a thread of the blocking pool do it. It
//! keeps the turn until the awaiting task has the result, so a read that is given up moves nothing. What is done by the
//! pool alone (writing, closing and the like) is finished there once it has its turn, even if the task is cancelled.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use pyo3::exceptions::PyStopAsyncIteration;
use pyo3::prelude::*;

use super::buffered::{Direct, How, MOST_NOW, Want};
use super::cancel::{self, Canceller};
use super::class::{File, unsupported};
use super::job::{Begun, Failure, Job, LONG, Reply};
use super::shared::SharedFile;
use super::turn::Mode;
use super::turn_guard::{TurnGuard, TurnOfCall};
use crate::bridge::budget;
use crate::bridge::drop_on_loop::{DropOnLoop, drop_attached};
use crate::bridge::io_error::raise_io;
use crate::bridge::loop_handle::{LoopHandle, running_loop};
use crate::bridge::panic::RuntimePanic;
use crate::bridge::runtime;
use crate::bridge::waiter::{Waiter, WakeOnce, when_closed};
use crate::capi::buffer::{Buffer, RawBytes, bytes_from};
use crate::capi::call::panic_text;
use crate::capi::coroutine::{self, Step, already_awaited};
use crate::capi::error::{exception, raise, raise_errno};
use crate::capi::fallible::{reserve_operation, try_list};
use crate::capi::imports::imports;
use crate::capi::inspect::integer;
use crate::capi::native::native_class;
use crate::capi::pending::{AsyncCall, Pending, Stage};
use crate::capi::{Exception, Raised, Ref, This};
use crate::fork::Owned;
use crate::primitives::data::Data;
use crate::primitives::simulated::runs_inline;
use crate::runtime::sync::oneshot::{self, Receiver};
use crate::runtime::{AbortHandle, NoThread};
use crate::transport::streams::errors;
use crate::wait_queue::Place;

/// The name of a seek.
pub(super) const SEEK: &str = "File.seek";
/// A read of at least this many bytes goes around the buffer.
const DIRECT: usize = 16 * 1024;

/// What a read gives.
#[derive(Debug)]
pub(super) enum Give {
    Bytes,
    /// The bytes stay in the buffer.
    Peek,
    /// Fewer bytes are an IncompleteReadError.
    Exactly(usize),
    /// Empty bytes are the end of the iteration.
    Next,
    /// A list of lines.
    Lines,
    /// The bytes go into the call's object, and the result is their number.
    Into,
}

/// What is to be done.
#[derive(Debug)]
pub(super) enum Action {
    Read(Want, Give),
    ReadAt(usize, i64),
    Write(Data),
    /// As `Write`, and gives `None`, or raises the call's object.
    WriteLines(Data),
    WriteAt(Data, i64),
    Seek(i64, i32),
    /// The end of the file, where a seek would move.
    End,
    Tell,
    Truncate(Option<i64>),
    Flush,
    Sync,
    Close,
    /// `__aenter__`: gives the file.
    Enter,
    /// Leaves the turn with the file until `File::end_turn`.
    Turn,
    /// As `Turn`, and flushes first.
    Hold,
}

impl Action {
    fn mode(&self) -> Mode {
        if matches!(self, Action::ReadAt(..)) { Mode::Together } else { Mode::Alone }
    }

    /// May it yield to the loop before it begins? It is then cancelled without an effect.
    fn yields_first(&self) -> bool {
        matches!(self, Action::Read(..) | Action::ReadAt(..) | Action::Tell | Action::Turn)
    }
}

/// The result of the steps so far.
enum Got {
    Nothing,
    /// In a forked child no task of the parent passes the turn on.
    Queued(Owned<Place>),
    Granted(TurnOfCall),
    /// In a forked child no thread completes the jobs of the parent.
    Running(Owned<FileJob>),
    /// It is done, and the task gets the result in the next turn of the loop.
    Done(Ref),
}

/// What a job has done, with the turn and with the owner of the descriptor.
struct Finished {
    reply: Result<Result<Reply, Failure>, Box<dyn Any + Send>>,
    refs: JobRefs,
}

/// What a job holds of its file. The fields are dropped in this order: the file may be gone, and then the last reference
/// to `shared`, which the turn has too, writes what was kept, into a descriptor that `raw` closes.
struct JobRefs {
    turn: TurnOfCall,
    shared: Arc<SharedFile>,
    raw: DropOnLoop<Py<PyAny>>,
}

impl JobRefs {
    fn run(self, job: Job) -> Finished {
        let reply = catch_unwind(AssertUnwindSafe(|| job.run(&self.shared, &self.raw)));
        Finished { reply, refs: self }
    }
}

struct FileJob {
    finished: Receiver<Finished>,
    waker: Arc<WakeOnce>,
    task: AbortHandle,
    /// A read, which need not be done if nobody waits for it.
    abortable: bool,
    /// Dropping it ends the wait of a read for data.
    cancel: Option<Canceller>,
}

/// A call of a file, which is the target. The object is what a read fills, or the error that a `writelines` raises in
/// the end.
pub(super) type FileCall = Pending<FileState>;

pub(super) struct FileState {
    mode: Mode,
    yields_first: bool,
    got: Cell<Got>,
    action: Cell<Option<Action>>,
}

// `make_type` builds the class, of which `create` makes every instance.
native_class!(unsafe FileCall, freelist 64);

impl FileCall {
    pub(super) fn create(file: This<'_, File>, name: &'static str, action: Action) -> Result<Ref, Raised> {
        FileCall::create_with(file, name, action, None)
    }

    /// As [`FileCall::create`], for an action that uses an object.
    pub(super) fn create_with(
        file: This<'_, File>,
        name: &'static str,
        action: Action,
        object: Option<Ref>,
    ) -> Result<Ref, Raised> {
        let (mode, yields_first) = (action.mode(), action.yields_first());
        let state =
            FileState { mode, yields_first, got: Cell::new(Got::Nothing), action: Cell::new(Some(action)) };
        FileCall::make(name, Some(file.object().to_owned()), object, state)
    }

    /// Takes the turn, or waits for it.
    fn begin(this: This<'_, Self>, file: This<'_, File>) -> Result<Step, Raised> {
        file.check_process()?;
        let mode = this.state.mode;
        let taken = if file.inside { Some(file.turn_again()?) } else { TurnGuard::take(&file.shared, mode) };
        let guard = match taken {
            Some(guard) => guard,
            None => {
                let (waiter, future) = Waiter::new(this.py())?;
                match TurnGuard::queue(&file.shared, mode, WakeOnce::new(waiter)) {
                    Ok(guard) => guard,
                    Err(place) => {
                        return Ok(FileCall::wait_for(this, Got::Queued(Owned::new(place)), future));
                    }
                }
            }
        };
        if this.state.yields_first && budget::is_spent() {
            let turn = TurnOfCall::new(guard);
            let unheard = turn.clone();
            when_closed(&running_loop()?, move || drop(unheard.take()))?;
            this.state.got.set(Got::Granted(turn));
            return Ok(Step::Yield);
        }
        FileCall::perform(this, file, guard)
    }

    fn wait_for(this: This<'_, Self>, got: Got, future: Ref) -> Step {
        this.state.got.set(got);
        budget::refill();
        FileCall::wait(this, future)
    }

    /// Does the operation at once, or else passes it to the pool.
    fn perform(this: This<'_, Self>, file: This<'_, File>, guard: TurnGuard) -> Result<Step, Raised> {
        let Some(action) = this.state.action.take() else { return Err(already_awaited()) };
        match action {
            // A file that is closed may be closed again, and what is done in a turn looks itself.
            Action::Close | Action::Turn => {}
            // io does not look at the file.
            Action::Read(Want::Line(0), _) if !file.is_buffered_reader() => {
                return bytes_from(b"").map(Step::Done);
            }
            _ => file.check_open(this.name)?,
        }
        let job = match action {
            Action::Read(want, give) => {
                let (job, cancel) = match try_read(this, file, want, &give)? {
                    Tried::Done(result) => return Ok(Step::Done(result)),
                    Tried::Begun(begun) => (Job::Fill(begun), None),
                    Tried::Waits => waiting_read(file, want, &give),
                };
                this.state.action.set(Some(Action::Read(want, give)));
                return FileCall::submit(this, file, guard, job, cancel);
            }
            Action::ReadAt(_, ..0) | Action::WriteAt(_, ..0) => return Err(raise_errno(libc::EINVAL)),
            Action::ReadAt(count, offset) => {
                if let Some(bytes) = try_read_at(file, count, offset)? {
                    return Ok(Step::Done(bytes));
                }
                Job::ReadAt(count, offset)
            }
            Action::WriteLines(data) => {
                if file.shared.lock().keep(data.rest()).map_err(|error| raise_io(&error))? {
                    budget::spend_item(data.rest().len());
                    return FileCall::lines_written(this).map(|result| FileCall::done(this, result));
                }
                Job::WriteAll(sendable(this.py(), &data)?)
            }
            Action::Write(data) => {
                let length = data.rest().len();
                if file.shared.lock().keep(data.rest()).map_err(|error| raise_io(&error))? {
                    budget::spend_item(length);
                    return Ok(FileCall::done(this, integer(length as i64)?));
                }
                Job::Write(sendable(this.py(), &data)?)
            }
            Action::WriteAt(data, offset) => Job::WriteAt(sendable(this.py(), &data)?, offset),
            Action::Seek(offset, whence) => {
                // It does not yield when it is done: a seek of a text file is this and a part of its own, and is not
                // cancelled between them.
                if matches!(whence, libc::SEEK_SET | libc::SEEK_CUR) && !file.shared.lock().is_dirty() {
                    let moved = file.shared.lock().seek(offset, whence);
                    return FileCall::number(moved.map_err(|error| seek_failed(file, &error)));
                }
                Job::Seek(offset, whence)
            }
            Action::End => Job::End,
            Action::Tell => {
                let here = file.shared.lock().tell();
                return FileCall::number(here.map_err(|error| raise_io(&error)));
            }
            Action::Truncate(size) => Job::Truncate(size),
            Action::Flush => {
                if !file.shared.lock().is_dirty() {
                    return Ok(Step::Done(Ref::none()));
                }
                Job::Flush
            }
            Action::Sync => Job::Sync,
            Action::Enter => return Ok(Step::Done(file.object().to_owned())),
            Action::Turn => {
                budget::spend_item(0);
                drop(file.hold(Some(guard)));
                return Ok(Step::Done(Ref::none()));
            }
            Action::Hold => {
                this.state.action.set(Some(Action::Hold));
                Job::Settle
            }
            Action::Close => {
                if file.shared.closed.swap(true, Ordering::Relaxed) {
                    return Ok(Step::Done(Ref::none()));
                }
                this.state.action.set(Some(Action::Close));
                return FileCall::submit(this, file, guard, Job::Close, None).inspect_err(|Raised| {
                    // Without a thread the descriptor is still open. `conclude`, where the job has ended, takes the action.
                    if this.state.action.take().is_some() {
                        file.shared.closed.store(false, Ordering::Relaxed);
                    }
                });
            }
        };
        FileCall::submit(this, file, guard, job, None)
    }

    /// Ends an operation that was done at once.
    fn done(this: This<'_, Self>, result: Ref) -> Step {
        if budget::is_spent() {
            this.state.got.set(Got::Done(result));
            return Step::Yield;
        }
        Step::Done(result)
    }

    /// Ends a `writelines`, of which a line may have been refused.
    fn lines_written(this: This<'_, Self>) -> Result<Ref, Raised> {
        this.object.take().map_or_else(|| Ok(Ref::none()), |error| Err(raise(error)))
    }

    fn number(number: Result<i64, Raised>) -> Result<Step, Raised> {
        budget::spend_operation();
        integer(number?).map(Step::Done)
    }

    /// Sends the job to the pool. The pool's thread notifies the loop itself. Dropping `cancel` ends a read's wait.
    fn submit(
        this: This<'_, Self>,
        file: This<'_, File>,
        turn: TurnGuard,
        job: Job,
        cancel: Option<Canceller>,
    ) -> Result<Step, Raised> {
        let py = this.py();
        // A read that may wait for another process cannot run on the loop's thread.
        if cancel.is_none() && runs_inline(py)? {
            return FileCall::run_inline(this, file, turn, job);
        }
        reserve_operation()?;
        let runtime = runtime::handle().map_err(|error| raise_io(&error))?;
        let home = LoopHandle::running(py)?;
        let (waiter, future) = Waiter::new(py)?;
        let raw = file.raw.get().ok_or(Raised)?;
        let raw = DropOnLoop::new(raw.bind(py).unbind(), &home);
        let abortable = job.is_read();
        let attaches = job.attaches().then(|| home.await_job());
        let (sender, mut finished) = oneshot::channel();
        let refs = JobRefs { turn: TurnOfCall::new(turn), shared: file.shared.clone(), raw };
        let unheard = refs.turn.clone();
        let task = runtime.spawn_blocking_and_notify(
            move || {
                let _attaches = attaches;
                refs.run(job)
            },
            move |finished| drop(sender.send(finished)),
        );
        // What was read stays in the file for the next one.
        let waker = WakeOnce::new(waiter.or_else(move || drop(unheard.take())));
        let registered = Waker::from(waker.clone());
        if let Poll::Ready(finished) = Pin::new(&mut finished).poll(&mut Context::from_waker(&registered)) {
            drop_attached(waker.take());
            return FileCall::conclude(this, file, finished.ok());
        }
        let running = FileJob { finished, waker, task: task.abort_handle(), abortable, cancel };
        Ok(FileCall::wait_for(this, Got::Running(Owned::new(running)), future))
    }

    /// Runs the job on the loop's thread, for a testing loop. The task gets the result in the next turn.
    #[cold]
    fn run_inline(
        this: This<'_, Self>,
        file: This<'_, File>,
        turn: TurnGuard,
        job: Job,
    ) -> Result<Step, Raised> {
        let py = this.py();
        let raw = file.raw.get().ok_or(Raised)?;
        let raw = DropOnLoop::new(raw.bind(py).unbind(), &LoopHandle::running(py)?);
        let refs = JobRefs { turn: TurnOfCall::new(turn), shared: file.shared.clone(), raw };
        let finished = py.detach(move || refs.run(job));
        match FileCall::conclude(this, file, Some(finished))? {
            Step::Done(result) => {
                this.state.got.set(Got::Done(result));
                Ok(Step::Yield)
            }
            step => Ok(step),
        }
    }

    fn conclude(
        this: This<'_, Self>,
        file: This<'_, File>,
        finished: Option<Finished>,
    ) -> Result<Step, Raised> {
        let action = this.state.action.take();
        let Some(Finished { reply, refs: JobRefs { turn, raw, .. } }) = finished else {
            if matches!(action, Some(Action::Close)) {
                file.shared.closed.store(false, Ordering::Relaxed);
            }
            return Err(raise_io(&NoThread.into()));
        };
        drop_attached(raw.into_inner());
        // If it was passed on, what was read may be another's.
        let turn = turn.take().ok_or_else(loop_closed)?;
        let reply = match reply {
            Ok(reply) => reply,
            Err(payload) => return Err(exception::<RuntimePanic>(panic_text(payload.as_ref())).into()),
        };
        let reply = match reply {
            Ok(reply) => reply,
            Err(Failure::System(error)) if this.name == SEEK => return Err(seek_failed(file, &error)),
            Err(Failure::System(error)) => return Err(raise_io(&error)),
            Err(Failure::Python(error)) => {
                return Err(error.into_inner().map_or(Raised, Raised::from));
            }
        };
        let result = match (reply, action) {
            (Reply::Item(length, bytes), Some(Action::Read(_, give))) => {
                let bytes = bytes.map(|bytes| object(this.py(), bytes)).transpose()?;
                take_item(this, file, length, bytes, &give)
            }
            (Reply::Long(bytes, length), Some(Action::Read(_, give))) => {
                let given = give_bytes(object(this.py(), bytes)?, &give);
                if moves(&given, &give) {
                    file.shared.lock().skip(length).map_err(|error| raise_io(&error))?;
                }
                budget::spend_item(length);
                given
            }
            (Reply::Filled(begun), Some(Action::Read(_, give))) => {
                file.shared.lock().skip(begun.filled()).map_err(|error| raise_io(&error))?;
                budget::spend_item(begun.filled());
                give_bytes(begun.finish(this.py())?, &give)
            }
            (Reply::Lines, _) => FileCall::lines_written(this),
            (Reply::Unclosed(flushed), _) => {
                let raw = file.raw.get().ok_or(Raised)?;
                let closed = raw.call_method(&imports().close, &[]);
                flushed.map_err(|error| raise_io(&error)).and(closed).map(|_| Ref::none())
            }
            (Reply::Object(bytes), _) => object(this.py(), bytes),
            (Reply::Nothing, Some(Action::Hold)) => {
                drop(file.hold(Some(turn)));
                return Ok(Step::Done(Ref::none()));
            }
            (Reply::Number(number), _) => integer(number),
            (Reply::Bytes(bytes), _) => bytes_from(&bytes),
            (Reply::Nothing | Reply::Item(..) | Reply::Long(..) | Reply::Filled(_), _) => Ok(Ref::none()),
        };
        drop(turn);
        result.map(Step::Done)
    }
}

#[cold]
fn loop_closed() -> Raised {
    Exception::RuntimeError.raise("Event loop is closed")
}

fn object(py: Python<'_>, made: DropOnLoop<Py<PyAny>>) -> Result<Ref, Raised> {
    made.into_inner().map(|object| Ref::from(object.into_bound(py))).ok_or(Raised)
}

/// A buffered file of io refuses to seek in a pipe itself.
fn seek_failed(file: This<'_, File>, error: &io::Error) -> Raised {
    if error.raw_os_error() == Some(libc::ESPIPE) && file.capacity > 0 {
        return unsupported("File or stream is not seekable.");
    }
    raise_io(error)
}

fn sendable(py: Python<'_>, data: &Data) -> Result<DropOnLoop<crate::primitives::data::Sendable>, Raised> {
    Ok(DropOnLoop::new(data.to_sendable(py), &LoopHandle::running(py)?))
}

/// What has become of a read that must not wait.
enum Tried {
    Done(Ref),
    /// A part of the result.
    Begun(Begun),
    Waits,
}

/// The job of a read that has to wait, and what ends its wait for data.
fn waiting_read(file: This<'_, File>, want: Want, give: &Give) -> (Job, Option<Canceller>) {
    if !file.shared.regular {
        let (cancelled, canceller) = cancel::pair();
        return (Job::Read(want, Some(cancelled)), Some(canceller));
    }
    let job = match want {
        Want::All if !matches!(give, Give::Into) => Job::ReadLong(None),
        Want::Bytes(count) | Want::Exactly(count) if count >= LONG && !matches!(give, Give::Into) => {
            Job::ReadLong(Some(count))
        }
        _ => Job::Read(want, None),
    };
    (job, None)
}

/// Reads without waiting.
fn try_read(
    this: This<'_, FileCall>,
    file: This<'_, File>,
    want: Want,
    give: &Give,
) -> Result<Tried, Raised> {
    if let (Want::Bytes(count) | Want::Exactly(count), Give::Bytes | Give::Exactly(_)) = (want, give)
        && (DIRECT..=MOST_NOW).contains(&count)
        && file.shared.regular
    {
        let mut bytes = RawBytes::with_capacity(count)?;
        // SAFETY: the object has so many bytes, and nothing else refers to it.
        let place = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) };
        let read = file.shared.lock().read_direct(place).map_err(|error| raise_io(&error))?;
        let read = match read {
            Some(Direct::Whole(read)) => read,
            Some(Direct::Part(filled)) => {
                let home = LoopHandle::running(this.py())?;
                return Ok(Tried::Begun(Begun::new(this.py(), bytes, count, filled, &home)));
            }
            None => return Ok(Tried::Waits),
        };
        budget::spend_item(read);
        // SAFETY: so many bytes were written.
        let bytes = unsafe { if read == count { bytes.whole() } else { bytes.finish(read)? } };
        return give_bytes(bytes, give).map(Tried::Done);
    }
    let ready = file.shared.lock().ready(want, How::Now).map_err(|error| raise_io(&error))?;
    match ready {
        Some(length) => take_item(this, file, length, None, give).map(Tried::Done),
        None => Ok(Tried::Waits),
    }
}

fn try_read_at(file: This<'_, File>, count: usize, offset: i64) -> Result<Option<Ref>, Raised> {
    if count > MOST_NOW {
        return Ok(None);
    }
    let mut bytes = RawBytes::with_capacity(count)?;
    // SAFETY: the object has so many bytes, and nothing else refers to it. An empty one is shared, and not written.
    let place = unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) };
    // A thread of the pool may be writing what has to be written first.
    let Some(mut state) = file.shared.try_lock() else { return Ok(None) };
    let read = state.read_now_at(place, offset);
    drop(state);
    let Some(read) = read.map_err(|error| raise_io(&error))? else { return Ok(None) };
    budget::spend_item(read);
    // SAFETY: so many bytes were written.
    unsafe { if read == count { Ok(Some(bytes.whole())) } else { bytes.finish(read).map(Some) } }
}

/// Reads in a turn that is held, if that needs no wait: fewer bytes only at the end of the file, or `None`.
pub(super) fn read_now(file: This<'_, File>, count: usize) -> Result<Ref, Raised> {
    let mut state = file.shared.lock();
    let Some(length) = state.ready(Want::Bytes(count), How::Now).map_err(|error| raise_io(&error))? else {
        return Ok(Ref::none());
    };
    let bytes = bytes_from(&state.ahead()[..length])?;
    state.consume(length);
    budget::spend_item(length);
    Ok(bytes)
}

/// Takes what is in the buffer. `bytes` is the same content as an object, if it was made already.
fn take_item(
    this: This<'_, FileCall>,
    file: This<'_, File>,
    length: usize,
    bytes: Option<Ref>,
    give: &Give,
) -> Result<Ref, Raised> {
    budget::spend_item(length);
    if matches!(give, Give::Into) {
        // Making the view may run Python code.
        let view = Buffer::writable(&this.object.get().ok_or(Raised)?, "readinto() argument")?;
        let mut state = file.shared.lock();
        let count = length.min(view.len()).min(state.ahead().len());
        // SAFETY: the view has at least so many bytes, and the source is another buffer.
        unsafe { std::ptr::copy_nonoverlapping(state.ahead().as_ptr(), view.as_ptr(), count) };
        state.consume(count);
        drop(state);
        return integer(count as i64);
    }
    let bytes = match bytes {
        Some(bytes) => bytes,
        None => bytes_from(&file.shared.lock().ahead()[..length])?,
    };
    let given = give_bytes(bytes, give);
    if moves(&given, give) {
        file.shared.lock().consume(length);
    }
    given
}

/// Does a read with this result move the position? If there was no memory for the list of the lines, they are still to
/// be read.
fn moves(given: &Result<Ref, Raised>, give: &Give) -> bool {
    match give {
        Give::Peek => false,
        Give::Lines => given.is_ok(),
        _ => true,
    }
}

fn give_bytes(bytes: Ref, give: &Give) -> Result<Ref, Raised> {
    let length = bytes.exact_bytes().map_or(0, <[u8]>::len);
    match give {
        Give::Next if length == 0 => Err(PyStopAsyncIteration::new_err(()).into()),
        Give::Exactly(count) if length < *count => Err(errors::incomplete(&bytes, &integer(*count as i64)?)),
        Give::Lines => {
            let data = bytes.exact_bytes().unwrap_or_default();
            let py = bytes.py();
            let lines = data.split_inclusive(|byte| *byte == b'\n');
            let list = try_list(py, lines.map(|line| Ok(bytes_from(line)?.bind(py))))?;
            budget::spend_item(length);
            Ok(Ref::from(list.into_any()))
        }
        _ => Ok(bytes),
    }
}

impl AsyncCall for FileState {
    #[inline(always)]
    fn step(this: This<'_, FileCall>, stage: Stage) -> Result<Option<Step>, Raised> {
        let Some(object) = this.target.get() else { return Err(already_awaited()) };
        let Some(file) = object.downcast_sync::<File>() else { return Err(Raised) };
        if stage == Stage::New {
            running_loop()?;
            return FileCall::begin(this, file).map(Some);
        }
        let waits = match this.state.got.replace(Got::Nothing) {
            Got::Nothing => return Err(already_awaited()),
            Got::Granted(turn) => {
                let guard = turn.take().ok_or_else(loop_closed)?;
                return FileCall::perform(this, file, guard).map(Some);
            }
            Got::Queued(place) => {
                if let Some(guard) = place.get().and_then(|place| TurnGuard::redeem(&file.shared, *place)) {
                    this.future.clear();
                    return FileCall::perform(this, file, guard).map(Some);
                }
                Got::Queued(place)
            }
            Got::Running(mut running) => {
                match running.get_mut().map_or(Ok(None), |running| running.finished.try_recv()) {
                    Ok(None) => Got::Running(running),
                    received => {
                        this.future.clear();
                        return FileCall::conclude(this, file, received.ok().flatten()).map(Some);
                    }
                }
            }
            Got::Done(result) => return Ok(Some(Step::Done(result))),
        };
        this.state.got.set(waits);
        Ok(None)
    }

    #[inline(always)]
    fn finish(call: &FileCall, file: Option<&Ref>) {
        match call.state.got.replace(Got::Nothing) {
            Got::Queued(place) => {
                if let Some(place) = place.into_inner()
                    && let Some(file) = file.and_then(|file| file.downcast_sync::<File>())
                {
                    file.shared.turn.give_up(place);
                }
            }
            Got::Running(running) => {
                if let Some(FileJob { mut finished, waker, task, abortable, cancel }) = running.into_inner() {
                    let received = finished.try_recv().ok().flatten();
                    // A wake-up that is under way has the turn too.
                    drop(received.as_ref().and_then(|received| received.refs.turn.take()));
                    drop_attached((waker.take(), received, finished, cancel));
                    if abortable {
                        task.abort();
                    }
                }
            }
            Got::Granted(turn) => drop(turn.take()),
            Got::Done(result) => drop(result),
            Got::Nothing => {}
        }
        drop(call.state.action.take());
        call.object.clear();
    }

    fn wait_kind(_: &FileCall) -> &'static str {
        "file"
    }
}

/// Makes the class. Called once, by the module's initialisation.
pub(crate) fn make_type(py: Python<'_>) -> PyResult<()> {
    coroutine::class::<FileCall>(c"wakeloop._core.FileCall").build(py).map(drop)
}
