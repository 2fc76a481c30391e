"""The runner of other libraries' suites, on a made-up library."""

import collections
import os
import pathlib
import signal
import subprocess
import sys
import sysconfig
import time

import pytest

from tests.conformance import comparison, runner, substitution
from tests.suites import environment, libraries, suite
from tests.suites.libraries import HERE

pytestmark = pytest.mark.timeout(300)

OURS = "wakeloop.EventLoop"

TESTS = """
import asyncio, ctypes, os, pathlib, sys, time
import pytest

async def kind():
    return type(asyncio.get_running_loop()).__module__.partition(".")[0]

def on_ours():
    return asyncio.run(kind()) == "wakeloop"

def test_good():
    assert on_ours() == (os.environ["WAKELOOP_SUITE_LOOP"] == "wakeloop")

def test_bad():
    assert not on_ours()

def test_crashes():
    if on_ours():
        ctypes.string_at(0)

def test_hangs():
    if on_ours():
        time.sleep(1000)

def test_skips():
    if on_ours():
        pytest.skip("not here")

def test_bad_everywhere():
    on_ours()
    assert False

def test_flaky():
    mark = pathlib.Path(os.environ["MARKS"], "flaky")
    if on_ours() and not mark.exists():
        mark.touch()
        assert False

order = []

def test_goes_first():
    order.append(1)

def test_bad_when_alone():
    assert order and not on_ours()

def test_excused():
    assert not on_ours()

def test_left_out():
    os._exit(1)

def test_bad_teardown(request):
    request.addfinalizer(lambda: 1 / 0 if on_ours() else None)

class Thing:
    pass

@pytest.mark.parametrize("thing", [Thing()], ids=repr)
def test_address_in_its_name(thing):
    on_ours()
"""


class Environment:
    """Uses this interpreter with the hook on its path, and the tests in the cache directory."""

    python = sys.executable

    def __init__(self, library, cache):
        self.tests = cache

    def make(self, say):
        pass

    def variables(self, environment):
        paths = [str(HERE / "hook"), str(pathlib.Path(substitution.__file__).parent), str(HERE.parents[1] / "python")]
        (self.tests / "sitecustomize.py").write_text("import suites_hook\n")
        return environment | {"MARKS": str(self.tests), "PYTHONPATH": os.pathsep.join([str(self.tests), *paths])}


def judged(directory, tests, **fields):
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_library.py").write_text(tests)
    library = libraries.Library(name="made_up", version="1", arguments=["test_library.py"], **fields)
    judge = suite.Judge("wakeloop", OURS, directory, say=lambda line: None, environment=Environment)
    return judge.judge(library)


def test_only_a_result_that_is_worse_than_on_asyncio_is_a_regression(tmp_path):
    verdict = judged(
        tmp_path,
        TESTS,
        limit=6,
        deselect=["*::test_left_out"],
        exceptions=[comparison.Exemption("*::test_excused", "for this test", ())],
    )
    regressions = {name.partition("::")[2]: result for name, result in verdict.found.regressions.items()}
    assert {name: result.outcome for name, result in regressions.items()} == {
        "test_bad": "fail",
        "test_crashes": "crash",
        "test_hangs": "timeout",
        "test_skips": "skip",
        "test_bad_teardown": "error",
    }
    assert [name.partition("::")[2] for name in verdict.flaky] == ["test_flaky", "test_bad_when_alone"]
    assert [name.partition("::")[2] for name in verdict.found.accepted] == ["test_excused"]
    assert "test_library.py::test_left_out" not in verdict.run.results
    assert not verdict.good(OURS)
    # Twice on ours, and then on asyncio, unless it passes before.
    again = collections.Counter(name.partition("::")[2] for name in verdict.retried)
    thrice = ["test_bad", "test_crashes", "test_hangs", "test_skips", "test_bad_teardown", "test_bad_when_alone"]
    assert again == dict.fromkeys(thrice, 3) | {"test_flaky": 1}


