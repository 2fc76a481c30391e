"""How the demo shows its results: a table on the terminal, the same as Markdown, and a chart."""

from __future__ import annotations

import importlib
import platform
import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from side_by_side.contest import CONNECTIONS, RUST, Entry, Results

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("service", "loop", "req/s", "CPU us", "p50", "p99")
HELD_BACK = 0.9
COLOURS = {"asyncio": "#9aa0a6", "uvloop": "#e0a030", "wakeloop": "#2878b8", RUST: "#b04a3a"}


def cells(results: Results, entry: Entry) -> list[str]:
    """One row of the table."""
    if not entry.samples:
        return [entry.service.title, entry.loop, *["-"] * 5, "FAIL"]
    reference = results.reference_for(entry)
    spread = entry.ratios(reference) if reference else []
    return [
        entry.service.title,
        entry.loop,
        f"{entry.median('rate'):,.0f}",
        f"{entry.median('cpu_us'):.2f}",
        f"{entry.median('p50_us'):.0f}",
        f"{entry.median('p99_us'):.0f}",
        f"{statistics.median(spread):.2f} {min(spread):.2f}-{max(spread):.2f}" if spread else "1",
        str(entry.errors),
    ]


def headings(results: Results) -> list[str]:
    return [*COLUMNS, f"x {results.reference}", "err"]


def table(results: Results) -> Table:
    """The table for rich. It fits a terminal of 80 columns."""
    from rich import box
    from rich.table import Table

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for number, name in enumerate(headings(results)):
        made.add_column(name, justify="left" if number < 2 else "right", no_wrap=True)
    service = None
    for number, entry in enumerate(results.entries):
        row = cells(results, entry)
        if entry.service == service:
            row[0] = ""
        service = entry.service
        last = number + 1 == len(results.entries) or results.entries[number + 1].service != service
        made.add_row(*row, style="bold" if entry.loop in ("wakeloop", RUST) else None, end_section=last)
    return made


def markdown(results: Results) -> str:
    """The table for the README."""
    rows = [headings(results), ["---", "---", *["--:"] * 6], *(cells(results, entry) for entry in results.entries)]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def machine(results: Results) -> str:
    """Where the figures come from."""
    loops = dict.fromkeys(entry.loop for entry in results.entries if entry.loop not in ("asyncio", RUST))
    versions = [f"{name} {getattr(importlib.import_module(name), '__version__', '')}".strip() for name in loops]
    return f"CPython {platform.python_version()}, {', '.join(versions)}, {platform.system()} {platform.release()}"


def notes(results: Results) -> list[str]:
    """Sentences below the table."""
    said = [
        f"{CONNECTIONS} connections; medians of {results.rounds} rounds. CPU us: of the server, per request; p50, p99 in us.",
        f"x {results.reference}: {results.reference}'s CPU time per request over the loop's own; median, then the range.",
    ]
    samples = [sample for entry in results.entries for sample in entry.samples]
    if held_back := sum(sample.busy < HELD_BACK for sample in samples):
        said.append(
            f"In {held_back} of {len(samples)} measurements the server was idle for a tenth of the time or more: the"
            " load generator, or other\nprograms on this machine, held it back. Its requests/s could be higher there;"
            " the CPU time per request holds."
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
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=len(loops), fontsize=8, frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
