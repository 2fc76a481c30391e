"""The flight recorder: starts and stops it, and writes its traces.

The native half (``_core.Recording``) keeps the last events in memory and makes the trace. What happens once per trace is
here: where it is written, when, and what becomes of errors.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import operator
import os
import signal as signals
import sys
import time
from collections.abc import Callable
from typing import Any, Self

from .. import _core
from .._asyncio import base_events
from .._loop import settings
from . import trace_file

#: A ring must hold some events at least.
_SMALLEST = 1024
#: Slow turns cause a trace at most once in so many seconds.
_SLOW_TURNS_EVERY = 10.0

#: The recorder that runs. Only one can, because all loops of the process write to it.
_running: Recorder | None = None
#: The recorder that the environment asks for was started in this process.
_obeyed = False


def record(
    path: str | os.PathLike[str] | None = None,
    *,
    size: int = 1 << 20,
    signal: int | None = None,
    slow_turns: bool = False,
) -> Recorder:
    """Start the flight recorder: it keeps the last events of all loops, and of the Rust runtime, in memory.

    path is where the trace is written when the recorder stops, at the end of a ``with`` block or at the interpreter's
    exit; a trace that is there is replaced. Choose a directory to which other users cannot write. In it, ``%p`` stands
    for the process's number, and ``%n`` for that of the trace, from 1 on. Without a path, only save() writes. size is the
    memory for events in bytes, 16 for each; it is rounded down to a power of two. Each worker thread of the runtime has a
    quarter of it besides, from its first event on. On a free-threaded build each loop has so much. signal is a signal
    at which the trace is written too, and slow_turns
    says to write it after a turn that was longer than the loop's slow_turn_duration, at most every ten seconds; both need
    a path, and both write from a thread of their own.

    Recording works for all loops of the process, those that run already included: on a free-threaded build, those of
    other threads from their next wait on. In a forked child the recorder goes on,
    empty, and keeps its path only if that has ``%p``.

    Raises RuntimeError if a recorder runs already, OSError if the trace could not be written now, for example because the
    directory does not exist, ValueError for a size below 1024, for a signal outside of the main thread and for a missing
    path, MemoryError. Call it from any thread, with a signal from the main thread only.
    """
    global _running
    if size < _SMALLEST:
        raise ValueError(f"size must be at least {_SMALLEST}, not {size!r}")
    if path is None and (signal is not None or slow_turns):
        raise ValueError("signal and slow_turns need a path to write to")
    full_path = None if path is None else os.path.abspath(os.fsdecode(path))
    if full_path is not None:
        trace_file.check(_filled(full_path, 1))
    _learn_task_fields()
    # There is no memory for more, either.
    native = _core.Recording(min(size, sys.maxsize), False)
    recorder = Recorder._of(native, full_path, size, slow_turns)
    if signal is not None:
        try:
            recorder._take_signal(signal)
        except BaseException:
            native.stop()
            raise
    _at_exit_and_fork()
    _running = recorder
    return recorder


class Recorder:
    """A flight recorder, which record() has started. As a context manager, it stops at the end of the block.

    All methods may be called from any thread.
    """

    __module__ = "wakeloop"
    __slots__ = ("_native", "_path", "_size", "_slow_turns", "_last_slow_turn", "_signal", "_traces", "_saving")

    _native: _core.Recording
    _path: str | None
    _size: int
    _slow_turns: bool
    _last_slow_turn: float
    #: The signal, and the handler that it had before.
    _signal: tuple[int, Any] | None
    _traces: int
    _saving: Any

    def __init__(self) -> None:
        raise TypeError("call wakeloop.record() to start a recorder")

    @classmethod
    def _of(cls, native: _core.Recording, path: str | None, size: int, slow_turns: bool) -> Recorder:
        recorder = cls.__new__(cls)
        recorder._native, recorder._path, recorder._size, recorder._slow_turns = native, path, size, slow_turns
        recorder._last_slow_turn, recorder._signal, recorder._traces = -_SLOW_TURNS_EVERY, None, 0
        recorder._saving = _lock()
        return recorder

    @staticmethod
    def running() -> Recorder | None:
        """The recorder that runs, also one that the environment variable WAKELOOP_RECORD has started; or None."""
        return _running

    @property
    def path(self) -> str | None:
        """Where the trace is written by default, as an absolute path with its placeholders."""
        return self._path

    @property
    def active(self) -> bool:
        """False once the recorder was stopped."""
        return self._native.active

    @property
    def events(self) -> int:
        """How many events were recorded so far, those that are not kept any more included."""
        return self._native.counts()[0]

    @property
    def dropped(self) -> int:
        """How many of them were overwritten by later ones."""
        return self._native.counts()[1]

    def save(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write what is recorded as a trace, and return the path of the file. Recording goes on meanwhile.

        The trace is JSON in Chrome's Trace Event Format. It is written to a temporary file, which then replaces path (by
        default that of the recorder), and only its owner may read it. ``/dev/stdout``, a terminal, and a named pipe that
        somebody reads are written to. The GIL is released while the trace is made, so the
        loops of other threads go on; on a loop's own thread, this blocks the loop.

        Raises OSError if the file cannot be written: what is recorded, and a file that was there before, stay as they
        were. Raises ValueError if there is no path.
        """
        name = self._path if path is None else os.fsdecode(path)
        if name is None:
            raise ValueError("this recorder has no path: say where to write the trace")
        with self._saving:
            target = _filled(name, self._traces + 1)
            trace_file.write(target, self._write)
            self._traces += 1
            return target

    def stop(self) -> None:
        """Stop recording, and write the trace if the recorder has a path. A recorder that is stopped ignores this.

        What was recorded stays, and save() can still write it. Raises OSError as save() does.
        """
        if self._end() and self._path is not None:
            self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "running" if self.active else "stopped"
        return f"<wakeloop.Recorder {state} events={self.events} dropped={self.dropped} path={self._path!r}>"

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> bool:
        """Stops recording. False if it was stopped before."""
        global _running
        if _running is not self:
            return False
        _running = None
        self._native.stop()
        if self._signal is not None:
            number, before = self._signal
            # Outside of the main thread the handler stays, and does nothing any more.
            with contextlib.suppress(ValueError):
                if signals.getsignal(number) == self._on_signal:
                    signals.signal(number, signals.SIG_DFL if before is None else before)
        return True

    def _exit(self) -> None:
        """The interpreter exits. A process in which no loop has run writes nothing."""
        if self._end() and self._path is not None and self.events:
            self._save_or_report()

    def _forked(self) -> None:
        """This is a forked child, whose recorder begins empty."""
        global _running
        self._saving = _lock()
        self._traces = 0
        if self._path is not None and "%p" not in self._path:
            self._path = None
        try:
            self._native = _core.Recording(self._size, False)
        except (RuntimeError, MemoryError):
            _running = None

    # -- writing without being asked ---------------------------------------------------------------

    def _take_signal(self, number: int) -> None:
        # signal.signal would also take the float 10.5, and signal.getsignal would not.
        number = operator.index(number)
        self._signal = (number, signals.signal(number, self._on_signal))

    def _on_signal(self, _number: int, _frame: object) -> None:
        self._save_soon()

    def _after_slow_turn(self) -> None:
        now = time.monotonic()
        if self._slow_turns and now - self._last_slow_turn >= _SLOW_TURNS_EVERY:
            self._last_slow_turn = now
            self._save_soon()

    def _save_soon(self) -> None:
        """Writes the trace in a thread, so that the loop does not wait for it."""
        if self.active and self._path is not None:
            import threading

            try:
                threading.Thread(target=self._save_or_report, name="wakeloop-recorder").start()
            except RuntimeError as error:  # There is no thread left, or the interpreter exits.
                _report(self._path, error)

    def _save_or_report(self) -> None:
        try:
            self.save()
        except Exception as error:
            _report(self._path, error)

    def _write(self, descriptor: int) -> None:
        details = [("wakeloop", _core.__version__), ("python", sys.version.split()[0])]
        program = os.path.basename((getattr(sys, "argv", None) or [""])[0]) or "python"
        self._native.write(descriptor, os.getpid(), _printable(program), _thread_names(), details)


