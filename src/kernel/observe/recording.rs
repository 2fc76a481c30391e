//! The flight recorder: starts and stops it, tells the loops, and names what they run.
//!
//! A recording that is started tells the loops that run, here, because they do not look for one while they run. Other
//! loops look when they begin to run, and loops that Python code steps look in each turn. Without a GIL only the loop of
//! this thread is told so; the others are asked, and take notice when they next wait.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;

use pyo3::exceptions::{PyMemoryError, PyRuntimeError};
use pyo3::prelude::*;

use super::super::core::Core;
use super::super::core::probe::registry::{Asked, Registered};
use super::naming;
use crate::capi::error::{exception, raise_os_error};
use crate::capi::section::{self, FREE_THREADED};
use crate::capi::{Borrowed, Fallible, Fatal, Ref};
use crate::compat::task_fields::{self, Sample};
use crate::fork::ForkMutex;
use crate::recorder::event::{Kind, duration};
use crate::recorder::recording::{self, Recording, Refused};
use crate::recorder::thread::thread_number;
use crate::recorder::trace::Process;

/// A loop that runs, and the thread in which it does.
#[derive(Clone, Copy)]
struct Running {
    core: NonNull<Core>,
    thread: u64,
    entry: &'static Registered,
}

// SAFETY: the core is used only with the GIL held; without a GIL, only by the thread that runs the loop.
unsafe impl Send for Running {}

/// The loops that run.
static RUNNING: ForkMutex<Vec<Running>> = ForkMutex::new(Vec::new());

/// The loop begins to run, in this thread. [`leave`] ends this.
pub(in crate::kernel) fn enter(core: &Core) {
    let thread = thread_number();
    let entry = core.probe.registered.entry();
    RUNNING.lock().push(Running { core: NonNull::from(core), thread, entry });
    refresh(core, thread);
}

/// The loop stops running.
pub(in crate::kernel) fn leave(core: &Core) {
    core.probe.recorder.note(Kind::Leave, 0);
    RUNNING.lock().retain(|running| running.core != NonNull::from(core));
}

/// Takes notice of a recording that was started or stopped.
pub(in crate::kernel) fn refresh(core: &Core, thread: u64) {
    core.instrumentation.set_recorded(core.probe.recorder.refresh(thread));
}

/// Tells the loops that run of a recording that was started or stopped. The thread is attached.
pub(crate) fn refresh_all() {
    let here = thread_number();
    let running = RUNNING.lock().clone();
    for Running { core, thread, entry } in running {
        if FREE_THREADED && thread != here {
            entry.ask(Asked::Recording);
            continue;
        }
        // SAFETY: a loop that runs lives, and is removed from the list before its run ends. With the GIL held, no run
        // ends meanwhile, and no borrow of the core's state lasts while another thread has the GIL. Without a GIL it is
        // the loop of this thread, in a section of the loop.
        unsafe {
            let core = core.as_ref();
            section::hold(core.object(), || refresh(core, thread));
        }
    }
}

/// The loop has waited, or is about to, and was asked to look.
#[cold]
pub(in crate::kernel) fn asked(core: &Core) {
    let registered = &core.probe.registered;
    if registered.is_asked_for(Asked::Recording) {
        // Before the look: the next recording asks again.
        registered.answered(Asked::Recording);
        refresh(core, thread_number());
    }
}

/// Called before an event that may be the first one of a turn without a poll.
fn note_turn(core: &Core) {
    if core.polls.has_skipped() {
        core.probe.recorder.note_turn(core.turn_number());
    }
}

/// Records that a timer is due, `late` seconds after its deadline.
#[inline(always)]
pub(in crate::kernel) fn timer(core: &Core, late: f64) {
    if core.probe.recorder.is_on() {
        note_turn(core);
        core.probe.recorder.note(Kind::Timer, duration((late * 1e9) as u64));
    }
}

/// Records that the event of a descriptor is about to be handled.
pub(in crate::kernel) fn ready(core: &Core, fd: RawFd) {
    note_turn(core);
    core.probe.recorder.note(Kind::Ready, fd as u64);
}

/// Records that an entry of the ready queue is about to run. `subject` is its callback, or the handle or object that
/// runs it.
#[inline(always)]
pub(in crate::kernel) fn entry(core: &Core, subject: Borrowed<'_>) {
    note_turn(core);
    core.probe.recorder.write(Kind::Callback, |recording| naming::of_subject(&recording.names, &subject));
}

/// The same, for a handle that Python code runs.
#[cold]
#[inline(never)]
pub(in crate::kernel) fn handle(core: &Core, handle: &Ref) {
    core.probe.recorder.write(Kind::Callback, |recording| naming::of_subject(&recording.names, handle));
}

