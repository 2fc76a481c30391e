"""Draws a trace of the flight recorder as an SVG picture: python draw_trace.py TRACE.json PICTURE.svg [FROM_MS TO_MS]

The times count from the beginning of the trace, in milliseconds. Slices that would be thinner than a third of a pixel are
left out.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any

WIDTH, LEFT, ROW = 1200, 220, 16
COLOURS = {
    "turn": "#dfe5ee",
    "poll": "#f3f3f3",
    "gil": "#e8a33d",
    "callback": "#4c8dd6",
    "task": "#4fae72",
    "io": "#c25b8a",
    "runtime": "#7a6fc0",
}


def rows(slices: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], int]]:
    """The depth of each slice: how many others it is inside of."""
    ends: list[float] = []
    for event in sorted(slices, key=lambda event: (event["ts"], -event["dur"])):
        while ends and event["ts"] >= ends[-1] - 0.001:
            ends.pop()
        yield event, len(ends)
        ends.append(event["ts"] + event["dur"])


def draw(trace: dict[str, Any], start: float, end: float) -> str:
    events: list[dict[str, Any]] = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = [event for event in events if event["ph"] == "X"]
    first: float = min((event["ts"] for event in slices), default=0.0)
    last: float = max((event["ts"] + event["dur"] for event in slices), default=1.0)
    start, end = first + start * 1000, min(last, first + end * 1000)
    scale = (WIDTH - LEFT) / max(end - start, 0.001)
    lines: list[str] = []
    top = ROW
    for thread, name in names.items():
        depths = 1
        lines.append(f'<text x="4" y="{top + 12}">{escape(name)}</text>')
        for event, depth in rows([event for event in slices if event["tid"] == thread]):
            left = max(start, event["ts"])
            width = (min(end, event["ts"] + event["dur"]) - left) * scale
            if width < 0.3:
                continue
            depths = max(depths, depth + 1)
            x, y = LEFT + (left - start) * scale, top + depth * ROW
            title = f"{event['name']}: {event['dur'] / 1000:.3f} ms {event.get('args', '')}"
            colour = COLOURS.get(event["cat"], "#999")
            lines.append(f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 2}" fill="{colour}">'
                         f"<title>{escape(title)}</title></rect>")
            if width > 30:
                text = escape(event["name"][: int(width / 6.5)])
                lines.append(f'<text x="{x + 3:.1f}" y="{y + 11}">{text}</text>')
        top += (depths + 1) * ROW
    lines.append(f'<text x="{LEFT}" y="11">{(end - start) / 1000:.3f} ms</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" font-family="monospace" font-size="11">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#fff"/>', *lines, "</svg>\n"])


if __name__ == "__main__":
    source, target, *limits = sys.argv[1:]
    start, end = map(float, limits) if limits else (0.0, float("inf"))
    with open(source) as file:
        trace = json.load(file)
    with open(target, "w") as file:
        file.write(draw(trace, start, end))
