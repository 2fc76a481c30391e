"""Ends what a failing test started. Each test has a mark in its environment, which its child processes inherit, and
theirs: so a process is found that its parent has left behind.
"""

import contextlib
import itertools
import os
import pathlib
import signal

from .leaks import children

VARIABLE = "WAKELOOP_TEST_PROCESSES"

_numbers = itertools.count(1)


def mark():
    """Marks the processes that start from now on; returns the mark."""
    os.environ[VARIABLE] = value = f"{os.getpid()}.{next(_numbers)}"
    return value


def marked(value):
    """Returns the ids of all processes that have the mark, without this one."""
    wanted, found = f"{VARIABLE}={value}".encode(), set()
    for directory in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.add(int(directory.name))
    return found - {os.getpid()}


def end(value, kept):
    """Ends the processes that have the mark, and those child processes that are not in `kept`."""
    own = children() - kept
    for pid in own | marked(value):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in own:
        with contextlib.suppress(ChildProcessError):  # a watcher or a Popen was faster
            os.waitpid(pid, 0)
