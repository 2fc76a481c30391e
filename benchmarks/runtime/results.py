"""Makes a page, and its charts, from the result files of the runtime's benchmarks.

    python benchmarks/runtime/results.py benchmarks/out [--page benchmarks/RUNTIME.md]

The page shows those of runtime.json, echo.json, wrk.json, sleeps.json and delays.json that exist. Charts need matplotlib.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import statistics
import sys
import time
from pathlib import Path
from typing import Any

OURS = "wakeloop"
PEERS = ("tokio", "smol")
COLOURS = {"wakeloop": "#55a868", "tokio": "#4c72b0", "smol": "#dd8452", "threads": "#8c8c8c"}
KINDS = {1: "1 worker", 2: "2 workers", 0: "current thread"}

Row = dict[str, Any]


def cpu() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1] if found else platform.processor()


def versions() -> str:
    lock = Path(__file__).with_name("Cargo.lock").read_text()
    found = dict(re.findall(r'name = "(tokio|smol)"\nversion = "([^"]+)"', lock))
    return ", ".join(f"{name} {version}" for name, version in found.items())


def table(heads: list[str], lines: list[list[str]]) -> list[str]:
    rows = ["| " + " | ".join(line) + " |" for line in [heads, *lines]]
    return [rows[0], "|" + " --- |" * len(heads), *rows[1:], ""]


def duration(nanos: float) -> str:
    for unit, size in (("ms", 1e6), ("us", 1e3)):
        if nanos >= size:
            return f"{nanos / size:.3g} {unit}"
    return f"{nanos:.3g} ns"


def ratio_of(row: Row) -> float:
    return float(row["cpu_ratio"] if row["by"] == "cpu" else row["wall_ratio"])


def by_scenario(rows: list[Row], workers: int) -> dict[str, dict[str, Row]]:
    found: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row["workers"] == workers:
            found.setdefault(row["scenario"], {})[row["runtime"]] = row
    return found


def mean(scenarios: dict[str, dict[str, Row]], peer: str, clock: str) -> float:
    """The geometric mean, where variants of one scenario (the same number) count as one."""
    groups: dict[str, list[float]] = {}
    for name, row in scenarios.items():
        if peer in row:
            groups.setdefault(name[:2], []).append(row[peer][f"{clock}_ratio"])
    return statistics.geometric_mean(statistics.geometric_mean(group) for group in groups.values())


def scenarios_page(rows: list[Row]) -> list[str]:
    text = [
        "## 27 scenarios",
        "",
        "How long one repetition takes on wakeloop, and the ratio of the others to that, by wall time / by CPU time of the"
        " process: above 1 wakeloop is faster. Ratios of the medians of interleaved processes. A scenario that mostly sleeps"
        " (19) has only its CPU time to compare. `benchmarks/runtime/src/scenarios/` describes what each scenario does.",
        "",
    ]
    for workers, title in KINDS.items():
        scenarios = by_scenario(rows, workers)
        if not scenarios:
            continue
        peers = [peer for peer in PEERS if any(peer in row for row in scenarios.values())]
        lines = []
        for name, row in scenarios.items():
            ours = row[OURS]
            own = ours["cpu_ns"] if ours["by"] == "cpu" else ours["wall_ns"]
            cells = [
                f"{row[peer]['wall_ratio']:.2f} / {row[peer]['cpu_ratio']:.2f}" if peer in row else "–" for peer in peers
            ]
            lines.append([name, duration(own), *cells])
        means = [[mean(scenarios, peer, clock) for clock in ("wall", "cpu")] for peer in peers]
        lines.append(["**geometric mean**", "", *[f"**{wall:.2f} / {cpu:.2f}**" for wall, cpu in means]])
        text += [f"### {title}", "", *table(["scenario", OURS, *peers], lines)]
    return text


def echo_page(rows: list[Row]) -> list[str]:
    text = [
        "## Servers under load",
        "",
        "Closed: each connection asks again as soon as it has its answer; the ratios are our rate over theirs and"
        " their p99 over ours, round by round. Fixed: a rate that all can serve. Memory is the server's highest. Client and server share the"
        " processors.",
        "",
    ]
    cases: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        cases.setdefault((row["connections"], row["work"]), []).append(row)
    heads = ["", "requests/s", "ratio", "mean", "p99", "ratio", "CPU/request", "fixed: p50", "p99", "CPU/request", "memory"]
    for (connections, work), servers in cases.items():
        lines = [
            [
                row["server"],
                f"{row['requests_per_second']:,.0f}",
                f"{row['ratio']:.2f}",
                duration(row["closed_mean"] * 1e9),
                duration(row["closed_p99"] * 1e9),
                f"{row['p99_ratio']:.2f}",
                duration(row["closed_cpu_per_request"] * 1e9),
                duration(row["p50"] * 1e9),
                duration(row["p99"] * 1e9),
                duration(row["cpu_per_request"] * 1e9),
                f"{row['rss'] / 1e6:.1f} MB",
            ]
            for row in servers
        ]
        text += [f"### {connections:,} connections, {work}", "", *table(heads, lines)]
    return text


def wrk_page(rows: list[Row]) -> list[str]:
    lines = [
        [
            row["server"],
            f"{row['rate']:,.0f}",
            f"{row['ratio']:.2f}",
            duration(row["mean"] * 1e9),
            duration(row["p99"] * 1e9),
            duration(row["cpu"] * 1e9),
        ]
        for row in rows
    ]
    return [
        "## http_hello under wrk",
        "",
        f"`wrk -c 1000 -t 2`, medians of {rows[0]['rounds']} rounds in which the servers take turns; the ratio is our"
        " rate over theirs. Server and wrk share the processors.",
        "",
        *table(["", "requests/s", "ratio", "mean", "p99", "CPU/request"], lines),
    ]


def sleeps_page(rows: list[Row]) -> list[str]:
    heads = ["", "arm", "cancel", "bytes/sleep", "bytes/task", "CPU/task", "late p50", "late p99", "late max"]
    lines = [
        [
            row["runtime"],
            duration(row["arm_ns"]),
            duration(row["cancel_ns"]),
            f"{row['bytes_per_sleep']:.0f}",
            f"{row['bytes_per_task']:.0f}",
            duration(row["cpu_per_task_ns"]),
            *[f"{row[key]:.2f} ms" for key in ("late_p50_ms", "late_p99_ms", "late_max_ms")],
        ]
        for row in rows
    ]
    return [
        f"## {rows[0]['count']:,} sleeps at once",
        "",
        "First bare sleeps, armed and cancelled (CPU time of each); then a task for each, with deadlines spread evenly,"
        " 250,000 a second: memory and CPU time per task from spawn to end, and how late the task continued.",
        "",
        *table(heads, lines),
    ]


def delays_page(rows: list[Row]) -> list[str]:
    kinds = ["idle_timer", "idle_socket", "busy_timer", "busy_socket"]
    heads = ["", "idle: timer", "socket", "busy: timer", "socket"]
    lines = [
        [row["runtime"], *[f"{row[f'{kind}_p50']:.3f} / {row[f'{kind}_p99']:.3f}" for kind in kinds]] for row in rows
    ]
    return [
        "## Tasks that never wait",
        "",
        "How late a timer fires, and how long a byte from another thread lies in a socket before its task has read it:"
        " on an idle runtime of two workers, and beside eight tasks that wake themselves in every poll. Milliseconds,"
        " p50 / p99.",
        "",
        *table(heads, lines),
    ]


def save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def scenarios_chart(rows: list[Row], path: Path) -> None:
    from matplotlib import pyplot

    kinds = [workers for workers in KINDS if by_scenario(rows, workers)]
    figure, all_axes = pyplot.subplots(1, len(kinds), figsize=(5 * len(kinds), 8), sharey=True, squeeze=False)
    for axes, workers in zip(all_axes[0], kinds):
        scenarios = by_scenario(rows, workers)
        names = list(scenarios)
        peers = [peer for peer in PEERS if any(peer in row for row in scenarios.values())]
        height = 0.8 / len(peers)
        for place, peer in enumerate(peers):
            values = [ratio_of(scenarios[name][peer]) if peer in scenarios[name] else 0 for name in names]
            places = [index + (place - (len(peers) - 1) / 2) * height for index in range(len(names))]
            axes.barh(places, values, height * 0.9, label=peer, color=COLOURS[peer])
        axes.axvline(1, color="#404040", linewidth=1)
        axes.set_xscale("log")
        axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_title(KINDS[workers], fontsize=10)
        axes.set_xlabel(f"time of the other / time of {OURS}")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.01)
    all_axes[0][0].invert_yaxis()
    all_axes[0][0].legend(loc="lower right", fontsize=8, frameon=False)
    save(figure, path)


def echo_chart(rows: list[Row], path: Path) -> None:
    from matplotlib import pyplot

    cases = list(dict.fromkeys((row["connections"], row["work"]) for row in rows))
    names = [f"{connections:,}, {work}" for connections, work in cases]
    panels = [
        ("requests_per_second", 1.0, "requests/s, closed"),
        ("cpu_per_request", 1e6, "us CPU per request, fixed rate"),
        ("rss", 1e-6, "MB of memory"),
    ]
    figure, all_axes = pyplot.subplots(1, len(panels), figsize=(15, 1.5 + 0.6 * len(cases)), sharey=True)
    servers = [name for name in COLOURS if any(row["server"] == name for row in rows)]
    height = 0.8 / len(servers)
    for axes, (key, scale, title) in zip(all_axes, panels):
        for place, server in enumerate(servers):
            found = {(row["connections"], row["work"]): row[key] * scale for row in rows if row["server"] == server}
            places = [index + (place - (len(servers) - 1) / 2) * height for index in range(len(cases))]
            values = [found.get(case, 0) for case in cases]
            axes.barh(places, values, height * 0.9, label=server, color=COLOURS[server])
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xlabel(title)
        axes.spines[["top", "right"]].set_visible(False)
    all_axes[0].invert_yaxis()
    all_axes[0].legend(loc="lower right", fontsize=8, frameon=False)
    save(figure, path)


PAGES = {
    "runtime": (scenarios_page, scenarios_chart),
    "echo": (echo_page, echo_chart),
    "wrk": (wrk_page, None),
    "sleeps": (sleeps_page, None),
    "delays": (delays_page, None),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="the runtime's results as a page and charts")
    parser.add_argument("results", type=Path, help="the folder with the JSON files")
    parser.add_argument("--note", default="", help="a sentence for the head of the page: what else the machine did")
    parser.add_argument("--page", type=Path, default=Path(__file__).parent.with_name("RUNTIME.md"))
    arguments = parser.parse_args()
    charts = importlib.util.find_spec("matplotlib") is not None
    if charts:
        import matplotlib

        matplotlib.use("Agg")
    else:
        print("no charts: matplotlib is not installed (make bench installs it)")
    text = [
        "# The runtime beside tokio, smol and threads",
        "",
        f"{platform.platform()}, {os.cpu_count()} processors ({cpu()}), shared with others; {versions()}."
        " Made by `make bench-runtime` and `make bench-echo`." + (f" {arguments.note}" if arguments.note else ""),
        "",
    ]
    for name, (page, chart) in PAGES.items():
        source = arguments.results / f"{name}.json"
        if not source.exists():
            continue
        rows = json.loads(source.read_text())
        measured = time.strftime("%Y-%m-%d %H:%M", time.localtime(source.stat().st_mtime))
        found = page(rows)
        text += [*found[:2], f"Measured {measured}.", "", *found[2:]]
        if charts and chart:
            picture = arguments.page.with_name(f"runtime-{name}.png")
            chart(rows, picture)
            text += [f"![The same as bars]({picture.name})", ""]
    arguments.page.write_text("\n".join(text))
    print(arguments.page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
