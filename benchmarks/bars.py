"""Draws the bars of README and of the site's front page: operations for the CPU time that uvloop needs for one.

A bar begins at zero. A thin line goes from the lowest to the highest round.
"""

from __future__ import annotations

from html import escape

from chart import OURS, Range, Table, style

#: The rows, and their scenarios.
ROWS = {
    "uvicorn, httptools": "http/uvicorn-httptools",
    "uvicorn, h11": "http/uvicorn-h11",
    "aiohttp server": "http/aiohttp",
    "echo over TLS": "tls/proto/1k/c10",
    "echo, asyncio’s streams": "tcp/streams/1k/c10",
    "echo, protocol": "tcp/proto/1k/c10",
}
#: The bars of a row, from the top; uvloop is the line at 1.
LOOPS = ("asyncio", OURS)

WIDTH, LEFT, RIGHT = 480, 172.0, 430.0
ROW, BAR = 36, 11


def place(ratio: float, most: float) -> float:
    return LEFT + min(ratio, most) / most * (RIGHT - LEFT)


def bar(loop: str, ratio: Range, y: float, most: float) -> str:
    middle, end = y + BAR / 2, place(ratio.median, most)
    title = f"{loop}: {ratio.median:.2f}, from {ratio.lowest:.2f} to {ratio.highest:.2f}"
    shown = "value ours" if loop == OURS else "value"
    return (
        f"<g><title>{escape(title)}</title>"
        f'<rect class="{loop}" x="{LEFT:g}" y="{y:g}" width="{end - LEFT:.1f}" height="{BAR}" rx="2"/>'
        f'<line class="spread" x1="{place(ratio.lowest, most):.1f}" x2="{place(ratio.highest, most):.1f}"'
        f' y1="{middle:g}" y2="{middle:g}"/>'
        f'<text class="{shown}" x="{WIDTH - 14}" y="{y + BAR - 1:g}">{ratio.median:.2f}</text></g>'
    )


def legend(y: float) -> list[str]:
    parts, x = [], LEFT
    for loop in LOOPS:
        parts.append(f'<rect class="{loop}" x="{x:g}" y="{y - 9:g}" width="10" height="10" rx="2"/>')
        parts.append(f'<text x="{x + 15:g}" y="{y:g}">{loop}</text>')
        x += 30 + 7 * len(loop)
    return [*parts, reference(x, y - 10, y + 2), f'<text x="{x + 8:g}" y="{y:g}">uvloop = 1</text>']


def reference(x: float, top: float, bottom: float) -> str:
    """A part of the line of uvloop."""
    return f'<line class="one" x1="{x:.1f}" x2="{x:.1f}" y1="{top:g}" y2="{bottom:g}"/>'


def draw(table: Table, source: str) -> str:
    """The picture of a page's ratios. `source` says which page that is."""
    rows = {label: table[name] for label, name in ROWS.items() if name in table}
    most = max(ratio.highest for row in rows.values() for loop, ratio in row.items() if loop in LOOPS)
    y = 24.0
    parts = [
        f'<text class="kind" x="14" y="{y:g}">Operations for the same CPU time</text>',
        f'<text class="soft" x="14" y="{y + 18:g}">{escape(source)}. Longer is cheaper.</text>',
        *legend(y + 44),
    ]
    y += 62
    parts.append(reference(place(1, most), y - 2, y + ROW * len(rows) - 6))
    for label, row in rows.items():
        parts.append(f'<text class="end" x="{LEFT - 10:g}" y="{y + BAR + 5:g}">{escape(label)}</text>')
        for index, loop in enumerate(LOOPS):
            if loop in row:
                parts.append(bar(loop, row[loop], y + index * (BAR + 2), most))
        y += ROW
    height = y + 8
    own = (
        ".end { text-anchor: end; font-size: 13px; } .value { text-anchor: end; font-size: 11px; fill: var(--soft); }"
        " .ours { fill: var(--text); font-weight: 600; }"
        " g line.spread { stroke: var(--text); stroke-width: 1; stroke-opacity: 0.6; } rect { stroke: none; }"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}"'
            f' height="{height:g}" role="img" aria-labelledby="title">',
            '<title id="title">Operations for the CPU time that uvloop needs for one, by loop</title>',
            f"<style>\n{style()}\n{own}\n</style>",
            f'<rect class="back" width="{WIDTH}" height="{height:g}" rx="10"/>',
            *parts,
            "</svg>\n",
        ]
    )
