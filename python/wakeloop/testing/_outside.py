"""What is real on a testing loop: things outside of it that it waits for, and for which its clock does not jump."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import threading
from typing import Any

from .._state import LoopState


class Outside:
    """The real things that one loop waits for: descriptors, operations of the runtime, jobs, processes and threads."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._jobs: list[asyncio.Future[Any]] = []
        #: The threads that were there before the loop ran. They are not its program's.
        self._earlier: set[threading.Thread] = set()

    def begin_run(self) -> None:
        """Note which threads exist."""
        self._earlier = set(threading.enumerate())

    def add_job(self, future: asyncio.Future[Any]) -> None:
        """Count a job of an executor until its future is done."""
        self._jobs = [job for job in self._jobs if not job.done()]
        self._jobs.append(future)

    def awaited(self) -> str:
        """Say what the loop waits for, for people; an empty string if it is nothing."""
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
        if threads := self.threads():
            return f"the thread {threads[0].name!r}"
        return ""

    def threads(self) -> list[threading.Thread]:
        """Return the threads that the program has started and that still run, without the workers of executors."""
        if threading.active_count() <= 1:
            return []
        workers: Any = getattr(concurrent.futures.thread, "_threads_queues", ())
        found = {thread for thread in threading.enumerate() if is_programs(thread)} - self._earlier
        return sorted((thread for thread in found if thread not in workers), key=lambda thread: thread.name)


def is_programs(thread: threading.Thread) -> bool:
    """Whether Python started the thread. Threads of the runtime that have called Python look like threads too."""
    return not isinstance(thread, threading._DummyThread)


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
