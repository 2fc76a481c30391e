//! `wakeloop._core.EventLoop`, the first base class of `wakeloop.EventLoop`.
//!
//! This file has the methods that are called rarely. Those that run per callback are in `calls.rs` and
//! `sock/methods.rs`, and are added to the same class. The class must not define `__init__`, `close`, `_stop_serving`
//! or `_process_self_data`: these are cooperative methods of asyncio's own classes, and a native one in front of them
//! would break the chain of `super()` calls.

use std::os::fd::RawFd;
use std::rc::Rc;

use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::sock::call::{Action, SockCall};
use super::sock::file_transfer::FileTransfer;
use crate::capi::call::guard;
use crate::capi::error::{exception, raise_os_error};
use crate::capi::fallible::{list, py_tuple, try_list};
use crate::capi::imports::imports;
use crate::capi::inspect::boolean;
use crate::capi::recycle::context::context_for;
use crate::capi::section;
use crate::capi::{Arguments, Fallible, Fatal, Raised, Ref, This};
use crate::clock::monotonic_nanos;
use crate::compat::version::WARNS_OF_BOOL_AS_DESCRIPTOR;
use crate::kernel::core::Core;
use crate::kernel::core::probe::registry::SlowCallback;
use crate::kernel::core::watched_fd::Direction;
use crate::kernel::entries::{from_handle, into_handle};
use crate::kernel::handle::layout::{Handle, Parts};
use crate::kernel::observe::{figures, gauges, probe};
use crate::kernel::support::call_support;
use crate::kernel::{stepping, turn, watch};

/// The native half of wakeloop.EventLoop.
#[pyclass(module = "wakeloop._core", name = "EventLoop", subclass, frozen)]
#[derive(Debug)]
pub(crate) struct EventLoop {
    core: Core,
}

// SAFETY: used by attached threads only, each in a section of the loop; see `capi::section`. The blocking poll detaches,
// which suspends the section; meanwhile `Wakeup::polling` keeps other threads from using the poller.
unsafe impl Send for EventLoop {}
// SAFETY: as for `Send`.
unsafe impl Sync for EventLoop {}

impl EventLoop {
    /// The core, in a section of the loop. Debug builds check that.
    #[track_caller]
    pub(crate) fn core(&self) -> &Core {
        debug_assert!(section::is_held(self.core.object()), "a loop is used outside of its critical section");
        &self.core
    }

    /// The core, for a caller that begins a section, or that uses only what any thread may use, such as the inbox.
    pub(crate) fn outside(&self) -> &Core {
        &self.core
    }

    /// Creates an instance, without looking for patches of asyncio.
    pub(crate) fn bare(_attached: Python<'_>) -> PyResult<EventLoop> {
        Ok(EventLoop { core: Core::new().map_err(|error| raise_os_error(&error))? })
    }
}

/// Raises if another thread waits in the poller. A thread that steps the loop from Python may do that, although the
/// loop does not count as running.
fn check_not_polling(core: &Core) -> PyResult<()> {
    if core.is_polling() {
        return Err(exception::<PyRuntimeError>("another thread is waiting in this event loop"));
    }
    Ok(())
}

/// The descriptor of an argument of `add_reader` and the like: a number, or an object with `fileno()`. The errors are
/// those of the selectors module.
fn descriptor(file: &Bound<'_, PyAny>) -> PyResult<RawFd> {
    let number = Ref::from(file.clone());
    match number.exact_int().map(RawFd::try_from) {
        Some(Ok(fd)) if fd >= 0 => Ok(fd),
        _ => imports()
            .fileobj_to_fd
            .call(&[number.borrow()])?
            .bind(file.py())
            .extract()
            .map_err(|_| exception::<PyOverflowError>("Python int too large to convert to C int")),
    }
}

