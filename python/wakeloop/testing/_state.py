"""The base class of the testing loop: its attributes. Modules that work on a loop import it, so that none imports `_loop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..loop import EventLoop
from ._clock import Clock
from ._schedule import Schedule
from ._steps import StepLog

if TYPE_CHECKING:
    import threading


class TestingLoop(EventLoop):
    """A loop with a clock, a schedule and a log of its steps."""

    # Not a test case, whatever its name begins with.
    __test__ = False

    #: The loop's time.
    clock: Clock
    #: Decides what asyncio leaves open.
    schedule: Schedule
    #: Every step that has run.
    steps: StepLog
    #: The simulated network; None if connections are real.
    network: Any
    #: Runs the jobs of executors on the loop's thread; None if they run in threads.
    jobs: Any
    #: The thread in which the loop runs.
    _thread: threading.Thread | None
    #: The wall clock's time at the start of the loop, in seconds since 1970. None if time is not patched.
    _epoch: float | None
    #: How often the program has left the simulation.
    _escapes: int
    _tasks_made: int
    _futures_made: int

    def _move_watch(self, fd: int) -> None:
        """The socket of a descriptor has joined the network: let what waits for it wait there."""
        raise NotImplementedError

    def _started_thread(self, thread: threading.Thread | None) -> bool:
        """Whether the thread was started during the loop's run. None stands for one that Python has not started."""
        raise NotImplementedError