def slow_turn_recorded() -> None:
    """A loop has recorded a turn that was longer than its limit. Native code calls this on the loop's thread."""
    if _running is not None:
        _running._after_slow_turn()


def start_at_import() -> None:
    """Start the recorder, for which the environment asks. What is wrong with that, the first loop raises."""
    with contextlib.suppress(ValueError):
        start_if_asked()


def start_if_asked() -> None:
    """Start the recorder if the environment asks for it, once in a process. A loop that is made calls this.

    Raises ValueError for a path to which no trace can be written.
    """
    global _obeyed
    path = settings.setting("WAKELOOP_RECORD")
    if path is None or _obeyed or _running is not None:
        return
    number = settings.setting("WAKELOOP_RECORD_SIGNAL")
    if number is not None and not _is_main_thread():
        base_events.logger.error(
            "WAKELOOP_RECORD_SIGNAL: signal only works in main thread of the main interpreter; recording without it"
        )
        number = None
    try:
        record(path, signal=number)
    except OSError as error:
        raise ValueError(
            f"WAKELOOP_RECORD is {os.fsdecode(path)!r}; it can be the path of a file: {error.strerror}"
        ) from None
    except RuntimeError as error:
        # Another thread has started one meanwhile.
        base_events.logger.error("WAKELOOP_RECORD: %s", error)
    _obeyed = True


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()


