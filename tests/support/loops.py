"""The event loops that the tests run on, by name."""

import asyncio
import importlib


def factory(name):
    """Returns a function that makes a new loop. `asyncio` is CPython's own, the control group."""
    if name == "asyncio":
        return asyncio.SelectorEventLoop
    if name == "uvloop":
        return importlib.import_module("uvloop").new_event_loop
    module = importlib.import_module(name)
    return module.new_event_loop


#: Source text that defines `new_loop` in a script run as another process; see support.script.
PRELUDE = {
    "asyncio": "import asyncio\nnew_loop = asyncio.SelectorEventLoop\n",
    "uvloop": "import asyncio, uvloop\nnew_loop = uvloop.new_event_loop\n",
    "wakeloop": "import asyncio, wakeloop\nnew_loop = wakeloop.new_event_loop\n",
}
