"""Runs a piece of code repeatedly while allocations fail: a single one, or thousands in a row."""

import os
import signal
import sys

try:
    import _testcapi
except ImportError:
    _testcapi = None

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


# If CPython has no memory for the frame of a Python function, it fails without setting an exception.
CPYTHONS = ("SystemError error return without exception set", "SystemError <function ")


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
