"""The pytest plugin of wakeloop.testing: alone, with pytest-asyncio and with anyio; and unittest."""

import asyncio
import functools
import importlib.util
import io
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import pytest

from wakeloop import testing
from wakeloop.testing.unittest import IsolatedAsyncioTestCase

pytestmark = [pytest.mark.native, pytest.mark.timeout(90)]

ROOT = Path(__file__).parent.parent.parent
PLATLIB = ROOT / "python" / "startup" / "platlib"


@pytest.fixture
def run_pytest(tmp_path):
    """Runs pytest on a file with this text, and returns what it prints."""

    def run_pytest(text, *options):
        (tmp_path / "test_it.py").write_text(text)
        path = [str(PLATLIB), str(ROOT / "python"), *sys.path]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "_wakeloop_pytest", *options]
        line = [*line, "test_it.py"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, timeout=60, env=variables)
        return done.stdout + done.stderr

    return run_pytest


ALONE = """
import asyncio, contextlib, functools, pytest
from wakeloop import testing
from wakeloop.testing.network import Network

@pytest.fixture
def delay():
    return 86400

@pytest.mark.wakeloop
async def test_sleeps_for_a_day(delay):
    await asyncio.sleep(delay)
    assert type(asyncio.get_running_loop()) is testing.EventLoop

@pytest.mark.wakeloop(seed=5, clock="frozen")
async def test_options():
    loop = asyncio.get_running_loop()
    assert loop.schedule.seed == 5 and loop.clock.mode == "frozen"

@pytest.mark.wakeloop(clock="frozen")
async def test_clock(wakeloop_loop, wakeloop_clock):
    assert wakeloop_loop is asyncio.get_running_loop()
    task = asyncio.create_task(asyncio.sleep(10))
    for _ in range(20):
        await asyncio.sleep(0)
    wakeloop_clock.advance(10)
    await task

@pytest.mark.wakeloop(network=functools.partial(Network, latency=0.5))
async def test_network(wakeloop_network):
    wakeloop_network.host("server", "10.0.0.1")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("server", 80)
    assert asyncio.get_running_loop().time() == 1

@pytest.mark.wakeloop
class TestClass:
    @pytest.mark.wakeloop(seed=1)
    async def test_the_closest_marker_counts(self):
        assert asyncio.get_running_loop().schedule.seed == 1

@pytest.mark.wakeloop
def test_factory(wakeloop_loop_factory):
    with contextlib.closing(wakeloop_loop_factory()) as loop:
        loop.run_until_complete(asyncio.sleep(1000))

def test_plain():
    pass
"""


def test_the_plugin_runs_marked_coroutine_functions(run_pytest):
    assert "7 passed" in run_pytest(ALONE)


def test_a_seed_of_the_marker_is_kept_and_the_others_run_with_each_seed(run_pytest):
    said = run_pytest(ALONE, "--wakeloop-seeds=3", "-rp")
    assert "15 passed" in said
    assert said.count("test_sleeps_for_a_day[seed") == 3 and "::test_options\n" in said


FAILS = """
import asyncio, pytest

@pytest.mark.wakeloop
@pytest.mark.parametrize("number", [4])
async def test_order(number):
    seen = []
    async def note(number):
        seen.append(number)
    await asyncio.gather(*map(note, range(number)))
    assert seen == list(range(number))
"""


def test_a_failure_says_how_to_run_it_again(run_pytest):
    assert "1 passed" in run_pytest(FAILS)
    said = run_pytest(FAILS, "--wakeloop-seeds=4")
    again = re.findall(r"to run it again: pytest '(.*)' (--wakeloop-seed=\d+)", said)
    assert again
    nodeid, option = again[0]
    once_more = run_pytest(FAILS, nodeid, option)
    assert "1 failed" in once_more and said.count("assert [") >= 1
    one, two = (re.search(r"assert (\[[\d, ]+\]) == ", text)[1] for text in (said, once_more))
    assert one == two


def test_explore_searches_and_shows_the_steps(run_pytest):
    said = run_pytest(FAILS.replace("mark.wakeloop", "mark.wakeloop(explore=100)", 1))
    assert "1 failed" in said and "1 reordering, shrunk from" in said
    assert re.search(r"\* +\d+ +0.000000  Task-\d: test_order.<locals>.note .*<- asyncio runs Task-\d first", said)


