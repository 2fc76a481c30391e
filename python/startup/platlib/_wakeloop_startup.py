"""What the environment variables WAKELOOP and WAKELOOP_REPORT do in every Python process.

`wakeloop_run.pth` lies beside this module in site-packages. It imports the module when the interpreter starts, if one of
the variables is set. A process may never use asyncio, and some programs (gevent) must run before it is imported. So
nothing is imported here before the program itself imports asyncio.

- `WAKELOOP=1` then imports wakeloop, which installs its event loop (see `wakeloop.policy`).
- `WAKELOOP_REPORT=1` then reports on stderr each kind of event loop that runs in the process.

A failure never ends the process: asyncio keeps its own loop, and a line on stderr says why.
"""

import os
import sys


def is_set(name):
    """Is the variable set, and not to 0? The first loop of wakeloop refuses another value than 0 and 1."""
    return not sys.flags.ignore_environment and os.environ.get(name, "").strip() not in ("", "0")


def say(text):
    try:
        os.write(2, f"wakeloop: {text}\n".encode(errors="backslashreplace"))
    except OSError:
        pass


def asyncio_is_imported():
    if is_set("WAKELOOP_REPORT"):
        report_loops()
    if is_set("WAKELOOP"):
        try:
            import wakeloop  # noqa: F401
        except Exception as error:
            say(f"asyncio keeps its own event loop in process {os.getpid()}: {error}")


def report_loops():
    """Says once in each process, and for each class of event loops, that such a loop runs."""
    import asyncio

    original = asyncio._set_running_loop
    reported = set()

    def _set_running_loop(loop):
        key = os.getpid(), type(loop)
        if loop is not None and key not in reported:
            reported.add(key)
            command = " ".join(sys.orig_argv)
            name = f"{type(loop).__module__}.{type(loop).__qualname__}"
            say(f"process {os.getpid()}, child of {os.getppid()}, runs {name} ({command:.80})")
        original(loop)

    # Loops take the function from one of these places, when they are imported or when they run.
    asyncio._set_running_loop = asyncio.events._set_running_loop = _set_running_loop


class AsyncioFinder:
    """Finds asyncio as the other finders do, and calls `asyncio_is_imported` when it has been executed."""

    def find_spec(self, name, path=None, target=None):
        if name != "asyncio":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        # The loader of a source file is an object for this file alone. A loader that is a class serves other modules too.
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    asyncio_is_imported()

            spec.loader.exec_module = exec_module
        return spec


if "asyncio" in sys.modules:
    asyncio_is_imported()
else:
    sys.meta_path.insert(0, AsyncioFinder())
