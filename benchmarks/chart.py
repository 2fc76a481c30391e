"""Draws the chart of a page of results from the page's own table, as an SVG that needs nothing to be read.

    python benchmarks/chart.py benchmarks/RESULTS.md

A dot is the median ratio of a loop to uvloop, and the line through it goes from the lowest to the highest round. The axis is
logarithmic, so that half and twice the cost are equally far from 1; what lies outside of it is drawn at its edge, with its
figure. The picture is narrow enough for a phone, and has colours for a light and for a dark page.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import NamedTuple

OURS = "wakeloop"
#: Of each loop, its colour on a light and on a dark page.
COLOURS = {
    "asyncio": ("#6e7781", "#9aa4ae"),
    "uvloop+aiofastnet": ("#1b7c9e", "#56c2e6"),
    "rloop": ("#bc6c1c", "#f0a860"),
    "rsloop": ("#b02a37", "#ff8a8a"),
    "zuvloop": ("#7048b6", "#bfa0f5"),
    "baseline": ("#9a8c00", "#d8cc4a"),
    OURS: ("#14803c", "#3fd07a"),
}
#: The kinds of rows, by how the names of their scenarios begin.
KINDS = {
    "Callbacks and timers": ("call_", "loop/"),
    "Tasks and futures": ("task/", "future/"),
    "Threads, processes, names": ("executor/", "subprocess/", "pipe/", "getaddrinfo/"),
    "TCP": ("tcp/",),
    "Unix sockets and UDP": ("unix/", "udp/"),
    "TLS": ("tls/",),
    "HTTP servers": ("http/",),
    "Clients": ("client/",),
}
LEAST, MOST = 0.25, 8.0
WIDTH, LEFT, RIGHT = 440, 14.0, 426.0
ROW, LOOP, HEAD = 27, 8, 34
RATIO = re.compile(r"([\d.]+) \[([\d.]+)–([\d.]+)\]")


class Range(NamedTuple):
    median: float
    lowest: float
    highest: float


Table = dict[str, dict[str, Range]]


def read(text: str) -> Table:
    """The ratios of each scenario's row, by loop."""
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in text.splitlines() if line.startswith("|")]
    heads, table = rows[0], Table()
    for cells in rows[2:]:
        ratios = {head: RATIO.fullmatch(cell) for head, cell in zip(heads, cells) if head in COLOURS}
        table[cells[0]] = {loop: Range(*map(float, ratio.groups())) for loop, ratio in ratios.items() if ratio}
    return {name: ratios for name, ratios in table.items() if OURS in ratios}


def by_kind(table: Table) -> Iterable[tuple[str, list[str]]]:
    for kind, beginnings in KINDS.items():
        if names := [name for name in table if name.startswith(beginnings)]:
            yield kind, names
    if names := [name for name in table if not name.startswith(sum(KINDS.values(), ()))]:
        yield "Other", names


def place(ratio: float) -> float:
    """Where a ratio is on the axis, from left to right."""
    share = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return LEFT + share * (RIGHT - LEFT)


def mark(loop: str, ratio: Range, y: float) -> str:
    """The line and the dot of a loop in a row."""
    name = loop.replace("+", "-")
    parts = [f'<line class="{name}" x1="{place(ratio.lowest):.1f}" x2="{place(ratio.highest):.1f}" y1="{y}" y2="{y}"/>']
    if LEAST <= ratio.median <= MOST:
        radius = 4 if loop == OURS else 3
        parts.append(f'<circle class="{name}" cx="{place(ratio.median):.1f}" cy="{y}" r="{radius}"/>')
    else:
        high = ratio.median > MOST
        x, tip, side = (RIGHT, 5, "end") if high else (LEFT, -5, "start")
        parts.append(f'<path class="{name}" d="M{x} {y - 4} L{x + tip} {y} L{x} {y + 4} z"/>')
        parts.append(f'<text class="{side}" x="{x - 2 * tip}" y="{y + 4}">{ratio.median:g}</text>')
    title = f"{loop}: {ratio.median:g}, from {ratio.lowest:g} to {ratio.highest:g}"
    return f"<g><title>{escape(title)}</title>{''.join(parts)}</g>"


