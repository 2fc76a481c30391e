"""Time, order, network and faults under a test's control.

`run` and `EventLoop` run an unchanged asyncio program on a clock that jumps, in an order drawn from a seed.
"""

from __future__ import annotations

from ._cancellation import Cancellation, Cancellations, cancel_everywhere
from ._clock import Clock
from ._escapes import SimulationWarning
from ._explore import Exploration, Failure, Reordering, explore
from ._loop import EventLoop
from ._run import run, run_on
from ._schedule import Decision, Fifo, Replay, Schedule, Seeded
from ._steps import Step, StepLog
from ._verdicts import Deadlock, LeftBehind, StepLimit

__all__ = [
    "Cancellation",
    "Cancellations",
    "Clock",
    "Deadlock",
    "Decision",
    "EventLoop",
    "Exploration",
    "Failure",
    "Fifo",
    "LeftBehind",
    "Reordering",
    "Replay",
    "Schedule",
    "Seeded",
    "SimulationWarning",
    "Step",
    "StepLimit",
    "StepLog",
    "cancel_everywhere",
    "explore",
    "run",
    "run_on",
]
