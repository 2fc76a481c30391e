"""Records which test executes which line of the package: a plugin of pytest, and a part of its child processes.

A line is written down when a test first executes it, so the record is whole even if the process is killed. Processes
are told nothing by their environment, because tests clear it: the record, and the name of the test that runs, lie
beside this file, in the copy of the tree that the run has for itself. PYTEST_DONT_REWRITE

Threads: all; the file is open for appending, and each record is one write.
"""

import fcntl
import functools
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(FOLDER))), "python", "wakeloop") + os.sep
RECORD = os.path.join(FOLDER, "lines")
CURRENT = os.path.join(FOLDER, "current-test")
#: Far from the descriptors that tests count.
DESCRIPTOR = 400


class Lines:
    """A tool of `sys.monitoring`, which needs Python 3.12."""

    def __init__(self):
        self.record = open_far(RECORD, os.O_WRONLY | os.O_APPEND)
        self.current = open_far(CURRENT, os.O_RDWR)
        self.monitoring = sys.monitoring
        self.tool = self.monitoring.COVERAGE_ID
        self.monitoring.use_tool_id(self.tool, "wakeloop mutants")
        events = self.monitoring.events
        self.monitoring.register_callback(self.tool, events.PY_START, self.at_start)
        self.monitoring.register_callback(self.tool, events.LINE, self.at_line)
        self.monitoring.set_events(self.tool, events.PY_START)

    def at_start(self, code, offset):
        if code.co_filename.startswith(PACKAGE):
            self.monitoring.set_local_events(self.tool, code, self.monitoring.events.LINE)
        return self.monitoring.DISABLE

    def at_line(self, code, line):
        try:
            test = os.pread(self.current, 1000, 0).decode().rstrip("\0")
            self.write(test, code.co_filename.removeprefix(PACKAGE), line)
        except OSError:
            pass  # a test has closed the descriptor
        return self.monitoring.DISABLE

    def write(self, *words):
        os.write(self.record, ("\t".join(map(str, words)) + "\n").encode())

    def begin_test(self, test):
        os.pwrite(self.current, test.encode().ljust(1000, b"\0"), 0)
        self.monitoring.restart_events()


def open_far(file, flags):
    opened = os.open(file, flags | os.O_CREAT | os.O_CLOEXEC)
    far = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, DESCRIPTOR)
    os.close(opened)
    return far


@functools.cache
def start():
    return Lines()


def pytest_runtest_setup(item):
    start().begin_test(item.nodeid)


def pytest_runtest_logreport(report):
    start().write("=" + report.nodeid, report.outcome, f"{report.duration:.4f}")