def axis(y: float, height: float) -> list[str]:
    parts = []
    for ratio in (0.25, 0.5, 1, 2, 4, 8):
        x = f"{place(ratio):.1f}"
        parts.append(f'<line class="{"one" if ratio == 1 else "tick"}" x1="{x}" x2="{x}" y1="{y + 5}" y2="{y + height}"/>')
        parts.append(f'<text class="scale" x="{x}" y="{y}">{ratio:g}</text>')
    return parts


def style() -> str:
    def colours(which: int) -> str:
        page = ("#ffffff", "#1f2328", "#59636e", "#d9dee3", "#8c959f") if which == 0 else (
            "#14191f", "#e8edf2", "#9aa7b4", "#2b333c", "#6b7683")  # fmt: skip
        names = ("back", "text", "soft", "tick", "one", *(loop.replace("+", "-") for loop in COLOURS))
        values = (*page, *(pair[which] for pair in COLOURS.values()))
        return " ".join(f"--{name}: {value};" for name, value in zip(names, values))

    loops = [loop.replace("+", "-") for loop in COLOURS]
    return "\n".join(
        [
            f"svg {{ {colours(0)} }}",
            f"@media (prefers-color-scheme: dark) {{ svg {{ {colours(1)} }} }}",
            'text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--text); }',
            ".kind { font-size: 14px; font-weight: 600; } .soft, .scale { fill: var(--soft); }",
            ".scale { text-anchor: middle; } .end { text-anchor: end; font-size: 11px; } .start { font-size: 11px; }",
            ".back { fill: var(--back); } .tick { stroke: var(--tick); } .one { stroke: var(--one); stroke-width: 1.5; }",
            "g line { stroke-width: 2; stroke-opacity: 0.55; stroke-linecap: round; }",
            *(f".{loop} {{ stroke: var(--{loop}); fill: var(--{loop}); }}" for loop in loops),
        ]
    )


def draw(table: Table, title: str) -> str:
    # wakeloop comes last, and so lies on top where dots meet.
    loops = [loop for loop in COLOURS if any(loop in ratios for ratios in table.values())]
    parts, y = [], 24.0
    parts.append(f'<text class="kind" x="{LEFT:g}" y="{y}">{escape(title)}</text>')
    parts.append(f'<text class="soft" x="{LEFT:g}" y="{y + 18}">uvloop’s cost divided by the loop’s: right of 1 is cheaper.</text>')
    parts.append(f'<text class="soft" x="{LEFT:g}" y="{y + 34}">Dot: median. Line: lowest to highest round.</text>')
    y += 56
    x = LEFT
    for loop in reversed(loops):
        width = 24 + 6.6 * len(loop)
        if x + width > RIGHT:
            x, y = LEFT, y + 18
        parts.append(f'<circle class="{loop.replace("+", "-")}" cx="{x + 5}" cy="{y - 4}" r="4"/>')
        parts.append(f'<text x="{x + 14}" y="{y}">{escape(loop)}</text>')
        x += width
    for kind, names in by_kind(table):
        y += HEAD
        parts.append(f'<text class="kind" x="{LEFT:g}" y="{y}">{escape(kind)}</text>')
        heights = [ROW + LOOP * len(table[name]) for name in names]
        y += 20
        parts += axis(y, sum(heights) + 8)
        y += 8
        for name, height in zip(names, heights):
            parts.append(f'<text x="{LEFT:g}" y="{y + 13}">{escape(name)}</text>')
            lane = y + ROW - 2
            for loop in loops:
                if loop in table[name]:
                    parts.append(mark(loop, table[name][loop], lane))
                    lane += LOOP
            y += height
    end = y + 14
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {end:g}" width="{WIDTH}" height="{end:g}"'
            ' role="img" aria-labelledby="title">',
            f'<title id="title">{escape(title)}: the ratio of each loop’s cost to uvloop’s</title>',
            f"<style>\n{style()}\n</style>",
            f'<rect class="back" width="{WIDTH}" height="{end:g}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )


def beside(page: Path) -> Path:
    """The picture of a page."""
    return page.with_name(f"{page.stem.lower()}.svg")


def write(page: Path) -> None:
    """Draws the picture of a page."""
    text = page.read_text()
    beside(page).write_text(draw(read(text), text.splitlines()[0].removeprefix("# ")))


def main() -> None:
    parser = argparse.ArgumentParser(description="a chart of a page of results")
    parser.add_argument("page", type=Path)
    write(parser.parse_args().page)


if __name__ == "__main__":
    main()
