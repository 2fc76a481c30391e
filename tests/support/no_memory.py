"""Runs a piece of code again and again while the interpreter finds no memory: one allocation fails, or very many."""

import os
import signal
import sys

try:
    import _testcapi
except ImportError:
    _testcapi = None

# A debug build ends itself over what `CPYTHONS` names below.
POSSIBLE = hasattr(_testcapi, "set_nomemory") and not hasattr(sys, "gettotalrefcount")
# All of an end, but not all there will ever be: an exception that CPython has no number of its place for is handled again
# and again until there is memory for it (`exception_unwind` in Python/ceval.c).
VERY_MANY = 10_000


def outcomes(prepare, body, most):
    """Gives `body` what `prepare` makes, in a child for each of the first `most` allocations; yields how each ended.

    The end is the name of an exception with its text, "nothing", or the number of the signal that ended the child. What
    the child wrote to its standard error comes with it.
    """
    for first in range(most):
        for last in (first + 1, first + VERY_MANY):
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
    # It may wait for what never comes: the step that would have brought it had no memory.
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


# Where CPython has no memory for the frame of a function in Python, it fails without an exception of its own.
CPYTHONS = ("SystemError error return without exception set", "SystemError <function ")


def failures(pieces, most):
    """What is no end for a piece of code: a signal, a panic, an error that says that something is broken inside."""
    for name, (prepare, body) in pieces.items():
        for place, (end, said) in outcomes(prepare, body, most):
            broken = end.startswith(("signal", "SystemError")) and not end.startswith(CPYTHONS)
            if broken or "Panic" in end or "panicked" in said:
                yield f"{name} at {place}: {end} {said}"


def main(pieces, most):
    found = list(failures(pieces, most))
    print(*found, sep="\n")
    sys.exit(bool(found))
