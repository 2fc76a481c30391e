"""The fixtures of the tests themselves."""

import pathlib
import random
import subprocess
import sys

DRAWN = []


def test_random_numbers_are_the_same_in_every_run(request):
    DRAWN.append(random.random())
    assert DRAWN[0] == random.Random(request.node.nodeid).random()


def test_another_test_draws_other_numbers():
    assert random.random() not in DRAWN


def test_a_fixture_that_hangs_behind_a_test_that_has_hung_is_ended(tmp_path):
    (tmp_path / "test_hangs.py").write_text(
        """
import time
import pytest

@pytest.fixture
def hangs():
    yield
    time.sleep(60)

@pytest.mark.timeout(0.5)
def test_hangs(hangs):
    time.sleep(60)
"""
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += [str(tmp_path)]
    folder = pathlib.Path(__file__).parents[2]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "in hangs" in done.stderr, done
