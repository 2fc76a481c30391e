"""The stress of many loops, for some seconds. `make stress-loops` runs it for ten minutes."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("wakeloop", reason="its primitives are a part of the work")


@pytest.mark.timeout(240)
def test_64_loops_in_64_threads_lose_nothing(loop_name):
    """In a process of its own, because loops end in the middle of their work, and leave sockets to the collector."""
    command = [sys.executable, "-m", "tests.many_loops", "--minutes", "0.08", "--seed", "1", "--loop", loop_name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, f"\n{done.stdout}{done.stderr}"