/// Records that a callable is about to be called for data that was received. For callers that have checked
/// [`is_on`](super::super::core::probe::recorder::LoopRecorder::is_on).
#[cold]
pub(crate) fn call(core: &Core, callable: &Ref) {
    core.probe
        .recorder
        .write(Kind::Callback, |recording| Some(naming::of_callable(&recording.names, callable)));
}

/// Called at the end of a turn that was longer than the loop's limit, with its length in nanoseconds. Writes the trace
/// if the recorder was started with `slow_turns=True`.
#[cold]
pub(in crate::kernel) fn slow_turn(core: &Core, nanos: u64) -> Result<(), Fatal> {
    if !core.probe.recorder.is_on() {
        return Ok(());
    }
    core.probe.recorder.note(Kind::SlowTurn, duration(nanos));
    core.support("slow_turn_recorded", &[])
}

/// The native half of wakeloop.Recorder: one recording, from its start on.
#[pyclass(module = "wakeloop._core", name = "Recording", frozen)]
pub(crate) struct PyRecording {
    pub(crate) recording: Arc<Recording>,
}

#[pymethods]
impl PyRecording {
    /// Starts a recording. One that `gives_way` ends when another is started.
    #[new]
    fn new(size: usize, gives_way: bool) -> PyResult<PyRecording> {
        // With a GIL the loops of all threads write one at a time.
        let started = recording::start(size, gives_way, !FREE_THREADED);
        refresh_all();
        match started {
            Ok(recording) => Ok(PyRecording { recording }),
            Err(Refused::Active) => {
                Err(exception::<PyRuntimeError>("a recorder is running already; stop it first"))
            }
            Err(Refused::NoMemory) => Err(exception::<PyMemoryError>("no memory for the recorder's ring")),
        }
    }

    /// Stop recording. What was recorded stays.
    fn stop(&self) {
        self.recording.stop();
        refresh_all();
    }

    /// Whether events are recorded: it was not stopped, and no other recording has taken its place.
    #[getter]
    fn active(&self) -> bool {
        self.recording.is_active()
    }

    /// How many events were recorded, and how many of these were overwritten.
    fn counts(&self) -> (Fallible<u64>, Fallible<u64>) {
        let (written, dropped) = self.recording.counts();
        (Fallible(written), Fallible(dropped))
    }

    /// Write the trace as JSON to a descriptor. `threads` has the names of threads by their system's numbers.
    fn write(
        &self,
        py: Python<'_>,
        fd: RawFd,
        number: u64,
        name: String,
        threads: HashMap<u64, String>,
        details: Vec<(String, String)>,
    ) -> PyResult<()> {
        let process = Process { number, name, threads, details };
        // Without the GIL, so that no loop waits for it.
        let written = py.detach(|| {
            // SAFETY: the caller keeps the descriptor open. If it does not, writing fails.
            let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
            self.recording.snapshot().write_json(&process, &mut Patient(&file))
        });
        written.map_err(|error| raise_os_error(&error).into())
    }
}

/// Writes to a file. If that is a pipe which is full, it waits for the reader, but not forever.
struct Patient<'a>(&'a File);

/// For so many milliseconds at most.
const PATIENCE: libc::c_int = 5_000;

impl Write for Patient<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Patient<'_> {
    fn wait(&self) -> io::Result<()> {
        let mut polled = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one valid structure, as the count says.
        match unsafe { libc::poll(&mut polled, 1, PATIENCE) } {
            0 => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            -1 => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                error => Err(error),
            },
            _ => Ok(()),
        }
    }
}

/// In a forked child: it begins without a recording.
pub(crate) fn forked() {
    recording::forked();
    if FREE_THREADED {
        // What another thread was doing with the list is unknown. A loop that ran in the parent runs no more here.
        // SAFETY: the child has one thread, and that is not in a function of this file, because it forks.
        unsafe { RUNNING.renew(Vec::new()) };
    }
    refresh_all();
}

/// Finds out where `_asyncio` keeps the names of tasks, in samples of its objects.
#[pyfunction]
pub(crate) fn learn_task_fields(
    step: Bound<'_, PyAny>,
    task: Bound<'_, PyAny>,
    name: Bound<'_, PyAny>,
    coroutine: Bound<'_, PyAny>,
    qualname: Bound<'_, PyAny>,
    partial: Bound<'_, PyAny>,
    function: Bound<'_, PyAny>,
) -> bool {
    task_fields::init(Sample {
        step: step.into(),
        task: task.into(),
        name: name.into(),
        coroutine: coroutine.into(),
        qualname: qualname.into(),
        partial: partial.into(),
        function: function.into(),
    })
}
