"""examples/testing: each program finds its bug, and says what it has found."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from wakeloop import testing

pytestmark = [pytest.mark.native, pytest.mark.timeout(60)]

EXAMPLES = Path(__file__).parent.parent.parent / "examples" / "testing"
FOUND = {
    "clock": "167 runs in a week that has 168 hours",
    "order": "AssertionError: 80 are left of 100 - 10 - 20",
    "cancellation": "AssertionError: 1 of 2 connections are in the pool",
    "network": "bytes of 1000",
    "verdict": "- task 'heartbeat' (Client.beat) waiting",
}


@pytest.mark.parametrize("name", FOUND)
def test_an_example_finds_its_bug(name):
    line = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(line, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0 and done.stderr == ""
    assert FOUND[name] in done.stdout


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(FOUND)


def test_the_bugs_do_not_show_on_asyncio():
    import asyncio

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    asyncio.run(load("order").two_withdrawals())
    asyncio.run(load("cancellation").a_query())
    asyncio.run(load("verdict").one_request())
    network = load("network")
    testing.run(network.a_message, network=network.Network())