def _filled(path: str, number: int) -> str:
    """A path without its placeholders, for the trace of this number."""
    return path.replace("%p", str(os.getpid())).replace("%n", str(number))


def _report(path: str | None, error: BaseException) -> None:
    base_events.logger.error("The flight recorder cannot write its trace to %r: %s", path, error)


def _thread_names() -> dict[int, str]:
    """The names of Python's threads, by the system's numbers."""
    import threading

    names = {}
    for thread in threading.enumerate():
        with contextlib.suppress(Exception):  # A subclass of the program may define `name`.
            if thread.native_id is not None:
                names[thread.native_id] = _printable(thread.name)
    return names


def _printable(text: str) -> str:
    """A text without surrogates, which UTF-8 does not have."""
    return text.encode("utf-8", "backslashreplace").decode()


def _lock() -> Any:
    import threading

    return threading.Lock()


@functools.cache
def _at_exit_and_fork() -> None:
    atexit.register(_tell_running, Recorder._exit)
    os.register_at_fork(after_in_child=functools.partial(_tell_running, Recorder._forked))


def _tell_running(what: Callable[[Recorder], None]) -> None:
    if _running is not None:
        what(_running)


class _Stub:
    """A loop for a task that never runs."""

    step: Any = None

    def call_soon(self, callback: object, *_: object, **_keywords: object) -> None:
        self.step = callback

    def get_debug(self) -> bool:
        return False


@functools.cache
def _learn_task_fields() -> None:
    """Shows the native half a task of which it knows all parts, so that it finds the fields of others."""
    try:
        from _asyncio import Task
    except ImportError:
        return
    import asyncio

    async def nothing() -> None:
        pass

    def function() -> None:
        pass

    stub: Any = _Stub()
    coroutine: Any = nothing()
    # No other object has these two strings.
    coroutine.__qualname__ = qualname = f"coroutine {id(stub)}"
    name = f"task {id(stub)}"
    try:
        task: Any = Task(coroutine, loop=stub, name=name)
        # The stub never runs the task, and that must not cause a warning.
        task._log_destroy_pending = False
        asyncio.tasks._unregister_task(task)
        partial = functools.partial(function)
        _core.learn_task_fields(stub.step, task, name, coroutine, qualname, partial, function)
    finally:
        coroutine.close()