def test_a_suite_that_never_makes_our_loop_is_not_good(tmp_path):
    verdict = judged(tmp_path, "def test_nothing():\n    pass\n")
    assert not verdict.found.regressions and not verdict.good(OURS)
    verdict = judged(tmp_path, "import asyncio\n\ndef test_one():\n    asyncio.new_event_loop().close()\n")
    assert verdict.good(OURS) and verdict.run.loops[OURS] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's word to a process when its parent ends")
def test_a_worker_ends_with_its_runner_even_if_that_is_killed(tmp_path):
    program = f"""
import os, signal, sys, time
from tests.conformance import runner
say = "import os, time; print(os.getpid(), file=open('pid.new', 'w')); os.rename('pid.new', 'pid'); time.sleep(1000)"
launch = lambda report: runner.Launch([sys.executable, "-c", say], {str(tmp_path)!r}, dict(os.environ))
worker = runner.Worker({str(tmp_path)!r}, launch, lambda test: 1000)
while not os.path.exists({str(tmp_path / "pid")!r}):
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = pathlib.Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 20
    while os.path.exists(f"/proc/{pid}/stat") and pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline, "the worker lives on"
        time.sleep(0.01)


def test_a_pause_of_the_whole_machine_does_not_count_against_a_tests_time_limit(tmp_path, monkeypatch):
    class StandsStill(runner.Worker):
        """Three seconds pass between two looks, in which the worker was stopped too."""

        def follow(self):
            for number, line in enumerate(super().follow()):
                yield line
                if number == 0:
                    self._process.send_signal(signal.SIGSTOP)
                    time.sleep(3)
                    self._process.send_signal(signal.SIGCONT)

    monkeypatch.setattr(runner, "STOOD_STILL", 2)
    program = """
import sys, time
with open(sys.argv[1], "a", buffering=1) as report:
    print('{"start": "one"}', file=report)
    time.sleep(1)
    print('{"done": true}', file=report)
"""
    launch = lambda report: runner.Launch([sys.executable, "-c", program, report], str(tmp_path), dict(os.environ))
    worker = StandsStill(str(tmp_path), launch, lambda test: 2)
    try:
        assert [list(line) for line in worker.follow()] == [["start"], ["done"]]
        assert not worker.timed_out
    finally:
        worker.close()


def test_each_python_gets_an_environment_of_its_own(tmp_path, monkeypatch):
    library = next(iter(libraries.read_all().values()))
    directories = set()
    for version in ("3.13", "3.15", "3.15"):
        monkeypatch.setattr(sysconfig, "get_python_version", lambda: version)
        directories.add(environment.Environment(library, tmp_path).python)
    assert len(directories) == 2


def test_every_description_is_complete():
    known = libraries.read_all()
    assert {"aiohttp", "anyio", "asyncpg", "asyncssh", "dask", "httpx", "redis", "SQLAlchemy", "tornado"} <= set(known)
    for library in known.values():
        assert library.version and library.arguments
        assert all(exemption.reason for exemption in library.exceptions)


def test_a_command_that_takes_too_long_is_a_failure_and_is_ended_with_its_children(tmp_path):
    """A library without a wheel may compile for longer than the limit. Then it is left out, and the others run."""
    pids = tmp_path / "pids"
    script = "import os, subprocess, sys; child = subprocess.Popen(['sleep', '1000']); "
    script += "open(sys.argv[1], 'w').write(str(child.pid)); child.wait()"
    with pytest.raises(environment.Failed, match="took longer than 2 s"):
        environment.run(sys.executable, "-c", script, str(pids), limit=2)
    child = pathlib.Path("/proc", pids.read_text())
    deadline = time.monotonic() + 20
    # Without a parent that waits for it, the child stays a zombie for as long as init likes.
    while child.exists() and "\nState:\tZ" not in (child / "status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
