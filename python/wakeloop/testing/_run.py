"""`run`: a program under a test's control, from its first step to the verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ._clock import Mode
from ._loop import EventLoop
from ._schedule import Schedule

_T = TypeVar("_T")


def run(
    main: Coroutine[Any, Any, _T] | Callable[[], Coroutine[Any, Any, _T]],
    *,
    seed: int | None = None,
    schedule: Schedule | None = None,
    clock: Mode = "auto",
    network: Any = None,
    debug: bool | None = None,
) -> _T:
    """Run a coroutine, or a coroutine function without arguments, on a new testing loop."""
    def factory() -> EventLoop:
        return EventLoop(clock=clock, seed=seed, schedule=schedule, network=network)

    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        return runner.run(main() if callable(main) else main)
