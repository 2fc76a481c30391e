"""Executors: which of asyncio's and concurrent.futures' functions native code stands in for."""

from __future__ import annotations

import concurrent.futures
import types
from typing import Any

from . import _core
from ._inherited import futures

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


def _names(function: Any, module: Any) -> set[str]:
    """All names that a module's own function refers to, itself and in the functions within; empty for any other."""
    if not isinstance(function, types.FunctionType) or function.__globals__ is not vars(module):
        return set()
    nested = [const for const in function.__code__.co_consts if isinstance(const, types.CodeType)]
    return {name for code in [function.__code__, *nested] for name in code.co_names}


def _are_known() -> bool:
    return (
        all(_names(vars(_jobs.Future).get(name), _jobs) == known for name, known in _JOB.items())
        and [*vars(_jobs.Future())] == _ATTRIBUTES
        and _names(futures.wrap_future, futures) - _DEFAULT_LOOP == _WRAP
        and _names(futures._chain_future, futures) in (_CHAIN, _CHAIN | _AT_ONCE)
        and _names(futures._copy_future_state, futures) == _COPY
    )


#: Native code takes an executor's results to the loop.
STANDS_IN = _are_known()

if STANDS_IN:
    _core.chain_jobs(
        (_jobs.Future, _ATTRIBUTES),
        (_jobs.PENDING, _jobs.RUNNING, _jobs.FINISHED),
        _names(futures._chain_future, futures) >= _AT_ONCE,
    )
