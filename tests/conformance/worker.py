"""Runs one module of `test.test_asyncio` in this process, with the loop under test in place of asyncio's own.

The runner starts it as a script, in one process for each module, so that a crash or a hang costs one test and not the
run. Each line of the report file is one JSON object: {"start": id}, {"end": id, "outcome": ..., ...} or {"done":
true}.
"""

import ctypes
import importlib
import json
import os
import signal
import sys
import time
import traceback
import unittest

if __name__ == "__main__":  # a test's own child process, which multiprocessing starts from this file, has its path from us
    from substitution import constructed, substitute  # this script's own directory comes first on the path

PACKAGE = "test.test_asyncio."
PR_SET_PDEATHSIG = 1


class Instead:
    """A module with some names replaced, for a test module that accesses them through it."""

    def __init__(self, module, **replaced):
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name):
        return getattr(self._module, name)


def substitute_base(module, cls):
    """test_base_events tests the half that loops inherit, on bare BaseEventLoop objects. This puts our loop there
    too.
    """
    import asyncio

    if issubclass(cls, asyncio.BaseEventLoop) and cls is not asyncio.unix_events._UnixSelectorEventLoop:
        module.base_events = Instead(asyncio.base_events, BaseEventLoop=cls)


def substitute_streams():
    """Puts wakeloop's streams wherever the tests of asyncio's look for those."""
    import asyncio

    import wakeloop

    for name in ("open_connection", "start_server", "open_unix_connection", "start_unix_server"):
        setattr(asyncio, name, getattr(wakeloop, name))
    for name in ("StreamReader", "StreamReaderProtocol", "StreamWriter"):
        setattr(asyncio, name, getattr(wakeloop, name))


class Report:
    """Appends lines to the report file. A child that a test forked must not write to it."""

    def __init__(self, path):
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = os.getpid()

    def write(self, **line):
        if os.getpid() == self._pid:
            os.write(self._fd, (json.dumps(line) + "\n").encode())


#: Added to the module's name in test names, for a second run of a module in another setting.
variant = ""


def short(test):
    module, _, rest = test.id().removeprefix(PACKAGE).partition(".")
    return f"{module}{variant}.{rest}"


class Recorder(unittest.TestResult):
    """Reports the first failure of each test, subtests included."""

    def __init__(self, report):
        super().__init__()
        self._report = report
        self._verdict = None
        self._running = None

    def startTest(self, test):
        super().startTest(test)
        self._verdict = None
        self._running = short(test)
        self._started = time.monotonic()
        self._report.write(start=self._running)

    def stopTest(self, test):
        super().stopTest(test)
        if self._running is None:  # Python 3.12.1 stops what it skips without having started it
            return
        outcome, detail = self._verdict or ("error", "the test ended without an outcome")
        self._report.write(
            end=short(test),
            outcome=outcome,
            detail=detail,
            seconds=round(time.monotonic() - self._started, 3),
            loops=dict(constructed),
        )
        constructed.clear()
        self._running = None

    def _judge(self, test, outcome, detail=""):
        if self._running is None:  # setUpClass, setUpModule
            self._report.write(end=short(test), outcome=outcome, detail=detail, seconds=0, loops={})
        elif self._verdict is None or self._verdict[0] in ("pass", "skip"):
            self._verdict = (outcome, detail)

    def addSuccess(self, test):
        if self._verdict is None:
            self._verdict = ("pass", "")

    def addExpectedFailure(self, test, err):
        self._judge(test, "pass")

    def addUnexpectedSuccess(self, test):
        self._judge(test, "fail", "unexpected success")

    def addSkip(self, test, reason):
        self._judge(test, "skip", reason)

    def addFailure(self, test, err):
        self._judge(test, "fail", self._tail(err))

    def addError(self, test, err):
        self._judge(test, "error", self._tail(err))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            outcome = "fail" if issubclass(err[0], test.failureException) else "error"
            self._judge(test, outcome, f"{subtest._subDescription()} {self._tail(err)}")

    @staticmethod
    def _tail(err):
        return "".join(traceback.format_exception(*err)).strip()[-1500:]


def flatten(suite):
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from flatten(item)
        else:
            yield item


def main():
    # Nothing ends a hanging test here once the runner was killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    instructions = json.load(sys.stdin)
    report = Report(instructions["report"])
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
    cls = substitute(instructions["loop"])
    global variant
    name, plus, _ = instructions["module"].partition("+")
    variant = instructions["module"][len(name) :]
    only, without = instructions.get("only"), set(instructions.get("without", ()))
    skip_classes = tuple(instructions.get("skip_classes", ()))
    try:
        module = importlib.import_module(PACKAGE + name)
        loaded = unittest.defaultTestLoader.loadTestsFromModule(module)
    except unittest.SkipTest as skip:
        report.write(end=instructions["module"], outcome="skip", detail=str(skip), seconds=0, loops={})
        report.write(done=True)
        return
    if plus and instructions["loop"] == "wakeloop":
        substitute_streams()
    if instructions["module"] == "test_base_events":
        substitute_base(module, cls)
    selected = unittest.TestSuite()
    for test in flatten(loaded):
        name = short(test)
        if name in without or (only is not None and name not in only) or type(test).__name__ in skip_classes:
            continue
        selected.addTest(test)
    selected.run(Recorder(report))
    report.write(done=True)


if __name__ == "__main__":
    main()
