"""A pytest plug-in that selects tests and reports them, one JSON object a line, as tests/conformance/worker.py does.

WAKELOOP_SUITE names a JSON file: "report" (the file to write), "only" and "without" (names of tests), "deselect"
(patterns), "patterns" (of what is wanted) and "silenced" (loggers). A test's name is its pytest id with memory
addresses replaced, so that two runs can be compared.
"""

import fnmatch
import functools
import gc
import json
import logging
import os
import re
import time

import substitution

ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def name_of(nodeid):
    return ADDRESS.sub("0x", nodeid)


class Report:
    def __init__(self, instructions):
        self._only = instructions["only"] and set(instructions["only"])
        self._without = set(instructions["without"])
        self._deselect = instructions["deselect"]
        self._patterns = instructions["patterns"] or ["*"]
        self._fd = os.open(instructions["report"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._pid = os.getpid()
        self._verdict = None
        self._started = 0.0

    def write(self, **line):
        if os.getpid() == self._pid:  # a child forked by a test has no business here
            os.write(self._fd, (json.dumps(line) + "\n").encode())

    def wanted(self, name):
        if name in self._without or (self._only is not None and name not in self._only):
            return False
        matches = functools.partial(fnmatch.fnmatchcase, name)
        return any(map(matches, self._patterns)) and not any(map(matches, self._deselect))

    def pytest_ignore_collect(self, collection_path, config):
        """A few tests are run again without importing all the other files."""
        if self._only is None or collection_path.is_dir() or collection_path.name == "__init__.py":
            return None
        files = {name.partition("::")[0] for name in self._only}
        return os.path.relpath(collection_path, config.rootpath) not in files or None

    def pytest_collection_modifyitems(self, config, items):
        dropped = [item for item in items if not self.wanted(name_of(item.nodeid))]
        items[:] = [item for item in items if self.wanted(name_of(item.nodeid))]
        config.hook.pytest_deselected(items=dropped)

    def pytest_collection_finish(self):
        """Some suites collect garbage after each test. Frozen, the imported objects are not traversed each time."""
        gc.collect()
        gc.freeze()

    def pytest_collectreport(self, report):
        if report.failed and self.wanted(name_of(report.nodeid)):
            self.end(name_of(report.nodeid), "error", report.longreprtext)

    def pytest_runtest_logstart(self, nodeid):
        self._verdict, self._started = None, time.monotonic()
        self.write(start=name_of(nodeid))

    def pytest_runtest_logreport(self, report):
        if report.failed:
            verdict = ("fail" if report.when == "call" else "error", report.longreprtext)
        elif report.skipped:
            verdict = ("skip", getattr(report, "wasxfail", "") or str(report.longrepr))
        elif hasattr(report, "wasxfail"):
            verdict = ("skip", "passes, and need not")
        elif report.when == "call":
            verdict = ("pass", "")
        else:
            return
        # The first thing that went wrong decides, be it in a subtest or in the teardown of what had passed.
        if self._verdict is None or self._verdict[0] in ("pass", "skip"):
            self._verdict = verdict

    def pytest_runtest_logfinish(self, nodeid):
        outcome, detail = self._verdict or ("error", "the test ended without an outcome")
        self.end(name_of(nodeid), outcome, detail, time.monotonic() - self._started)

    def end(self, name, outcome, detail, seconds=0.0):
        loops = dict(substitution.constructed)
        substitution.constructed.clear()
        self.write(end=name, outcome=outcome, detail=detail.strip()[-3000:], seconds=round(seconds, 3), loops=loops)

    def pytest_sessionfinish(self):
        self.write(done=True)


def pytest_configure(config):
    with open(os.environ["WAKELOOP_SUITE"]) as file:
        instructions = json.load(file)
    for name in instructions["silenced"]:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    config.pluginmanager.register(Report(instructions))
