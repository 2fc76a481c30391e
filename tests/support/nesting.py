"""Does what nest_asyncio does: runs a loop inside one of its own callbacks, by calling `_run_once`."""

import asyncio
import contextlib
import heapq


def make_nestable(loop):
    """asyncio's _run_once expects the callbacks that were ready at its start, but a nested one has run them by then.

    Ours handles that, and stays as it is.
    """
    if type(loop)._run_once is not asyncio.BaseEventLoop._run_once:
        return

    def run_once():
        scheduled, timeout = loop._scheduled, None
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if loop._ready or loop._stopping:
            timeout = 0
        elif scheduled:
            timeout = max(0, scheduled[0]._when - loop.time())
        loop._process_events(loop._selector.select(timeout))
        while scheduled and scheduled[0]._when < loop.time() + loop._clock_resolution:
            loop._ready.append(heapq.heappop(scheduled))
        for _ in range(len(loop._ready)):
            if not loop._ready:
                break
            handle = loop._ready.popleft()
            if not handle._cancelled:
                handle._run()

    loop._run_once = run_once


@contextlib.contextmanager
def _as_if_outside(loop):
    """asyncio forbids a current task where a nested run passes through."""
    task = asyncio.current_task(loop)
    if task is not None:
        asyncio.tasks._leave_task(loop, task)
    try:
        yield
    finally:
        if task is not None:
            asyncio.tasks._enter_task(loop, task)


def run_nested(loop, awaitable):
    """Returns the result of `awaitable`, from a function that the loop calls."""
    future = asyncio.ensure_future(awaitable, loop=loop)
    with _as_if_outside(loop):
        while not future.done():
            loop._run_once()
    return future.result()