/// The descriptor of an argument of `remove_reader` or `remove_writer`. A number that is too large is no error, because
/// no callback can have it. A file that was closed while it was watched is still found.
fn possible_descriptor(core: &Core, file: &Bound<'_, PyAny>) -> PyResult<Option<RawFd>> {
    if core.is_closed() {
        return Ok(None);
    }
    match descriptor(file) {
        Ok(fd) => Ok(Some(fd)),
        Err(error) if error.is_instance_of::<PyValueError>(file.py()) => {
            core.fds.watched_as(file.as_ptr()).map(Some).ok_or(error)
        }
        Err(error) if error.is_instance_of::<PyOverflowError>(file.py()) => Ok(None),
        Err(error) => Err(error),
    }
}

#[pymethods]
impl EventLoop {
    /// Ignores its arguments: they are for the `__init__` of a subclass.
    #[new]
    #[pyo3(signature = (*args, **_kwargs))]
    fn new(args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<EventLoop> {
        let event_loop = EventLoop::bare(args.py())?;
        event_loop.core.instrumentation.set_between_runs(true);
        event_loop.core.instrumentation.look_for_patches();
        Ok(event_loop)
    }

    /// Look for a replaced clock and for patches again. True if some methods of the loop's class are now others.
    fn _look_for_patches(&self) -> bool {
        let _held = self.core.enter();
        self.core.look_for_patches().is_some()
    }

    /// The native run_forever. Returns after stop() or `_leave_native_run()`, and raises a fatal error. The caller has
    /// made asyncio's preparations.
    fn _run(slf: &Bound<'_, Self>) -> PyResult<()> {
        let _held = slf.get().core.enter();
        let core = &slf.get().core;
        core.check_usable()?;
        core.check_process_to_run()?;
        if core.is_running() {
            return Err(exception::<PyRuntimeError>("This event loop is already running"));
        }
        check_not_polling(core)?;
        guard(|| turn::run_forever(core)).map_err(|Fatal| Raised.into())
    }

    /// End the native run after the current turn, because a tool has replaced what an iteration calls.
    fn _leave_native_run(&self) {
        let _held = self.core.enter();
        self.core.state.replaced.set(true);
    }

    /// Poll once, and queue all callbacks that are due. Returns the number of events. For a `_run_once` written in
    /// Python.
    fn _select(&self, timeout: Option<f64>) -> PyResult<usize> {
        let _held = self.core.enter();
        self.core.check_usable()?;
        self.core.check_process_to_step()?;
        check_not_polling(&self.core)?;
        stepping::select(&self.core, timeout).map_err(|Fatal| Raised.into())
    }

    /// Poll once, and leave events and timers for `_dispatch` and `_wake_timers`. Returns the number of events. For a
    /// `_run_once` written in Python.
    fn _poll(&self, timeout: Option<f64>) -> PyResult<usize> {
        let _held = self.core.enter();
        self.core.check_usable()?;
        self.core.check_process_to_step()?;
        check_not_polling(&self.core)?;
        stepping::poll_only(&self.core, timeout).map_err(|Fatal| Raised.into())
    }

    /// Handle the events that `_poll` has found.
    fn _dispatch(&self) -> PyResult<()> {
        let _held = self.core.enter();
        stepping::dispatch(&self.core).map_err(|Fatal| Raised.into())
    }

    /// How many seconds a `_run_once` written in Python may sleep; None for no limit. Sends buffered writes first.
    fn _wait(&self) -> PyResult<Option<f64>> {
        let _held = self.core.enter();
        self.core.check_usable()?;
        self.core.custom_clock();
        stepping::seconds_to_sleep(&self.core).map_err(|Fatal| Raised.into())
    }

    /// Move the timers that are due to the ready queue.
    fn _wake_timers(&self) -> PyResult<()> {
        let _held = self.core.enter();
        turn::make_due_timers_ready(&self.core, monotonic_nanos()).map_err(|Fatal| Raised.into())
    }

    /// The loop is about to sleep in a selector of the program. From now on the poller's descriptor becomes readable
    /// when another thread schedules a callback. Returns False if there is a message; then the loop must not sleep.
    fn _park(&self) -> bool {
        let _held = self.core.enter();
        let parked = self.core.inbox.park();
        self.core.wakeup.polling.set(parked);
        if parked {
            probe::is_idle(&self.core);
        }
        parked
    }

    /// The loop no longer sleeps.
    fn _unpark(&self) -> PyResult<()> {
        let _held = self.core.enter();
        probe::is_busy(&self.core);
        self.core.awake();
        watch::apply_deferred(&self.core).map_err(|Fatal| Raised.into())
    }

    /// The descriptor that is readable when a poll would find something.
    fn _poller_fd(&self) -> Option<RawFd> {
        let _held = self.core.enter();
        self.core.process.set_in_use();
        self.core.io.fd()
    }

    /// The poller's descriptor, for a foreign main loop in which this loop is embedded.
    fn _watched_fd(&self) -> Option<RawFd> {
        let _held = self.core.enter();
        self.core.embed();
        self._poller_fd()
    }

    /// How many handles are in the ready queue.
    fn _ready_count(&self) -> Fallible<usize> {
        let _held = self.core.enter();
        Fallible(self.core.ready.len())
    }

    /// Remove the next handle from the ready queue, and return it.
    fn _ready_next<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let _held = slf.get().core.enter();
        let (py, core) = (slf.py(), &slf.get().core);
        let Some(entry) = core.ready.pop() else { return Ok(None) };
        Ok(Some(into_handle(core, entry)?.bind(py).clone()))
    }

