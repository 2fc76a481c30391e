"""The floor: what the kernel and the least possible program cost, for the scenarios that echo over TCP.

A server of an epoll set, a buffer and no Python at all (``floor.rs``), built by rustc when it is first asked for.
It stands in the results as one more "loop"; no loop can be cheaper, so the distance to it is what is left to gain.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

FLOOR = "floor"
# It sends back whatever it gets, so it serves each scenario whose answer is the request.
FLOOR_SCENARIOS = frozenset(
    [f"tcp/proto/1k/c{connections}" for connections in (1, 10, 100)]
    + ["tcp/proto/10k/c10", "tcp/proto/100k/c10", "tcp/streams/1k/c10", "tcp/native-streams/1k/c10"]
)
SOURCE = Path(__file__).with_name("floor.rs")


@cache
def floor_program() -> Path:
    """The built server; ImportError (as for a loop that is not installed) where it cannot be built."""
    if shutil.which("rustc") is None:
        raise ImportError("there is no rustc to build it with")
    built = Path(tempfile.gettempdir()) / f"wakeloop-floor-{SOURCE.stat().st_mtime_ns}"
    if not built.exists():
        fresh = built.with_suffix(".new")
        done = subprocess.run(["rustc", "--edition=2024", "-O", "-o", fresh, SOURCE], capture_output=True, text=True)
        if done.returncode:
            raise ImportError(f"it does not build: {done.stderr.strip()}")
        fresh.rename(built)
    return built
