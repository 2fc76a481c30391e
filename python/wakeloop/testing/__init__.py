"""Time, order, network and faults under a test's control.

`run` and `EventLoop` run an unchanged asyncio program on a clock that jumps, in an order drawn from a seed.
"""

from __future__ import annotations

from ._clock import Clock
from ._loop import EventLoop
from ._run import run
from ._schedule import Decision, Fifo, Replay, Schedule, Seeded
from ._steps import Step, StepLog

__all__ = [
    "Clock",
    "Decision",
    "EventLoop",
    "Fifo",
    "Replay",
    "Schedule",
    "Seeded",
    "Step",
    "StepLog",
    "run",
]
