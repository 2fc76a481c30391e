"""Shows which rows differ between two result files of ``run.py`` by more than the noise.

    python benchmarks/compare.py BEFORE.json AFTER.json [--loop wakeloop] [--all]

It compares the ratio to the reference loop, round by round, so that a machine that was slower in one of the two runs does
not show; without a reference, it compares the CPU time. A row moved if its medians differ by more than five per cent, and
by more than the spread of the rounds in either file. The spread is that of the middle half of the rounds, or of all where
there are fewer than six. Two runs of the same build have differed by five per cent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from loops import REFERENCE
from report import Row, Rows, ratios

LEAST = 0.05
FEW = 6


def read(path: Path) -> Rows:
    rows: Rows = json.loads(path.read_text())["rows"]
    return rows


def speeds(row: dict[str, Row], loop: str, relative: bool) -> list[float]:
    """One value a round; higher is better."""
    if relative:
        return ratios(row[loop], row[REFERENCE])
    return [1 / sample["cpu_us"] for sample in row[loop].get("samples", []) if sample["cpu_us"]]


def spread(values: list[float]) -> float:
    """How far the values lie apart, as a part of their median."""
    if len(values) < FEW:
        return (max(values) - min(values)) / statistics.median(values)
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def verdict(before: dict[str, Row], after: dict[str, Row], loop: str) -> tuple[bool, str] | None:
    """Whether the row moved, and the line that says how; None if it cannot be compared."""
    if loop not in before or loop not in after:
        return None
    for what, row in (("before", before), ("after", after)):
        if "fail" in row[loop]:
            return True, f"FAIL {what}: {row[loop]['fail']}"
    relative = loop != REFERENCE and all(row.get(REFERENCE, {}).get("samples") for row in (before, after))
    old, new = speeds(before, loop, relative), speeds(after, loop, relative)
    if not old or not new:
        return None
    change = statistics.median(new) / statistics.median(old) - 1
    noise = max(spread(old), spread(new), LEAST)
    values = f"{statistics.median(old):.2f}x -> {statistics.median(new):.2f}x" if relative else ""
    word = "same" if abs(change) <= noise else "FASTER" if change > 0 else "SLOWER"
    return word != "same", f"{word:<7}{change:+7.1%}  (noise {noise:.1%})  {values}"


def main() -> int:
    parser = argparse.ArgumentParser(description="prints which rows differ between two result files")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--loop", default="wakeloop")
    parser.add_argument("--all", action="store_true", help="also print the rows that did not move")
    arguments = parser.parse_args()
    before, after = read(arguments.before), read(arguments.after)
    names = [name for name in after if name in before]
    moved, slower = 0, False
    for name in names:
        if (found := verdict(before[name], after[name], arguments.loop)) is None:
            continue
        changed, text = found
        moved += changed
        slower |= changed and not text.startswith("FASTER")
        if changed or arguments.all:
            print(f"{name:<30}{text}")
    print(f"{moved} of {len(names)} rows of {arguments.loop} moved")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