    /// Drop the ready queue of a loop that is being closed.
    fn _clear_ready(&self) {
        let _held = self.core.enter();
        self.core.clear_ready();
    }

    /// The handles of the ready queue, which stay in it.
    fn _ready_handles<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyList>> {
        let _held = slf.get().core.enter();
        let (py, core) = (slf.py(), &slf.get().core);
        let mut handles = Vec::new();
        for _ in 0..core.ready.len() {
            let Some(entry) = core.ready.pop() else { break };
            let handle = into_handle(core, entry)?;
            handles.push(handle.bind(py).clone());
            core.ready.push(from_handle(handle));
        }
        list(py, handles)
    }

    /// The handles of all timers, ordered by their deadlines. A closed loop has none.
    fn _timer_handles<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let _held = self.core.enter();
        if self.core.is_closed() {
            return list(py, []);
        }
        list(py, self.core.timers.in_order().iter().map(|handle| handle.bind(py).clone()))
    }

    /// Let the Python half take over the timers that a program has put into `_scheduled`, before the next poll.
    fn _adopt_timers_soon(&self) {
        let _held = self.core.enter();
        if !self.core.is_closed() {
            self.core.flush_later(Ref::none(), |_, core| {
                let adopted = core.borrow().call_method(&imports()._adopt_timers, &[]);
                adopted.map(drop).map_err(|Raised| Fatal)
            });
        }
    }

    /// Add a handle to the ready queue, even if it is cancelled.
    fn _ready_push(&self, handle: Bound<'_, PyAny>) {
        let _held = self.core.enter();
        self.core.ready.push(from_handle(handle.into()));
        self.core.wake_if_parked();
    }

    /// Wake the loop if it sleeps.
    fn _write_to_self(&self) {
        let _held = self.core.enter();
        self.core.wake_if_parked();
    }

    /// Do nothing. asyncio's TimerHandle calls this when it is cancelled, and such handles are never in our heap.
    fn _timer_handle_cancelled(&self, _handle: Bound<'_, PyAny>) {}

    /// The loop itself watches this descriptor, for signals or for the end of a child process. So it does not make a
    /// busy loop poll in every turn.
    fn _watches_itself(&self, fd: RawFd) {
        let _held = self.core.enter();
        self.core.fds.set_internal(fd);
    }

    /// Stop watching for reading. A listener counts as a reader. True if there was one.
    fn _remove_reader(&self, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        let _held = self.core.enter();
        let Some(fd) = possible_descriptor(&self.core, fd)? else { return Ok(false) };
        Ok(self.core.remove_listener(fd) || watch::remove(&self.core, fd, Direction::Read))
    }

    /// Stop watching for writing. True if there was a writer.
    fn _remove_writer(&self, fd: &Bound<'_, PyAny>) -> PyResult<bool> {
        let _held = self.core.enter();
        let Some(fd) = possible_descriptor(&self.core, fd)? else { return Ok(false) };
        Ok(watch::remove(&self.core, fd, Direction::Write))
    }

    /// The native object (transport or listener) that has this descriptor, or None.
    fn _source_of<'py>(&self, py: Python<'py>, fd: RawFd) -> Option<Bound<'py, PyAny>> {
        let _held = self.core.enter();
        self.core.fds.source(fd).map(|object| object.bind(py).clone())
    }

    /// Send the file with this descriptor. Awaitable: returns (number of bytes sent, exception or None).
    fn _sock_send_file<'py>(
        &self,
        sock: Bound<'py, PyAny>,
        file: RawFd,
        offset: i64,
        count: Option<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _held = self.core.enter();
        let py = sock.py();
        let action = Action::SendFile(Rc::new(FileTransfer::new(file, offset, count)));
        let sock = Ref::from(sock);
        let call = SockCall::create(&self.core, "EventLoop._sock_send_file", sock.borrow(), action)?;
        Ok(call.bind(py).clone())
    }

    /// The state of a descriptor for the selector facade: (events, reader handle, writer handle).
    fn _watch_of<'py>(&self, py: Python<'py>, fd: RawFd) -> PyResult<Bound<'py, PyTuple>> {
        let _held = self.core.enter();
        let events = Fallible(watch::selector_events(&self.core, fd)).into_pyobject(py)?.into_any();
        let handle =
            |direction| watch::selector_handle(&self.core, fd, direction).unwrap_or_else(Ref::none).bind(py);
        py_tuple(py, [events, handle(Direction::Read), handle(Direction::Write)])
    }

    /// The watched descriptors.
    fn _watched<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let _held = self.core.enter();
        let fds = self.core.fds.descriptors();
        let watched = fds.into_iter().filter(|&fd| watch::selector_events(&self.core, fd) != 0);
        let numbers: PyResult<Vec<_>> =
            watched.map(|fd| Ok(Fallible(fd).into_pyobject(py)?.into_any())).collect();
        list(py, numbers?)
    }

    /// Close the native half. The loop is not running.
    fn _close_native(&self) {
        let _held = self.core.enter();
        self.core.instrumentation.set_closed(true);
        self.core.clear();
        self.core.probe.registered.set_name("");
        if self.core.is_polling() {
            // Another thread steps the loop, and waits in the poller. It drops the poller when it has woken up.
            self.core.inbox.wake();
        } else {
            self.core.drop_poller();
        }
    }

    /// Record from now on when each task ends a step, or no longer. A closed loop records nothing.
    fn _time_steps(&self, on: bool) {
        let _held = self.core.enter();
        self.core.instrumentation.set_times_steps(on && !self.core.is_closed());
        if !on {
            self.core.probe.step_times.clear();
        }
    }

    /// When the task has ended its last step, on the clock of time.monotonic(); None if that was not recorded.
    fn _last_step(&self, task: Bound<'_, PyAny>) -> Option<Fallible<f64>> {
        let _held = self.core.enter();
        self.core.probe.step_times.of(&task.into()).map(|time| Fallible(time as f64 / 1e9))
    }

    /// The figures of `wakeloop.LoopMetrics`, as a dict.
    fn _metrics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let _held = self.core.enter();
        figures::to_dict(py, &self.core.probe.registered.figures(monotonic_nanos()).1)
    }

    /// Forget the durations that `metrics()` has counted in histograms. Between two turns or in a callback.
    fn _reset_histograms(&self) {
        let _held = self.core.enter();
        self.core.probe.counters.reset_histograms(monotonic_nanos());
    }

    /// Is this a forked child that has not taken the loop over from its parent?
    fn _is_parents(&self) -> bool {
        let _held = self.core.enter();
        self.core.is_parents()
    }

    /// Count the gauges of the metrics. So many jobs of the default executor have not begun to run.
    fn _count(&self, queued: u64) {
        let _held = self.core.enter();
        gauges::count_all(&self.core, queued);
    }

    /// Show the loop to tools under the name of this thread, with a number behind it if another open loop has the name.
    fn _register(&self, thread: &[u8]) {
        let _held = self.core.enter();
        self.core.probe.registered.set_name(&String::from_utf8_lossy(thread));
    }

    /// The name under which tools see the loop; None if it is closed, or is a parent process's.
    fn _registered_name(&self) -> Option<Fallible<String>> {
        let _held = self.core.enter();
        (!self.core.is_closed() && !self.core.is_parents())
            .then(|| Fallible(self.core.probe.registered.name()))
    }

    /// Keep a callback that took so many nanoseconds: a slow turn, or one that is only long.
    fn _keep_slow(&self, nanos: u64, name: &[u8], slow: bool) {
        let _held = self.core.enter();
        self.core.probe.registered.keep(monotonic_nanos(), nanos, name, slow);
    }

    /// Keep a task or callback for which the loop waits busily, so many nanoseconds after that has begun.
    fn _keep_busy_wait(&self, nanos: u64, text: &[u8]) {
        let _held = self.core.enter();
        self.core.probe.registered.keep_busy_wait(monotonic_nanos(), nanos, text);
    }

    /// The last slow turns, the latest first: when each ended, how long it took, and its name. Times are in seconds.
    fn _slow_turns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let _held = self.core.enter();
        let row = |slow: SlowCallback| {
            let [at, took] =
                [slow.at, slow.nanos].map(|nanos| Fallible(nanos as f64 / 1e9).into_pyobject(py));
            let name = Fallible(slow.name).into_pyobject(py)?.into_any();
            Ok(py_tuple(py, [at?.into_any(), took?.into_any(), name])?.into_any())
        };
        try_list(py, self.core.probe.registered.slow_turns().into_iter().map(row))
    }

    /// The limit of a turn's length in seconds. Longer turns are counted as slow. They are logged once the limit was set.
    #[getter]
    fn get_slow_turn_duration(&self) -> f64 {
        let _held = self.core.enter();
        match self.core.probe.meter.limit() {
            u64::MAX => f64::INFINITY,
            nanos => nanos as f64 / 1e9,
        }
    }

    #[setter]
    fn set_slow_turn_duration(&self, seconds: &Bound<'_, PyAny>) -> PyResult<()> {
        let _held = self.core.enter();
        let seconds = Ref::from(seconds.clone()).to_float()?;
        if seconds.is_nan() || seconds <= 0.0 {
            return Err(exception::<PyValueError>("slow_turn_duration must be a positive number of seconds"));
        }
        // The cast saturates, so that infinity is no limit.
        self.core.probe.meter.set_limit((seconds * 1e9) as u64);
        self.core.probe.meter.log_slow_turns();
        Ok(())
    }

    #[getter(_closed)]
    fn get_closed(&self) -> bool {
        let _held = self.core.enter();
        self.core.is_closed()
    }

    #[setter(_closed)]
    fn set_closed(&self, value: bool) {
        let _held = self.core.enter();
        self.core.instrumentation.set_closed(value);
    }

    #[getter(_stopping)]
    fn get_stopping(&self) -> bool {
        let _held = self.core.enter();
        self.core.state.stopping.get()
    }

    #[setter(_stopping)]
    fn set_stopping(&self, value: bool) {
        let _held = self.core.enter();
        self.core.state.stopping.set(value);
    }

    #[getter(_debug)]
    fn get_debug(&self) -> bool {
        let _held = self.core.enter();
        self.core.is_debug()
    }

    #[setter(_debug)]
    fn set_debug(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let _held = self.core.enter();
        let debug = value.is_truthy()?;
        self.core.instrumentation.set_debug(debug);
        self.core.inbox.set_debug(debug);
        Ok(())
    }

    /// Set an attribute. From now on the loop uses a `time` or `call_at` that was set on it, and from the next
    /// iteration on a `_run_once`, `_process_events` or `_selector`.
    fn __setattr__(slf: &Bound<'_, Self>, name: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let _held = slf.get().core.enter();
        set_attribute(slf, name, value.as_ptr())
    }

    fn __delattr__(slf: &Bound<'_, Self>, name: &Bound<'_, PyAny>) -> PyResult<()> {
        let _held = slf.get().core.enter();
        set_attribute(slf, name, std::ptr::null_mut())
    }

    #[getter(_thread_id)]
    fn get_thread_id<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let _held = self.core.enter();
        self.core.thread_id.get().map(|thread| thread.bind(py))
    }

    #[setter(_thread_id)]
    fn set_thread_id(&self, value: Option<Bound<'_, PyAny>>) {
        let _held = self.core.enter();
        self.core.thread_id.set(value.map(Ref::from));
    }

    #[getter(_task_factory)]
    fn get_task_factory<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let _held = self.core.enter();
        self.core.task_factory.get().map(|factory| factory.bind(py))
    }

    #[setter(_task_factory)]
    fn set_task_factory(&self, value: Option<Bound<'_, PyAny>>) {
        let _held = self.core.enter();
        self.core.task_factory.set(value.map(Ref::from));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let mut outcome = Ok(());
        let mut visit = |object: &Ref| {
            // SAFETY: `Py` and `Ref` are both transparent over a pointer that is not null.
            let object = unsafe { &*std::ptr::from_ref(object).cast::<Py<PyAny>>() };
            if outcome.is_ok() {
                outcome = visit.call(object);
            }
        };
        // The collector has stopped all other threads.
        section::alone(self.core.object(), || self.core.traverse(&mut visit));
        outcome
    }

    fn __clear__(&self) {
        let _held = self.core.enter();
        self.core.clear();
        self.core.task_factory.clear();
        self.core.thread_id.clear();
    }
}

