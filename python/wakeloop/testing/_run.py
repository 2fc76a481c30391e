"""`run`: a program under a test's control, from its first step to the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import sysconfig
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from .._asyncio import events
from ._clock import Mode
from ._inline import Delay, Executor, Fault
from ._loop import COLLECT_EVERY, EventLoop, WhileWaiting
from ._schedule import Schedule
from ._steps import function_name
from ._verdicts import (
    Before,
    Deadlock,
    LeftBehind,
    StepLimit,
    indented,
    open_sockets,
    open_transports,
    pending_tasks,
)

_T = TypeVar("_T")

Main = Coroutine[Any, Any, _T] | Callable[[], Coroutine[Any, Any, _T]]

#: After main has ended, the loop runs at most so many turns for what is ready, before it is looked at what is left.
_LAST_TURNS = 100
#: What a run ends with on which nothing, or too much, happens.
_VERDICTS = (Deadlock, StepLimit)


def run(
    main: Main[_T],
    *,
    seed: int | None = None,
    schedule: Schedule | None = None,
    clock: Mode = "auto",
    network: Any = None,
    patch_time: bool | float | datetime.datetime = False,
    while_waiting: WhileWaiting = "wait",
    executor: Executor = "auto",
    executor_delay: Delay = 0.0,
    executor_fault: Fault | None = None,
    slow_callback: float | None = None,
    max_steps: int | None = None,
    check: bool = True,
    debug: bool | None = None,
) -> _T:
    """Run a coroutine, or a coroutine function without arguments, on a new testing loop, and return its result.

    The options other than `check` and `debug` are those of `EventLoop`.

    With `check`, a program that ends without an exception must leave nothing behind, or `LeftBehind` is raised: tasks
    that are not done, open transports, descriptors and threads, exceptions that nobody has seen, and callbacks that
    took longer than `slow_callback`. A program on which nothing can happen any more raises `Deadlock`, and one that runs
    more than `max_steps` steps raises `StepLimit`. If the run was drawn from a seed, a note on the exception says which,
    and how to run it again.

    RuntimeError when called from a running loop.
    """
    loop = EventLoop(
        clock=clock,
        seed=seed,
        schedule=schedule,
        network=network,
        patch_time=patch_time,
        while_waiting=while_waiting,
        executor=executor,
        executor_delay=executor_delay,
        executor_fault=executor_fault,
        slow_callback=slow_callback,
        max_steps=max_steps,
    )
    return run_on(loop, main, check=check, debug=debug)


def run_on(loop: EventLoop, main: Main[_T], *, check: bool = True, debug: bool | None = None) -> _T:
    """As `run`, on a loop that was made for this and has not run yet. The loop is closed afterwards."""
    coroutine: Coroutine[Any, Any, _T] | None = None
    try:
        if events._get_running_loop() is not None:
            raise RuntimeError("wakeloop.testing.run() cannot be called from a running event loop")
        coroutine = _coroutine(main)
        with _quiet_collector(loop):
            result: _T = _run(loop, coroutine, check, debug)
            return result
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        if note := _note(loop, main):
            error.add_note(note)
        raise
    finally:
        if coroutine is not None:
            coroutine.close()
        loop.close()


def _coroutine(main: Main[Any]) -> Coroutine[Any, Any, Any]:
    coroutine = main() if callable(main) else main
    if not asyncio.iscoroutine(coroutine):
        raise TypeError(f"a coroutine or a coroutine function was expected, not {type(main).__qualname__}")
    return coroutine


def _run(loop: EventLoop, coroutine: Coroutine[Any, Any, _T], check: bool, debug: bool | None) -> _T:
    before = Before() if check else None
    verdict: Exception | None = None
    found: list[str] = []
    try:
        with asyncio.Runner(debug=debug, loop_factory=lambda: loop) as runner:
            try:
                result = runner.run(coroutine)
            except _VERDICTS as error:
                verdict = error
                raise
            if before is None:
                return result
            runner.run(_settle(loop))
            found += pending_tasks(loop) + open_transports(loop)
            try:
                runner.close()
            except (Deadlock, RecursionError):
                # A task that outlasts its cancellation is among those found.
                _forget_tasks(loop)
    except (RecursionError, *_VERDICTS):
        # The runner may raise another one when it cancels the tasks: a verdict on what the program does at its end, or
        # a RecursionError, because asyncio cannot cancel tasks that await each other.
        if verdict is None:
            raise
        _forget_tasks(loop)
    if verdict is not None:
        try:
            raise verdict
        finally:
            verdict = None  # Breaks a cycle with its traceback.
    assert before is not None
    loop.close()
    take_stream_failures()
    gc.collect(2 if gc.isenabled() else 1)
    found += loop._reports.seen
    found += [f"a callback took {seconds:.3f} s of real time: {what}" for what, seconds in loop.slow_callbacks]
    found += before.left() + open_sockets(loop)
    if found:
        raise LeftBehind(found)
    return result


def _forget_tasks(loop: EventLoop) -> None:
    """Keeps asyncio from logging the tasks that cannot be ended. They are in what the run raises."""
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def take_stream_failures() -> None:
    """Does before a collection what asyncio's stream protocols do when they are finalized.

    A protocol then takes the exception of its connection, which nobody has to await, from a future of its own. The
    collector of a free-threaded build may finalize that future first, which logs the exception.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        for thing in gc.get_objects():
            if issubclass(type(thing), asyncio.StreamReaderProtocol):
                closed = getattr(thing, "_closed", None)
                if closed is not None and closed.done() and not closed.cancelled():
                    closed.exception()


async def _settle(loop: EventLoop) -> None:
    """Lets what is ready run, such as connection_lost of a transport that was closed last. Time does not move."""
    for _ in range(_LAST_TURNS):
        await asyncio.sleep(0)
        if not loop._has_ready():
            break


@contextlib.contextmanager
def _quiet_collector(loop: EventLoop) -> Iterator[None]:
    """Under a schedule, only the loop runs the garbage collector, at fixed steps."""
    if loop.schedule.is_fifo or not gc.isenabled():
        yield
        return
    gc.disable()
    loop._next_collection = COLLECT_EVERY
    try:
        yield
    finally:
        gc.enable()


def _note(loop: EventLoop, main: Any) -> str:
    name = function_name(main) if callable(main) else "main"
    schedule = loop.schedule
    if schedule.seed is not None and not schedule.decisions:
        return f"seed {schedule.seed}; no step had a choice"
    if schedule.seed is not None and type(schedule).__name__ == "Seeded":
        return f"seed {schedule.seed}: run it again with wakeloop.testing.run({name}, seed={schedule.seed})"
    if schedule.is_fifo:
        return ""
    chosen = [decision.chosen for decision in schedule.decisions]
    while chosen and not chosen[-1]:
        chosen.pop()
    shown = f"{chosen[:50]}{'...' if len(chosen) > 50 else ''}"
    return f"run it again with wakeloop.testing.run({name}, schedule=wakeloop.testing.Replay({indented(shown)}))"
