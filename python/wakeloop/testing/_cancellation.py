"""Cancels a program at each of its await points, one after the other."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from typing import Any, Literal

from ._observed import Main, ObservedLoop, checked, words
from ._steps import _place
from ._tasks import is_asyncios


@dataclasses.dataclass(frozen=True)
class Cancellation:
    """One run, in which one task was cancelled at one await point."""

    __module__ = "wakeloop.testing"

    #: The point: the suspensions of the program's tasks are counted from 1.
    point: int
    #: The name of the task that was cancelled.
    task: str
    #: The function and the line at which it waited.
    where: str
    #: The loop's time in seconds.
    time: float
    #: How the program ended: it was "cancelled", or it "returned" because it handles cancellation, or it "failed".
    outcome: Literal["cancelled", "returned", "failed"]
    #: What it raised, if it failed: an error of its own, a deadlock, or that it has left something behind.
    error: BaseException | None = None

    def __str__(self) -> str:
        text = f"{self.point:>6} {self.task} at {self.where}: {self.outcome}"
        if self.error is None:
            return text
        return "\n".join([text, *(f"         {line}" for line in words(self.error))])


class Cancellations(list[Cancellation]):
    """The results of `cancel_everywhere`, one for each await point."""

    __module__ = "wakeloop.testing"

    @property
    def failures(self) -> list[Cancellation]:
        """The points at which a cancellation makes the program fail."""
        return [each for each in self if each.error is not None]

    def report(self) -> str:
        """Return the results as text: the failures, or how many points there are."""
        failures = self.failures
        if not failures:
            return f"cancelled at each of {len(self)} await points: no failure."
        return "\n".join([f"{len(failures)} of {len(self)} cancellations make the program fail:", *map(str, failures)])

    def check(self) -> None:
        """Raise the first failure's error, with the report as a note. Return if there is none."""
        if failures := self.failures:
            error = failures[0].error
            assert error is not None
            error.add_note(self.report())
            raise error


def cancel_everywhere(main: Main, *, limit: int = 10_000, **options: Any) -> Cancellations:
    """Run a program once for each of its await points, and cancel the task that waits there.

    `main` is a coroutine function without arguments, which makes everything it uses anew. A point is a suspension of
    any of the program's tasks; those that asyncio makes for itself are not among them. The program may end with the
    cancellation or handle it. It fails if it raises anything else, after a deadlock or too many steps, and if it leaves
    tasks, transports or descriptors behind, as for `run`. `options` are those of `run`, with 100,000 for `max_steps` if
    it is not given; `network` may be a function that makes one, because each run needs its own.

    RuntimeError if the program has more than `limit` points. What it raises without a cancellation is raised.
    """
    main = checked(main, "cancel_everywhere", options)
    # Nothing is cancelled in the first run: the program has to be right without that.
    _run_to(0, main, options)
    results = Cancellations()
    while (result := _run_to(len(results) + 1, main, options)) is not None:
        results.append(result)
        if len(results) > limit:
            raise RuntimeError(f"the program has more than {limit} await points")
    return results


def _run_to(point: int, main: Main, options: dict[str, Any]) -> Cancellation | None:
    """Runs the program, and cancels the task of the given suspension. None if the program has no so many."""
    seen = 0
    cancelled: dict[str, Any] | None = None

    def suspended(task: asyncio.Task[Any]) -> None:
        nonlocal seen, cancelled
        if loop.program_steps is not None or is_asyncios(task):
            return
        seen += 1
        if seen == point:
            code, line = _place(task)
            name = getattr(code, "co_qualname", code)
            file = os.path.basename(getattr(code, "co_filename", ""))
            cancelled = {"task": task.get_name(), "where": f"{name} at {file}:{line}", "time": task.get_loop().time()}
            task.cancel()

    loop = ObservedLoop(**options)
    loop.on_suspend(suspended)
    outcome: Literal["cancelled", "returned", "failed"] = "returned"
    error: BaseException | None = None

    async def program() -> None:
        nonlocal outcome
        try:
            await main()
        except asyncio.CancelledError:
            if cancelled is None:
                raise
            # For `run` the program has ended well, so that it looks at what is left behind.
            outcome = "cancelled"

    try:
        loop.run_program(program)
    except (Exception, asyncio.CancelledError) as raised:
        if cancelled is None:
            raise
        outcome, error = "failed", raised
    return None if cancelled is None else Cancellation(point=point, outcome=outcome, error=error, **cancelled)
