"""What the demo shows of its results: a table on the terminal, the same as Markdown, and a chart."""

from __future__ import annotations

import importlib
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from wakeloop.demo.compare import CONNECTIONS, RUST, Entry, Results

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("service", "loop", "requests/s", "CPU us/request", "p50 us", "p99 us")
SATURATED = 0.97
COLOURS = {"asyncio": "#9aa0a6", "uvloop": "#e0a030", "wakeloop": "#2878b8", RUST: "#b04a3a"}


def cells(results: Results, entry: Entry) -> list[str]:
    """One row of the table."""
    if not entry.samples:
        return [entry.service.title, entry.loop, *["-"] * 5, f"{entry.errors}: {entry.trouble}"]
    reference = results.reference_for(entry)
    spread = entry.ratios(reference) if reference else []
    return [
        entry.service.title,
        entry.loop,
        f"{entry.median('rate'):,.0f}",
        f"{entry.median('cpu_us'):.2f}",
        f"{entry.median('p50_us'):.0f}",
        f"{entry.median('p99_us'):.0f}",
        f"{statistics.median(spread):.2f} ({min(spread):.2f}-{max(spread):.2f})" if spread else "1",
        str(entry.errors) + (f": {entry.trouble}" if entry.trouble else ""),
    ]


def headings(results: Results) -> list[str]:
    return [*COLUMNS, f"vs {results.reference} by CPU", "errors"]


def table(results: Results) -> Table:
    """For rich."""
    from rich.table import Table

    made = Table(title=f"{CONNECTIONS} connections, medians of {results.rounds} rounds")
    for number, name in enumerate(headings(results)):
        made.add_column(name, justify="left" if number < 2 else "right", no_wrap=number != len(COLUMNS) + 1)
    for number, entry in enumerate(results.entries):
        last = number + 1 == len(results.entries) or results.entries[number + 1].service != entry.service
        style = "bold" if entry.loop in ("wakeloop", RUST) else None
        made.add_row(*cells(results, entry), style=style, end_section=last)
    return made


def markdown(results: Results) -> str:
    """For the README."""
    rows = [headings(results), ["---", "---", *["--:"] * 6], *(cells(results, entry) for entry in results.entries)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def machine(results: Results) -> str:
    """Where the figures come from."""
    loops = dict.fromkeys(entry.loop for entry in results.entries if entry.loop not in ("asyncio", RUST))
    versions = [f"{name} {getattr(importlib.import_module(name), '__version__', '')}".strip() for name in loops]
    return f"CPython {platform.python_version()}, {', '.join(versions)}, {platform.system()} {platform.release()}"


def notes(results: Results) -> list[str]:
    """What a reader of the table should know."""
    said = [f"CPU us/request is the server process's; the ratio is {results.reference}'s over each loop's own."]
    samples = [sample for entry in results.entries for sample in entry.samples]
    full = sum(sample.load_busy > SATURATED for sample in samples)
    if full:
        said.append(
            f"In {full} of {len(samples)} measurements the load generator's core was full: there the server could"
            " have answered more requests; its CPU time per request holds."
        )
    return said


def chart(results: Results, path: Path) -> None:
    """Bars of the ratios, with the range of the rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [entry for entry in results.entries if entry.samples]
    services = list(dict.fromkeys(entry.service.title for entry in shown))
    loops = list(dict.fromkeys(entry.loop for entry in shown))
    figure, axes = pyplot.subplots(figsize=(9, 1.5 + 0.28 * len(shown)))
    height = 0.8 / len(loops)
    for place, loop in enumerate(loops):
        middles, ratios, low, high = [], [], [], []
        for entry in (entry for entry in shown if entry.loop == loop):
            reference = results.reference_for(entry)
            spread = entry.ratios(reference) if reference else [1.0]
            middle = statistics.median(spread)
            middles.append(services.index(entry.service.title) + (place - (len(loops) - 1) / 2) * height)
            ratios.append(middle)
            low.append(middle - min(spread))
            high.append(max(spread) - middle)
        bars = axes.barh(middles, ratios, height * 0.9, label=loop, color=COLOURS.get(loop), xerr=(low, high),
                         error_kw={"elinewidth": 1, "ecolor": "#404040"})  # fmt: skip
        axes.bar_label(bars, [f"{ratio:.2f}" for ratio in ratios], padding=4, fontsize=8)
    axes.axvline(1, color="#404040", linewidth=1)
    axes.set_yticks(range(len(services)), services)
    axes.invert_yaxis()
    axes.set_xlabel(f"requests per CPU second of the server, {results.reference} = 1 (bars: median, lines: all rounds)")
    axes.set_title(machine(results), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.12)
    figure.legend(loc="lower left", ncols=len(loops), fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