fn set_attribute(
    object: &Bound<'_, EventLoop>,
    name: &Bound<'_, PyAny>,
    value: *mut ffi::PyObject,
) -> PyResult<()> {
    // SAFETY: live objects; a null value deletes.
    let outcome = unsafe { ffi::PyObject_GenericSetAttr(object.as_ptr(), name.as_ptr(), value) };
    if outcome < 0 {
        return Err(Raised.into());
    }
    let names = imports();
    if [&names.time, &names.call_at].iter().any(|timing| timing.as_ptr() == name.as_ptr()) {
        drop(object.get().core.look_for_patches());
    }
    if [&names._run_once, &names._process_events, &names._selector]
        .iter()
        .any(|part| part.as_ptr() == name.as_ptr())
    {
        object.get().core.state.replaced.set(true);
    }
    Ok(())
}

/// `_add_reader` and `_add_writer`. pyo3 would make a tuple of the callback's arguments, and panic if there is no memory
/// for it.
pub(super) fn add_watch(
    core: This<'_, Core>,
    direction: Direction,
    function: &str,
    arguments: Arguments<'_>,
) -> Result<Ref, Raised> {
    let context = arguments.context(function)?;
    arguments.at_least(1, function, "fd")?;
    arguments.at_least(2, function, "callback")?;
    let &[file, callback, ref rest @ ..] = arguments.rest(0) else { return Err(Raised) };
    core.check_usable()?;
    let fd = descriptor(&file.bind(core.py()))?;
    if WARNS_OF_BOOL_AS_DESCRIPTOR && [true, false].iter().any(|&value| file.is(&boolean(value))) {
        call_support(core.py(), "bool_as_descriptor", &[])?;
    }
    let file = file.saturating_int().is_none().then(|| file.to_owned());
    let context = context_for(context)?;
    let parts =
        Parts { event_loop: core.loop_ref(), callback: callback.to_owned(), arguments: rest, context };
    let handle = Handle::create_repeated(parts)?;
    if core.is_debug() {
        handle.set_source_traceback(Some(call_support(core.py(), "watcher_stack", &[])?));
    }
    watch::add(&core, fd, direction, &handle, file)?;
    Ok(handle.into_object())
}