def test_what_explore_finds_is_run_again_by_its_seed(run_pytest):
    text = FAILS.replace("mark.wakeloop", "mark.wakeloop(explore=100)", 1)
    said = run_pytest(text)
    [(nodeid, option)] = re.findall(r"^to run it again: pytest '(.*)' (--wakeloop-seed=\d+)$", said, re.MULTILINE)
    once_more = run_pytest(text, option)
    assert "1 failed" in once_more and "shrunk" not in once_more
    assert re.search(rf"^to run it again: pytest '.*' {option}$", once_more, re.MULTILINE)


@pytest.mark.parametrize("marker", ["wakeloop", "wakeloop(seed=5)", "wakeloop(clock='frozen')"])
def test_every_failing_run_ends_with_the_line_that_runs_it_again(run_pytest, marker):
    said = run_pytest(f"import pytest\n@pytest.mark.{marker}\nasync def test_it():\n    assert False\n")
    [failure] = re.findall(r"_ test_it _+\n(.*?)=====", said, re.DOTALL)
    assert failure.endswith("\nto run it again: pytest 'test_it.py::test_it'\n")


def test_a_verdict_is_shown_without_the_frames_of_the_loop(run_pytest):
    text = "import asyncio, pytest\n"
    text += "@pytest.mark.wakeloop\nasync def test_waits():\n    await asyncio.Event().wait()\n"
    said = run_pytest(text)
    [failure] = re.findall(r"_ test_waits _+\n(.*?)=====", said, re.DOTALL)
    assert len(failure.splitlines()) <= 12 and "_run_once" not in failure
    assert "E   wakeloop.testing.Deadlock: deadlock at 0 s" in failure
    assert 'test_it.py", line 4, in test_waits' in failure
    assert "_run_once" in run_pytest(text, "--full-trace")
    # An error of the test keeps its own frames.
    text = "import asyncio, pytest\nasync def helper():\n    1 / 0\n"
    text += "@pytest.mark.wakeloop\nasync def test_fails():\n    await asyncio.wait_for(helper(), 1)\n"
    said = run_pytest(text)
    assert ">       await asyncio.wait_for(helper(), 1)" in said and "1 / 0" in said


PLAIN = "import pytest\n@pytest.mark.wakeloop\ndef test_it({}): pass\n"


def test_a_plain_function_with_the_marker_fails(run_pytest):
    said = run_pytest(PLAIN.format(""))
    assert "1 failed" in said and "test_it has the marker wakeloop, and is no async def" in said
    assert "_wakeloop_pytest.py" not in said
    for fixture in ("wakeloop_loop", "wakeloop_loop_factory", "wakeloop_clock"):
        assert "1 passed" in run_pytest(PLAIN.format(fixture))


def test_verdicts_fail_a_test(run_pytest):
    text = "import asyncio, pytest\n"
    text += "@pytest.mark.wakeloop\nasync def test_waits():\n    await asyncio.Event().wait()\n"
    text += "@pytest.mark.wakeloop\nasync def test_leaves():\n    asyncio.create_task(asyncio.sleep(1))\n"
    text += "@pytest.mark.wakeloop(check=False)\nasync def test_may():\n    asyncio.create_task(asyncio.sleep(1))\n"
    said = run_pytest(text)
    assert "2 failed, 1 passed" in said and "Deadlock" in said and "LeftBehind" in said


@pytest.mark.parametrize(
    ("text", "option", "expected"),
    [
        ("@pytest.mark.wakeloop(speed=1)\nasync def test(): pass", [], "no such arguments: speed"),
        ("@pytest.mark.wakeloop(3)\nasync def test(): pass", [], "no such arguments: 3"),
        ("def test(wakeloop_loop): pass", [], "wakeloop_loop is for tests with the marker"),
        ("@pytest.mark.wakeloop(explore=3)\nasync def test(wakeloop_loop): pass", [], "for tests that run once"),
        ("@pytest.mark.wakeloop\nasync def test(wakeloop_network): pass", [], "wakeloop_network needs a network"),
        ("def test(): pass", ["--wakeloop-seeds=0"], "--wakeloop-seeds: '0' is no whole number from 1 on"),
        ("def test(): pass", ["--wakeloop-seed=x"], "--wakeloop-seed: 'x' is no whole number from 0 on"),
        ("def test(): pass", ["--wakeloop-seed=-1"], "--wakeloop-seed: '-1' is no whole number from 0 on"),
        ("def test(): pass", ["--wakeloop-seed=1", "--wakeloop-seeds=2"], "not both"),
    ],
)
def test_a_wrong_marker_or_option_is_refused(run_pytest, text, option, expected):
    said = run_pytest(f"import pytest\n{text}\n", *option)
    assert expected in said and "1 passed" not in said


