"""Executors: which of asyncio's and concurrent.futures' functions native code stands in for."""

from __future__ import annotations

import concurrent.futures
from typing import Any

from . import _core
from ._inherited import futures, names_within

_jobs: Any = concurrent.futures._base

# What the functions refer to that native code stands in for. Those that refer to anything else do something else:
# they are left alone.
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
_COPY = {"done", "cancelled", "cancel", "exception", "set_exception", "_convert_future_exc", "result", "set_result"}
# Since 3.14 a job whose end is told in the loop's own thread has its state copied at once.
_AT_ONCE = {"events", "_get_running_loop"}
# With or without the name of the loop that is taken by default.
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


#: Native code takes an executor's results to the loop.
STANDS_IN = _are_known()

if STANDS_IN:
    _core.chain_jobs(
        (_jobs.Future, _ATTRIBUTES),
        (_jobs.PENDING, _jobs.RUNNING, _jobs.FINISHED),
        names_within(futures._chain_future, futures) >= _AT_ONCE,
    )
