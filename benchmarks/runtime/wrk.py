"""The HTTP server of `examples/http_hello` under wrk, beside the same program on tokio and smol.

    python benchmarks/runtime/wrk.py [--rounds 5] [--seconds 5] [--json FILE]

The program is the benchmark's binary `server`, as last built for release. The servers take turns. The report has medians
over the rounds, and for the rate the median of the ratios within a round. Without wrk, it measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

SERVERS = ("wakeloop", "tokio", "smol")
CONNECTIONS, THREADS = 1000, 2
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


def built() -> str:
    manifest = str(Path(__file__).with_name("Cargo.toml"))
    command = ["cargo", "metadata", "--no-deps", "--format-version=1", "--manifest-path", manifest]
    metadata = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return str(Path(metadata["target_directory"], "release", "server"))


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([a-z]+)", text).groups()  # type: ignore[union-attr]
    return float(number) * UNITS[unit]


def measure(server: str, name: str, length: int) -> dict[str, float]:
    """One run of wrk against one server that is made for it."""
    child = subprocess.Popen([server, name, "http"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin and child.stdout
    try:
        port = int(child.stdout.readline())
        before = cpu_seconds(child.pid)
        command = ["wrk", "--latency", f"-c{CONNECTIONS}", f"-t{THREADS}", f"-d{length}s", f"http://127.0.0.1:{port}/"]
        text = subprocess.run(command, check=True, capture_output=True, text=True, timeout=length + 60).stdout
        cpu = cpu_seconds(child.pid) - before
    finally:
        child.stdin.close()
        child.wait(10)
    if "Non-2xx" in text or "Socket errors" in text:
        sys.exit(f"{name}: {text}")
    requests = int(re.search(r"(\d+) requests in", text)[1])  # type: ignore[index]
    return {
        "rate": float(re.search(r"Requests/sec:\s*([\d.]+)", text)[1]),  # type: ignore[index]
        "mean": seconds(re.search(r"Latency\s+(\S+)", text)[1]),  # type: ignore[index]
        "p99": seconds(re.search(r"^ +99%\s+(\S+)", text, re.MULTILINE)[1]),  # type: ignore[index]
        "cpu": cpu / requests,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if shutil.which("wrk") is None:
        print("skipped: wrk is not installed (apt-get install wrk)")
        return 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = built()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in SERVERS}
    for number in range(options.rounds):
        for turn in range(len(SERVERS)):
            name = SERVERS[(number + turn) % len(SERVERS)]
            rounds[name].append(measure(server, name, options.seconds))
    print(f"wrk -c {CONNECTIONS} -t {THREADS}: medians of {options.rounds} rounds of {options.seconds} s")
    print(f"{'':<10} {'requests/s':>11} {'ratio':>6} {'mean':>9} {'p99':>9} {'CPU/request':>12}")
    rows = []
    for name, runs in rounds.items():
        row = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        row["ratio"] = statistics.median(o["rate"] / t["rate"] for o, t in zip(rounds[SERVERS[0]], runs))
        print(
            f"{name:<10} {row['rate']:>11,.0f} {row['ratio']:>6.2f} {row['mean'] * 1e3:>6.2f} ms"
            f" {row['p99'] * 1e3:>6.1f} ms {row['cpu'] * 1e6:>9.2f} us"
        )
        rows.append({"server": name, "rounds": options.rounds, **row})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
