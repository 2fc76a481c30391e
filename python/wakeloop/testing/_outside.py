"""What is real on a testing loop: things outside of it that it waits for, and for which its clock does not jump."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import sys
import threading
from typing import Any

from .. import waits
from .._loop import LoopState
from ._multiprocessing import kept_thread


class Outside:
    """The real things that one loop waits for: descriptors, operations of the runtime, jobs, processes and threads."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._jobs: list[asyncio.Future[Any]] = []
        #: The threads that were there before the loop ran, and the workers that were busy then. They are not its program's.
        self._earlier: set[threading.Thread] = set()
        self._busy_earlier: set[threading.Thread] = set()
        #: The number of the run.
        self._run = 0

    def begin_run(self, number: int) -> None:
        """Note which threads exist."""
        self._run = number
        self._earlier = set(threading.enumerate())
        # An executor lists a worker after it has started it, so the loop's own may not be listed yet.
        self._busy_earlier = {threading.current_thread(), *_busy_workers()}

    def add_job(self, future: asyncio.Future[Any]) -> None:
        """Count a job of an executor until its future is done."""
        self._jobs = [job for job in self._jobs if not job.done()]
        self._jobs.append(future)

    def awaited(self) -> str:
        """Say what the loop waits for, for people; an empty string if it is nothing."""
        return self._telling() or self._thread()

    def is_silent(self) -> bool:
        """Whether the loop waits for threads alone: they may end without a word."""
        return not self._telling() and bool(self._thread())

    def _telling(self) -> str:
        """Say for which things the loop waits that wake it when they are done."""
        loop = self._loop
        self._jobs = [job for job in self._jobs if not job.done()]
        if count := loop._awaited_descriptors():
            return _counted(count, "descriptor")
        if count := loop._awaited_operations():
            return _counted(count, "operation") + " of the runtime"
        if self._jobs:
            return _counted(len(self._jobs), "job") + " of an executor"
        if loop._pidfds:
            return _counted(len(loop._pidfds), "child process", "child processes")
        return ""

    def _thread(self) -> str:
        """Name a thread for which the loop waits."""
        if threading.active_count() <= 1:
            return ""
        if threads := self.threads():
            return f"the thread {threads[0].name!r}"
        if busy := sorted(thread.name for thread in _busy_workers() if thread not in self._busy_earlier):
            return f"a job of the executor's thread {busy[0]!r}"
        if (others := self._others()) and self._waits_for_others():
            return f"the thread {others[0]!r}, which may use a wakeloop.Queue or Event that is awaited"
        return ""

    def _others(self) -> list[str]:
        """Return the names of the threads that were there before, without idle workers of executors."""
        workers: Any = getattr(concurrent.futures.thread, "_threads_queues", ())
        busy, here = _busy_workers(), threading.current_thread()
        alive = [thread for thread in self._earlier if thread is not here and thread.is_alive() and is_programs(thread)]
        return sorted(thread.name for thread in alive if thread not in workers or thread in busy)

    def all_await_this_thread(self) -> bool:
        """Whether all other threads wait until this one has ended: they have nothing to say to the loop before."""
        here, workers = threading.current_thread(), getattr(concurrent.futures.thread, "_threads_queues", ())
        busy, frames = _busy_workers(), sys._current_frames()
        others = [thread for thread in threading.enumerate() if thread is not here and is_programs(thread)]
        return all(
            _joins(frames.get(thread.ident or 0), here) for thread in others if thread not in workers or thread in busy
        )

    def _waits_for_others(self) -> bool:
        """Whether a task waits for a queue or an event that other threads may know: it is older than the run, or they wait
        for it too."""
        return any(
            _is_shared(link.awaitable, self._run)
            for task in asyncio.all_tasks(self._loop)
            for link in waits._chain(task.get_coro())
        )

    def threads(self) -> list[threading.Thread]:
        """Return the threads that the program has started and that still run, without the workers of executors."""
        workers: Any = getattr(concurrent.futures.thread, "_threads_queues", ())
        found = {thread for thread in threading.enumerate() if is_programs(thread)} - self._earlier
        return sorted((thread for thread in found if thread not in workers), key=lambda thread: thread.name)


def _is_shared(awaitable: Any, run: int) -> bool:
    kind = type(awaitable)
    # Looked for on the class, so that no `__getattr__` of the program is called.
    return kind.__module__ == "wakeloop._core" and hasattr(kind, "_is_shared") and bool(awaitable._is_shared(run))


def _busy_workers() -> list[threading.Thread]:
    """Return the threads of those executors that have jobs. Jobs may have been submitted without the loop's knowing."""
    queues: Any = getattr(concurrent.futures.thread, "_threads_queues", {})
    return [thread for thread, queue in list(queues.items()) if thread.is_alive() and _is_busy(thread, queue)]


#: What a worker runs. Since Python 3.13 it looks for another job before it says that it is idle.
_WORKER: Any = getattr(getattr(concurrent.futures.thread, "_worker", None), "__code__", None)
_COUNTS_IDLE = _WORKER is not None and "get_nowait" in _WORKER.co_names


def _is_busy(worker: Any, queue: Any) -> bool:
    """Whether a worker has a job, or one waits for it.

    An executor counts its idle workers, and takes one away for each job. Before Python 3.13 it counts too many; there,
    a worker that is idle waits in a function that has no frame of its own.
    """
    try:
        if queue.qsize():
            return True
        if not _COUNTS_IDLE:
            frame = sys._current_frames().get(worker.ident)
            return frame is not None and frame.f_code is not _WORKER
        executor = worker._args[0]()
        return executor is None or executor._idle_semaphore._value < len(executor._threads)
    except (AttributeError, IndexError, TypeError):
        return False  # Another implementation of executors, or a worker that ends.


def _joins(frame: Any, thread: threading.Thread) -> bool:
    """Whether a thread that is in this frame waits until another one has ended, however long that takes."""
    for _ in range(2):
        if frame is None:
            return False
        if frame.f_code is threading.Thread.join.__code__:
            return frame.f_locals.get("self") is thread and frame.f_locals.get("timeout") is None
        if frame.f_code is _END_OF_PROCESS:
            return not thread.daemon
        # Before Python 3.13, join() waits in another function.
        frame = frame.f_back
    return False


#: Where the main thread waits for the others.
_END_OF_PROCESS: Any = getattr(getattr(threading, "_shutdown", None), "__code__", None)


def is_programs(thread: threading.Thread) -> bool:
    """Whether the program may have started the thread. Threads of the runtime that have called Python look like threads
    too, and multiprocessing has one for the life of the process."""
    return not isinstance(thread, threading._DummyThread) and thread is not kept_thread()


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