def test_the_plugin_changes_nothing_without_a_marker(run_pytest):
    # pytest loads pdb, which itself imports asyncio since Python 3.14.
    names = ["wakeloop", "wakeloop.testing", *(["asyncio"] if sys.version_info < (3, 14) else [])]
    text = f"import sys\ndef test_nothing():\n    assert not sys.modules.keys() & {set(names)}\n"
    said = run_pytest(text, "--wakeloop-seeds=5")
    assert "1 passed" in said


HYPOTHESIS = """
import asyncio, pytest
from hypothesis import given, settings, strategies

@pytest.mark.wakeloop
@settings(max_examples=10, database=None)
@given(strategies.integers(1, 100000))
async def test_sleeps(seconds):
    await asyncio.sleep(seconds)
    assert asyncio.get_running_loop().time() == seconds
"""


def test_hypothesis_runs_each_example_on_a_loop_of_its_own(run_pytest):
    need("hypothesis")
    assert "1 passed" in run_pytest(HYPOTHESIS)


# -- with others -----------------------------------------------------------------------------------------------------


def need(name):
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed: pip install --group test")


OTHERS = """
import asyncio, pytest
from wakeloop import testing

@pytest.FIXTURE
async def start():
    await asyncio.sleep(86400)
    return asyncio.get_running_loop()

@pytest.mark.MARK
async def test_before():
    assert type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop

@pytest.mark.MARK
@pytest.mark.wakeloop(clock="auto")
async def test_ours(start):
    assert start is asyncio.get_running_loop() and type(start) is testing.EventLoop
    await asyncio.sleep(86400)
    assert start.schedule.seed != 2

@pytest.mark.MARK
async def test_after():
    assert type(asyncio.get_running_loop()) is asyncio.SelectorEventLoop
"""

PLUGINS = [
    ("pytest_asyncio", "asyncio", ["-p", "asyncio", "-o", "asyncio_default_fixture_loop_scope=function"]),
    ("anyio", "anyio", ["-p", "anyio", "-k", "not trio"]),
]


@pytest.mark.parametrize(("library", "mark", "options"), PLUGINS)
def test_marked_tests_of_other_plugins_run_on_our_loop_and_the_others_as_before(run_pytest, library, mark, options):
    need(library)
    text = OTHERS.replace("MARK", mark).replace("FIXTURE", "fixture")
    if mark == "asyncio":
        text = text.replace("pytest.fixture", "pytest_asyncio.fixture")
        text = text.replace("import asyncio", "import asyncio, pytest_asyncio", 1)
    assert "3 passed" in run_pytest(text, *options)
    said = run_pytest(text, *options, "--wakeloop-seeds=3")
    assert "4 passed" in said.replace("1 failed, ", "") and "test_ours[seed2]" in said
    assert "test_ours[seed2]' --wakeloop-seed=2" in said


# -- unittest --------------------------------------------------------------------------------------------------------


def run_case(case):
    return unittest.TextTestRunner(stream=io.StringIO()).run(unittest.defaultTestLoader.loadTestsFromTestCase(case))


def test_unittest_runs_each_test_on_a_testing_loop():
    class Case(IsolatedAsyncioTestCase):
        loop_options = {"seed": 3}

        async def asyncSetUp(self):
            self.start = asyncio.get_running_loop().time()

        async def test_one(self):
            await asyncio.sleep(86400)
            loop = asyncio.get_running_loop()
            assert loop.time() - self.start == 86400 and loop.schedule.seed == 3
            assert type(loop) is testing.EventLoop

        async def test_two(self):
            self.fail("to be seen")

    done = run_case(Case)
    assert done.testsRun == 2 and len(done.failures) == 1 and not done.errors


@pytest.mark.skipif(sys.version_info < (3, 13), reason="unittest takes a factory from Python 3.13 on")
def test_unittest_takes_a_loop_factory():
    class Case(unittest.IsolatedAsyncioTestCase):
        loop_factory = staticmethod(functools.partial(testing.EventLoop, seed=3))

        async def test_one(self):
            await asyncio.sleep(86400)

    assert run_case(Case).wasSuccessful()
