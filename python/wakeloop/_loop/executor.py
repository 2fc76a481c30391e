"""Executors: whether native code can replace functions of asyncio and concurrent.futures."""

from __future__ import annotations

import concurrent.futures
import types
from typing import Any

from .. import _core
from .._asyncio import futures
from .._asyncio.compat import names_within

_jobs: Any = concurrent.futures._base

# The names that the functions refer to that native code replaces. A function that refers to other names does something
# else, and native code does not replace it.
_STATES = {"CANCELLED", "CANCELLED_AND_NOTIFIED", "FINISHED", "_condition", "_state"}
_JOB = {
    "add_done_callback": {*_STATES, "_done_callbacks", "append", "Exception", "LOGGER", "exception"},
    "cancelled": _STATES - {"FINISHED"},
    "exception": {*_STATES, "CancelledError", "TimeoutError", "_exception", "wait"},
    "result": {*_STATES, "CancelledError", "TimeoutError", "_Future__get_result", "wait"},
    "_Future__get_result": {"_exception", "_result"},
    "_invoke_callbacks": {"Exception", "LOGGER", "_done_callbacks", "exception"},
}
_WRAP = {"futures", "isfuture", "isinstance", "concurrent", "Future", "events", "create_future", "_chain_future"}
_CHAIN = {
    *("isfuture", "isinstance", "concurrent", "futures", "Future", "TypeError", "_get_loop", "add_done_callback"),
    *("_set_concurrent_future_state", "_copy_future_state", "cancelled", "cancel", "call_soon_threadsafe", "is_closed"),
}
_COPY = {"done", "cancelled", "cancel", "set_exception", "_convert_future_exc", "set_result"}
if hasattr(_jobs.Future, "_get_snapshot"):
    # Since 3.15 the state is copied with one call.
    _JOB["_get_snapshot"] = {*_STATES, "CANCELLED_AND_NOTIFIED", "_exception", "_result"}
    _COPY.add("_get_snapshot")
else:
    _COPY |= {"exception", "result"}
# Since 3.14 the state of a job that ends in the loop's own thread is copied at once.
_AT_ONCE = {"events", "_get_running_loop"}
# The function that finds the default loop has one of these names.
_DEFAULT_LOOP = {"get_event_loop", "_get_event_loop"}

_ATTRIBUTES = ["_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"]


def _are_known() -> bool:
    return (
        all(names_within(vars(_jobs.Future).get(name), _jobs) == known for name, known in _JOB.items())
        and [*vars(_jobs.Future())] == _ATTRIBUTES
        and names_within(futures.wrap_future, futures) - _DEFAULT_LOOP == _WRAP
        and names_within(futures._chain_future, futures) in (_CHAIN, _CHAIN | _AT_ONCE)
        and names_within(futures._copy_future_state, futures) == _COPY
    )


#: Native code passes the results of an executor to the loop.
STANDS_IN = _are_known()


def _inner(function: Any, name: str) -> types.FunctionType:
    """Returns a nested function of another one, with empty cells: for its name and place, not to be called."""
    [code] = [it for it in function.__code__.co_consts if isinstance(it, types.CodeType) and it.co_name == name]
    cells = tuple(types.CellType() for _ in code.co_freevars)
    return types.FunctionType(code, {}, closure=cells)


if STANDS_IN:
    _core.chain_jobs(
        (_jobs.Future, list(_JOB), _ATTRIBUTES),
        (_jobs.PENDING, _jobs.RUNNING, _jobs.FINISHED),
        names_within(futures._chain_future, futures) >= _AT_ONCE,
        _inner(futures._chain_future, "_call_check_cancel"),
    )


def count_gauges(loop: Any) -> None:
    """Brings the gauges of a loop's metrics up to date."""
    queue: Any = getattr(loop._default_executor, "_work_queue", None)
    loop._count(queue.qsize() if hasattr(queue, "qsize") else 0)


_checks: list[Any] = []


def is_pythons(executor: Any) -> bool:
    """Is this default executor, which is made when it is first used, Python's own, without a patch?"""
    kind = vars(concurrent.futures).get("ThreadPoolExecutor")
    if kind is None:
        # Python imports the module of the class when it is first used.
        return executor is None
    if not _checks:
        methods = [(kind, "__init__", "submit")] if isinstance(kind, type) else []
        _checks.append(_core.unpatched(((concurrent.futures, "ThreadPoolExecutor"), *methods)))
    return bool(_checks[0]()) and (executor is None or (type(executor) is kind and "submit" not in vars(executor)))
