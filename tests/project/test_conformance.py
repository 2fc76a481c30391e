"""The runner of CPython's own tests: what it runs again, and how long it believes asyncio's results."""

import os
import sys
import time

import pytest

from tests.conformance import __main__ as conformance
from tests.conformance import runner

pytestmark = pytest.mark.native


class Flaky(runner.Suite):
    """A suite with one test, which fails at first."""

    def __init__(self, failures, **options):
        super().__init__("made-up", limit_of=lambda name: 1, say=lambda line: self.said.append(line), **options)
        self.failures, self.runs, self.said = failures, 0, []

    def run_module(self, module, only=None):
        self.runs += 1
        return runner.ModuleRun({"test": runner.Result("pass" if self.runs > self.failures else "fail", "why")})


def test_a_failed_test_is_not_run_again_unless_retries_are_asked_for():
    suite = Flaky(1)
    (run,) = suite.run(["module"], 1).values()
    assert suite.runs == 1 and suite.retried == []
    assert run.results["test"].outcome == "fail" and not run.results["test"].flaky


def test_a_retry_is_printed_and_counted():
    suite = Flaky(2, retries=2)
    (run,) = suite.run(["module"], 1).values()
    assert suite.retried == ["test", "test"]
    assert "  module: runs test again, retry 1 of 2" in suite.said
    assert run.results["test"].flaky and run.results["test"].detail == "why"


def test_the_command_line_asks_for_no_retries(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["conformance", "--quick"])
    assert conformance.arguments().retries == 0


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    """Makes asyncio's results anew, or takes those in the cache; returns how many runs that took."""
    made = []

    def run(suite, modules, jobs):
        made.extend(modules)
        return {module: runner.ModuleRun({"test": runner.Result("pass")}) for module in modules}

    monkeypatch.setattr(runner.Suite, "run", run)

    def baseline():
        before = len(made)
        conformance.Baseline(tmp_path, (), "normal").runs(["test_events"], 1, fresh=False)
        return len(made) - before

    return baseline


def test_a_baseline_is_used_again_by_the_same_build_only(baseline, monkeypatch):
    pytest.importorskip("test.test_asyncio", reason="this Python carries no tests")
    assert [baseline(), baseline()] == [1, 0]
    build = conformance.build_of_interpreter()
    monkeypatch.setattr(conformance, "build_of_interpreter", lambda: (*build[:-1], build[-1] + 1))
    assert [baseline(), baseline()] == [1, 0]


def test_a_baseline_expires_after_a_week(baseline, tmp_path):
    pytest.importorskip("test.test_asyncio", reason="this Python carries no tests")
    assert baseline() == 1
    (file,) = tmp_path.glob("*/*.json")
    week_ago = time.time() - 7 * 24 * 3600
    os.utime(file, (week_ago + 60, week_ago + 60))
    assert baseline() == 0
    os.utime(file, (week_ago - 60, week_ago - 60))
    assert baseline() == 1
