"""The loop of the tools that run a program many times: `explore` and `cancel_everywhere`."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

from ._loop import EventLoop
from ._order import owner_of
from ._run import run, run_on
from ._steps import function_name

#: A program that can be run many times.
Main = Callable[[], Coroutine[Any, Any, object]]

#: The options of `run` that are not the loop's.
_OF_THE_RUN = frozenset({"check", "debug"})


class ObservedLoop(EventLoop):
    """A testing loop that notes when the program has ended, and knows what asyncio would run next."""

    def __init__(self, **options: Any) -> None:
        """Takes the options of `run`. `network` may be a function that makes one."""
        self._of_the_run = {name: options.pop(name) for name in _OF_THE_RUN & options.keys()}
        #: How many steps the program had; those that follow end the loop. None while it runs.
        self.program_steps: int | None = None
        if callable(network := options.get("network")):
            options["network"] = network()
        super().__init__(**options)

    def run_program(self, main: Main) -> object:
        """Run the program as `run` does, and close the loop."""
        return run_on(self, main, **self._of_the_run)

    def run_until_complete(self, future: Any) -> Any:
        """Run until a future is done; see asyncio.loop.run_until_complete."""
        try:
            return super().run_until_complete(future)
        finally:
            if self.program_steps is None:
                self.program_steps = self.steps.total
                if self.steps and self.steps[-1].what == "_run_until_complete_cb":
                    self.program_steps -= 1

    def first_ready(self) -> str:
        """Name what runs next in asyncio's order: a task, or a function."""
        if not self._ordered:
            return ""
        handle = self._ordered.first()
        owner = owner_of(handle)
        return owner.get_name() if isinstance(owner, asyncio.Task) else function_name(handle._callback)


# The log names the class, and its steps are to be those of `run`.
ObservedLoop.__qualname__ = EventLoop.__qualname__


#: Where a program is run many times, one that never ends must not stop the search.
MAX_STEPS = 100_000


def checked(main: Any, function: str, options: dict[str, Any]) -> Main:
    """Return a program that can be run many times. TypeError for anything else, and for options that `run` has not.

    The options get a limit of steps, if they have none.
    """
    if not callable(main):
        raise TypeError(f"{function}() needs a coroutine function, not {type(main).__qualname__}: it runs it many times")
    inspect.signature(run).bind(main, **options)
    options.setdefault("max_steps", MAX_STEPS)
    return main  # type: ignore[no-any-return]


def words(error: BaseException) -> list[str]:
    """Return what a traceback ends with, without notes: they say how to run it again, as the reports do."""
    described = traceback.TracebackException.from_exception(error)
    described.__notes__ = None  # type: ignore[attr-defined, unused-ignore]
    return "".join(described.format_exception_only()).rstrip().splitlines()
