"""The baseline servers of the benchmarks: each answers correctly, byte by byte, under the same load."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"
# One scenario for each server of benchmarks/baseline.
ONE_OF_EACH = (
    "tcp/proto/1k/c10",
    "tcp/proto/100k/c10",
    "tcp/accept+close/c10",
    "tcp/bulk/64k-writes/c4",
    "unix/proto/1k/c10",
    "udp/1k/c10",
    "tls/proto/1k/c10",
    "http/aiohttp",
)


@pytest.mark.skipif(shutil.which("cargo") is None, reason="rustc builds the baseline, and cargo the load")
@pytest.mark.skipif(sys.platform != "linux", reason="the baseline is an epoll loop")
@pytest.mark.timeout(180)
def test_every_baseline_server_answers_the_load_without_an_error(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    only = [word for name in ONE_OF_EACH for word in ("--only", name)]
    command = [sys.executable, str(RUN), "--quick", "--rounds", "1", "--loops", "baseline", "--out", str(results), *only]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(results.read_text())["rows"]
    assert {name: row["baseline"].get("fail") for name, row in rows.items()} == dict.fromkeys(ONE_OF_EACH)
    assert all(row["baseline"]["samples"][0]["rate"] > 0 for row in rows.values())
