"""Makes a page, and its chart, from a result file of ``run.py``.

    python benchmarks/results.py benchmarks/out/TIME.json [--page benchmarks/RESULTS.md]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import chart
from baseline import BASELINE
from loops import REFERENCE
from report import Row, Rows, loopback, median_of, ratios
from targets import AS_GOOD, OF_THE_BASELINE, OF_THE_BEST

OURS = "wakeloop"
UNITS = {"cpu_us": "us CPU", "p99_us": "us p99", "kib_per_idle": "KiB"}


def middle(row: Row | None, reference: Row | None) -> float | None:
    """The median ratio to the reference, if both have rounds."""
    if not row or not reference or not row.get("samples") or not reference.get("samples"):
        return None
    found = ratios(row, reference)
    return statistics.median(found) if found else None


def best_other(by_loop: dict[str, Row]) -> tuple[str, list[float]] | None:
    """The best other loop by the scenario's metric, and the ratios of its cost to ours, round by round."""
    ours = by_loop.get(OURS, {})
    others = [
        (name, found)
        for name, row in by_loop.items()
        if name not in (OURS, BASELINE) and row.get("samples") and (found := ratios(ours, row))
    ]
    return min(others, key=lambda pair: statistics.median(pair[1])) if others else None


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}–{max(values):.2f}]"


def ratio_cell(row: Row | None, reference: Row | None) -> str:
    if row is None:
        return "–"
    if "fail" in row:
        return "FAIL"
    found = ratios(row, reference) if reference and reference.get("samples") else []
    if not found:
        return "–"
    return spread(found)


def goal(name: str, by_loop: dict[str, Row]) -> tuple[float, str, float | None]:
    """The target, what it is a ratio to, and the ratio that was reached, if it was measured."""
    if target := OF_THE_BASELINE.get(name):
        return target, BASELINE, middle(by_loop.get(OURS), by_loop.get(BASELINE))
    best = best_other(by_loop)
    return OF_THE_BEST.get(name, AS_GOOD), "best other", statistics.median(best[1]) if best else None


def line(name: str, by_loop: dict[str, Row], loops: list[str]) -> str:
    reference, ours = by_loop.get(REFERENCE), by_loop.get(OURS)
    metric = (ours or {}).get("metric", "cpu_us")
    cost = median_of(ours, metric) if ours and "fail" not in ours else None
    cells = [name, f"{cost:.3g} {UNITS.get(metric, metric)}" if cost is not None else "–"]
    cells += [ratio_cell(by_loop.get(loop), reference) for loop in loops if loop != REFERENCE]
    best = best_other(by_loop)
    cells.append(f"{spread(best[1])} {best[0]}" if best else "–")
    return "| " + " | ".join(cells) + " |"


def page(rows: Rows, about: dict[str, Any], where: Path) -> str:
    loops = [loop for loop in about["loops"] if any(loop in by_loop for by_loop in rows.values())]
    shown = [loop for loop in loops if loop != REFERENCE]
    heads = ["scenario", f"cost on {OURS}", *shown, "best other over ours"]
    behind = [
        f"{name}: {best[0]} costs {spread(best[1])} of ours"
        for name, by_loop in rows.items()
        if (best := best_other(by_loop)) and statistics.median(best[1]) < 1
    ]
    failed = [
        f"{name}: {loop}: {row['fail']}" for name, by_loop in rows.items() for loop, row in by_loop.items() if "fail" in row
    ]
    text = [
        f"# Results on CPython {'.'.join(about['python'].split('.')[:2])}",
        "",
        f"Measured {about['date']} on {about['machine']}; Python {about['python'].splitlines()[0]}; "
        + ", ".join(f"{name} {version}" for name, version in about["loops"].items())
        + f"; {about['rounds']} rounds, interleaved. {loopback(about)}",
        "",
        f"Each cell is the ratio to {REFERENCE} by the scenario's metric, the median of all rounds with the lowest and"
        f" the highest in brackets: 2.00 costs half of what {REFERENCE} does. The metric is the CPU time of the whole"
        " process per operation unless the cost says otherwise. `baseline` is a server without Python and without an"
        " event loop (`benchmarks/baseline`): what the kernel, and for TLS OpenSSL, cost by themselves. Where the rest"
        " of a row goes is in [SHARES.md](SHARES.md). The best other is the loop, other than ours, that costs least; what"
        " it costs is given as a multiple of our cost.",
        "",
        f"![The same as a chart: a dot for each median, a line for each range]({chart.beside(where).name})",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + " --- |" * len(heads),
        *[line(name, by_loop, loops) for name, by_loop in rows.items()],
        "",
    ]
    if behind:
        text += ["Rows on which another loop is ahead of ours:", "", *[f"- {each}" for each in behind], ""]
    if failed:
        text += ["What failed:", "", *[f"- {each}" for each in failed], ""]
    return "\n".join(text)


def short(rows: Rows) -> list[str]:
    """A line for each scenario that does not reach its target. These lines are for contributors, and not on the page."""
    goals = {name: goal(name, by_loop) for name, by_loop in rows.items()}
    return [
        f"{name}: {reached:.2f} of the {other}, the target is {target:g}"
        for name, (target, other, reached) in goals.items()
        if reached is not None and reached < target
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="a page and its chart from a result file")
    parser.add_argument("result", type=Path)
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    arguments = parser.parse_args()
    content = json.loads(arguments.result.read_text())
    rows: Rows = content["rows"]
    about: dict[str, Any] = content["meta"]
    arguments.page.write_text(page(rows, about, arguments.page))
    chart.write(arguments.page)
    print(f"{arguments.page}: {len(rows)} scenarios. Short of a target of benchmarks/targets.py:")
    print("\n".join(short(rows)) or "none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
