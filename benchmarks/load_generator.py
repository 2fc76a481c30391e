"""The load generator, a Rust program (``benchmarks/load``): built when first needed, run once for each measurement."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from processes import ChildError

ROOT = Path(__file__).parent.parent
PROFILE = "load"
#: How long a run may take in addition to its window and warm-up: to connect, and to wait for the last answers.
TIMEOUT = 30.0


@cache
def program() -> Path:
    """Returns the program. cargo builds it unless it is up to date. Raises ChildError if that fails."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
    package = ["--package", "wakeloop-load", "--profile", PROFILE]
    command = ["cargo", "build", "--quiet", *package, "--target-dir", str(target)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        raise ChildError("the load generator is built with cargo, which is not installed") from None
    if done.returncode:
        raise ChildError(f"the load generator does not build: {done.stderr.strip()}")
    return target / PROFILE / "wakeloop-load"


def run(
    target: str,
    pid: int,
    *,
    cpu: int = -1,
    duration: float,
    warmup: float = 0.0,
    expect_body: bytes | None = None,
    lines: bool = False,
    accept: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """One run: what ``wakeloop-load --json`` reports, with the CPU time of process ``pid`` in ``watched_cpu_seconds``.

    ``options`` are further options of the program that have a value.
    """
    flags = {"lines": lines, "accept": accept, "expect-stdin": expect_body is not None}
    values = {"duration": duration, "warmup": warmup, "watch": pid, **options}
    if cpu >= 0:
        values["cpu"] = cpu
    command = [str(program()), target, "--json", *(f"--{name}" for name, is_set in flags.items() if is_set)]
    command += [word for name, value in values.items() for word in (f"--{name}", str(value))]
    timeout = TIMEOUT + duration + warmup
    # Clients sleep while they wait. One that spins, as the runtime of the load generator would, makes every loop faster.
    asleep = {**os.environ, "WAKELOOP_SPIN": "off"}
    try:
        done = subprocess.run(command, input=expect_body or b"", capture_output=True, timeout=timeout, env=asleep)
    except subprocess.TimeoutExpired:
        raise ChildError(f"the load generator has not ended after {timeout:.0f} s") from None
    if not done.stdout:
        raise ChildError(done.stderr.decode(errors="replace").partition("\n")[0] or f"status {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report
