"""Runs a piece of code repeatedly while allocations fail: a single one, or thousands in a row."""

import asyncio
import logging
import os
import signal
import sys

try:
    import _testcapi
except ImportError:
    _testcapi = None
try:
    import wakeloop
except ImportError:
    wakeloop = None

# A debug build aborts over the failure that is described below at `CPYTHONS`.
POSSIBLE = hasattr(_testcapi, "set_nomemory") and not hasattr(sys, "gettotalrefcount")
# This is nearly all of them. Not all may fail: CPython handles an exception again and again until it has memory for a
# line number (`exception_unwind` in Python/ceval.c).
VERY_MANY = 10_000
ONE = 1


def outcomes(prepare, body, most, lengths=(ONE, VERY_MANY)):
    """Runs `body` with the result of `prepare`, in a child process for each of the first `most` allocations, which
    fails, and so do those behind it, as many as each of `lengths` says. Yields how each child ended.

    The end is the name of an exception with its text, "nothing", or the number of the signal that ended the child. It
    comes with what the child wrote to its standard error.
    """
    for first in range(most):
        for last in (first + length for length in lengths):
            yield (first, last), _child(prepare, body, first, last)


def _child(prepare, body, first, last):
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.dup2(writer, 2)
        _run(prepare, body, first, last)
    os.close(writer)
    with open(reader, "rb") as text:
        said = text.read().decode(errors="replace")
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}", said
    said, _, end = said.rpartition("\n")
    return end, said


def _run(prepare, body, first, last):
    # The child may hang: the step that would have continued had no memory.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 3)
    end = "nothing"
    try:
        given = prepare()
        try:
            _testcapi.set_nomemory(first, last)
            body(given)
        finally:
            _testcapi.remove_mem_hooks()
    except BaseException as error:
        end = f"{type(error).__name__} {error}".replace("\n", " ")
    os.write(2, f"\n{end}".encode(errors="replace"))
    os._exit(0)


class Operations(logging.Handler):
    """Makes the pieces that run an operation on a loop, and then make sure that the loop still works.

    CPython itself may lose the step of a task that has no memory, the job of an executor, and on Python 3.11 the
    callback of a future. It reports that, and the operation that waits for it is given up.
    """

    def __init__(self, loop):
        super().__init__()
        self.loop = loop
        self.reported = False
        loop.set_exception_handler(lambda loop, context: self._report(context.get("exception")))
        sys.unraisablehook = lambda unraisable: self._report(unraisable.exc_value)
        executors = logging.getLogger("concurrent.futures")
        executors.addHandler(self)
        executors.propagate = False

    def emit(self, record):
        self._report(record.exc_info[1])

    def _report(self, error):
        if isinstance(error, MemoryError):
            self.reported = True
            self.loop.call_soon_threadsafe(self.loop.stop)

    def piece(self, prepare, call):
        """The coroutine function `call` gets the result of the coroutine function `prepare`."""
        return lambda: self.loop.run_until_complete(prepare()), lambda given: self._body(call, given)

    def _body(self, call, given):
        try:
            self.loop.run_until_complete(call(given))
        except RuntimeError:
            if not self.reported:
                raise
        finally:
            _testcapi.remove_mem_hooks()
            self.loop.run_until_complete(_works())


async def _works():
    await asyncio.sleep(0.0001)
    await wakeloop.spawn_blocking(int)


CPYTHONS = (
    # CPython has no memory for the frame of a Python function, and fails without setting an exception.
    "SystemError error return without exception set",
    "SystemError <function ",
    # CPython 3.13 goes on with a task's step for whose entry in the dict of current tasks it has no memory.
    "SystemError <class 'StopIteration'> returned a result with an exception set",
)


def failures(pieces, most, *lengths):
    """Returns the ends that are failures: a signal, a panic, or an error that shows that something is broken inside."""
    for name, (prepare, body) in pieces.items():
        for place, (end, said) in outcomes(prepare, body, most, *lengths):
            broken = end.startswith(("signal", "SystemError")) and not end.startswith(CPYTHONS)
            if broken or "Panic" in end or "panicked" in said:
                yield f"{name} at {place}: {end} {said}"


def main(pieces, most, *lengths):
    found = list(failures(pieces, most, *([lengths] if lengths else [])))
    print(*found, sep="\n")
    sys.exit(bool(found))
