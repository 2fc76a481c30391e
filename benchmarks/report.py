"""Results: the table on the terminal, the JSON file, and the ratios in both.

A *sample* is one round of one loop on one scenario: ``cpu_us`` per operation, ``rate`` per second, and for servers
``p50_us`` and ``p99_us``. Loops are compared by one of these, the scenario's *metric*; the default is the CPU time. The
ratio of a loop is the reference's value over its own, round by round: one round of all loops takes a short time, in which
the machine does not change much.
"""

from __future__ import annotations

import json
import os
import platform
import re
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any, TypedDict

from loops import REFERENCE, version


class Row(TypedDict, total=False):
    """One loop on one scenario: its samples in the order of the rounds, or why there are none."""

    samples: list[dict[str, float]]
    fail: str
    metric: str


Rows = dict[str, dict[str, Row]]


def median_of(row: Row, key: str) -> float | None:
    values = [sample[key] for sample in row.get("samples", []) if sample.get(key) is not None]
    return statistics.median(values) if values else None


def ratios(row: Row, reference: Row) -> list[float]:
    """The ratios round by round. Above 1 the row is cheaper than the reference."""
    pairs = zip(row.get("samples", []), reference.get("samples", []))
    metric = row.get("metric", "cpu_us")
    return [theirs[metric] / ours[metric] for ours, theirs in pairs if ours[metric]]


def cell(row: Row | None, reference: Row | None) -> str:
    if row is None:
        return "-"
    if "fail" in row:
        return "FAIL"
    text = f"{median_of(row, row.get('metric', 'cpu_us')):.2f}"
    if reference and reference is not row and (spread := ratios(row, reference)):
        text += f"  {statistics.median(spread):.2f}x [{min(spread):.2f}-{max(spread):.2f}]"
    return text


def line(name: str, row: dict[str, Row], loops: list[str], width: int) -> str:
    """One scenario: CPU microseconds per operation of each loop, and the ratio to the reference."""
    reference = row.get(REFERENCE)
    return f"{name:<{width}}" + "".join(f" {cell(row.get(loop), reference):>27}" for loop in loops)


def heading(loops: list[str], width: int) -> str:
    return f"{'CPU us per operation':<{width}}" + "".join(f" {loop:>27}" for loop in loops)


def failures(rows: Rows) -> list[str]:
    return [
        f"FAIL {name} on {loop}: {row['fail']}"
        for name, by_loop in rows.items()
        for loop, row in by_loop.items()
        if "fail" in row
    ]


def processor() -> str:
    """The name of the processor, as far as the system knows it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor()


def loopback_us() -> float:
    """The CPU time of one send and one receive over loopback, from Python, in microseconds: the least of several runs.

    The kernel's part of a row, and so how far apart two loops can be, depends on it. Virtual machines of the same name
    differ by a factor of three.
    """
    count, runs, message = 2_000, 15, bytes(1024)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as here:
        there, _ = listener.accept()
        with there:
            here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            least = float("inf")
            for _ in range(runs):
                start = time.process_time()
                for _ in range(count):
                    here.send(message)
                    there.recv(1024)
                least = min(least, time.process_time() - start)
    return least / count * 1e6


def loopback(about: dict[str, Any]) -> str:
    """A page's sentence about the kernel's part, if it was measured."""
    cost = about.get("loopback_us")
    return "" if cost is None else (
        f"A send and a receive of 1 KiB over loopback take {cost:.1f} us of CPU there: the kernel's part, which all"
        " loops share."
    )


def meta(loops: list[str], **settings: Any) -> dict[str, Any]:
    """Where and with what the figures were measured."""
    load = os.getloadavg()[0]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": sys.version,
        "machine": f"{platform.platform()}, {processor()}, {os.cpu_count()} cores, load {load:.1f}",
        "loopback_us": loopback_us(),
        "loops": {name: version(name) for name in loops},
        **settings,
    }


def save(path: Path, rows: Rows, about: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"meta": about, "rows": rows}, indent=1) + "\n")
