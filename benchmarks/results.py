"""From a result file of ``run.py`` to the page that people read: RESULTS.md and its charts.

    python benchmarks/results.py benchmarks/out/TIME.json [--page benchmarks/RESULTS.md] [--no-chart]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from loops import REFERENCE
from report import Row, Rows, median_of, ratios
from targets import TARGETS

OURS, FLOOR = "wakeloop", "floor"
UNITS = {"cpu_us": "us CPU", "p99_us": "us p99", "kib_per_idle": "KiB"}
COLOURS = {"asyncio": "#8c8c8c", "uvloop": "#4c72b0", "rloop": "#dd8452", "wakeloop": "#55a868", "floor": "#c7c7c7"}


def middle(row: Row | None, reference: Row | None) -> float | None:
    """The median ratio to the reference, if both have rounds."""
    if not row or not reference or not row.get("samples") or not reference.get("samples"):
        return None
    found = ratios(row, reference)
    return statistics.median(found) if found else None


def best_other(by_loop: dict[str, Row]) -> tuple[str, float] | None:
    """The best of the others by the scenario's metric, as what of our cost it has."""
    others = [
        (name, ratio)
        for name, row in by_loop.items()
        if name not in (OURS, FLOOR) and (ratio := middle(by_loop.get(OURS), row)) is not None
    ]
    return min(others, key=lambda pair: pair[1]) if others else None


def ratio_cell(row: Row | None, reference: Row | None) -> str:
    if row is None:
        return "–"
    if "fail" in row:
        return "FAIL"
    found = ratios(row, reference) if reference and reference.get("samples") else []
    if not found:
        return "–"
    return f"{statistics.median(found):.2f} [{min(found):.2f}–{max(found):.2f}]"


def line(name: str, by_loop: dict[str, Row], loops: list[str]) -> str:
    reference, ours = by_loop.get(REFERENCE), by_loop.get(OURS)
    metric = (ours or {}).get("metric", "cpu_us")
    cost = median_of(ours, metric) if ours and "fail" not in ours else None
    target = TARGETS.get(name)
    reached, floor = middle(ours, reference), middle(by_loop.get(FLOOR), reference)
    if target is None or reached is None:
        verdict = ""
    elif reached >= target:
        verdict = "yes"
    elif floor is not None and floor < target:
        verdict = f"short; so is the floor, ours is at {reached / floor:.2f} of it"
    else:
        verdict = "short"
    cells = [name, f"{cost:.3g} {UNITS.get(metric, metric)}" if cost is not None else "–"]
    cells += [ratio_cell(by_loop.get(loop), reference) for loop in loops if loop != REFERENCE]
    cells += [f"{target:g}" if target else "", verdict]
    return "| " + " | ".join(cells) + " |"


def page(rows: Rows, about: dict[str, Any]) -> str:
    loops = [loop for loop in about["loops"] if any(loop in by_loop for by_loop in rows.values())]
    shown = [loop for loop in loops if loop != REFERENCE]
    heads = ["scenario", f"cost on {OURS}", *shown, "target", "reached"]
    behind = [
        f"{name}: {best[0]}, by {1 / best[1]:.2f}"
        for name, by_loop in rows.items()
        if (best := best_other(by_loop)) and best[1] < 1
    ]
    text = [
        "# Results",
        "",
        f"Measured {about['date']} on {about['machine']}; Python {about['python'].splitlines()[0]}; "
        + ", ".join(f"{name} {version}" for name, version in about["loops"].items())
        + f"; {about['rounds']} rounds, interleaved.",
        "",
        f"Each cell is the ratio to {REFERENCE} by the scenario's metric, the median of all rounds with the lowest and"
        f" the highest in brackets: 2.00 costs half of what {REFERENCE} does. The metric is the CPU time of the whole"
        " process per operation unless the cost says otherwise. `floor` is a server without Python and without an"
        " event loop (`benchmarks/floor`): what the kernel, and for TLS OpenSSL, cost by themselves. No loop can be"
        " cheaper, so where it is short of a target this machine does not let any loop reach it.",
        "",
        "| " + " | ".join(heads) + " |",
        "|" + " --- |" * len(heads),
        *[line(name, by_loop, loops) for name, by_loop in rows.items()],
        "",
    ]
    if behind:
        text += ["Rows on which another loop is ahead of ours:", "", *[f"- {each}" for each in behind], ""]
    return "\n".join(text)


def chart(rows: Rows, loops: list[str], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = [name for name, by_loop in rows.items() if middle(by_loop.get(OURS), by_loop.get(REFERENCE))]
    shown = [loop for loop in loops if loop not in (REFERENCE, FLOOR)]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.24 * len(names) * max(1, len(shown)) / 2))
    height = 0.8 / max(1, len(shown))
    for place, loop in enumerate(shown):
        values = [middle(rows[name].get(loop), rows[name].get(REFERENCE)) or 0 for name in names]
        places = [index + (place - (len(shown) - 1) / 2) * height for index in range(len(names))]
        axes.barh(places, values, height * 0.9, label=loop, color=COLOURS.get(loop))
    targets = [(TARGETS[name], index) for index, name in enumerate(names) if name in TARGETS]
    axes.plot([t for t, _ in targets], [i for _, i in targets], "k|", markersize=9, label="target")
    axes.axvline(1, color="#404040", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(f"{REFERENCE}'s cost over the loop's (higher is better)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(y=0.01)
    axes.legend(loc="lower right", fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description="RESULTS.md and charts from a result file")
    parser.add_argument("result", type=Path)
    parser.add_argument("--page", type=Path, default=Path(__file__).with_name("RESULTS.md"))
    parser.add_argument("--no-chart", action="store_true")
    arguments = parser.parse_args()
    content = json.loads(arguments.result.read_text())
    rows: Rows = content["rows"]
    about: dict[str, Any] = content["meta"]
    text = page(rows, about)
    if not arguments.no_chart and importlib.util.find_spec("matplotlib"):
        picture = arguments.page.with_name("results.png")
        chart(rows, list(about["loops"]), picture)
        text += f"\n![The same as bars]({picture.name})\n"
    arguments.page.write_text(text)
    reached = {name: middle(row.get(OURS), row.get(REFERENCE)) for name, row in rows.items()}
    short = [name for name, value in reached.items() if name in TARGETS and value and value < TARGETS[name]]
    print(f"{arguments.page}: {len(rows)} scenarios; short of the target: {', '.join(short) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
