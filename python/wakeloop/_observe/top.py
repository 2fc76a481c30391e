"""`python -m wakeloop top`: a live screen of another process's event loops."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import page

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Slow tasks are shown for so many seconds.
RECENT = 30.0
NEEDS_RICH = "the live screen needs rich: pip install wakeloop[top]. `--once --json` works without it"


@dataclasses.dataclass(frozen=True)
class LoopFigures:
    """A loop in the time between two readings. Times are in seconds, rates per second."""

    name: str
    running: bool
    #: How long the loop has been at work without coming back to the poll; 0 if it waits there.
    busy: float
    utilization: float
    delay_p50: float
    delay_p99: float
    delay_max: float
    gil_wait_p99: float
    gil_wait_max: float
    turn_max: float
    turns_rate: float
    callbacks_rate: float
    slow_turns: int
    ready: int
    timers: int
    transports: dict[str, int]
    write_buffer_bytes: int
    paused_writers: int
    paused_readers: int
    executor_jobs: int
    lookups: int
    accept_errors: int
    #: The slowest tasks and callbacks of the last seconds, the slowest first.
    slow: list[dict[str, Any]]

    @property
    def connections(self) -> int:
        """How many stream transports are open."""
        return sum(self.transports.get(kind, 0) for kind in ("tcp", "unix", "tls"))


def figures(before: page.Page, now: page.Page) -> list[LoopFigures]:
    """What the loops have done between two readings of a page."""
    # A loop that is new counts from its beginning.
    earlier = {(loop.name, loop.generation): loop.metrics for loop in before.loops}
    elapsed = max(now.time - before.time, 1e-9)
    return [_figures(loop, earlier.get((loop.name, loop.generation)), elapsed) for loop in now.loops]


def _figures(loop: page.PublishedLoop, earlier: Any, elapsed: float) -> LoopFigures:
    now = loop.metrics
    window = now - earlier if earlier else now
    recent = [slow for slow in loop.slow if slow.ago <= RECENT]
    recent.sort(key=lambda slow: slow.seconds, reverse=True)
    return LoopFigures(
        name=loop.name,
        running=now.running,
        busy=loop.busy_seconds,
        utilization=min(1.0, max(0.0, window.utilization)),
        delay_p50=window.delay.percentile(50),
        delay_p99=window.delay.percentile(99),
        delay_max=window.delay.max,
        gil_wait_p99=window.gil_wait.percentile(99),
        gil_wait_max=window.gil_wait.max,
        turn_max=window.turn_length.max,
        turns_rate=max(0, window.turns) / elapsed,
        callbacks_rate=max(0, window.callbacks) / elapsed,
        slow_turns=window.slow_turns,
        ready=now.ready,
        timers=now.timers,
        transports=dict(now.transports),
        write_buffer_bytes=now.write_buffer_bytes,
        paused_writers=now.paused_writers,
        paused_readers=now.paused_readers,
        executor_jobs=now.executor_jobs,
        lookups=now.lookups,
        accept_errors=now.accept_errors,
        slow=[dataclasses.asdict(slow) for slow in recent[:10]],
    )


def readings(fd: int, interval: float) -> Iterator[tuple[page.Page, page.Page]]:
    """Yield two readings with `interval` seconds between them, again and again. Raises PageError if that fails."""
    before = page.read(fd)
    while True:
        time.sleep(interval)
        now = page.read(fd)
        yield before, now
        before = now


def as_json(pid: int, before: page.Page, now: page.Page) -> str:
    """The figures as a JSON object in one line."""
    loops = [{**dataclasses.asdict(each), "connections": each.connections} for each in figures(before, now)]
    return json.dumps({"pid": pid, "version": now.version, "interval": now.time - before.time, "loops": loops})


def screen(pid: int, before: page.Page, now: page.Page) -> RenderableType:
    """The screen, for rich. Raises ImportError if that is not installed."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    loops = figures(before, now)
    table = Table(title=Text(f"process {pid}, wakeloop {now.version}"), title_justify="left", expand=True)
    table.add_column("loop", ratio=1, no_wrap=True)
    # One column for each two figures, so that they fit into 80 columns.
    for heading in ("used", "delay\np99/max", "GIL wait\np99/max", "ready\ntimers", "conns", "turns/s", "state"):
        table.add_column(heading, justify="right", no_wrap=True)
    slowest = Table(title=Text(f"slowest of the last {RECENT:.0f} s"), title_justify="left", expand=True)
    slowest.add_column("took", justify="right", no_wrap=True)
    slowest.add_column("ago", justify="right", no_wrap=True)
    slowest.add_column("loop", no_wrap=True)
    slowest.add_column("task or callback", ratio=1, no_wrap=True)
    for loop in loops:
        table.add_row(
            Text(loop.name),
            f"{loop.utilization:.0%}",
            f"{duration(loop.delay_p99)}\n{duration(loop.delay_max)}",
            f"{duration(loop.gil_wait_p99)}\n{duration(loop.gil_wait_max)}",
            f"{loop.ready:,}\n{loop.timers:,}",
            f"{loop.connections:,}",
            f"{loop.turns_rate:,.0f}",
            state(loop),
        )
    rows = sorted(((slow, loop.name) for loop in loops for slow in loop.slow), key=lambda row: -row[0]["seconds"])
    for slow, name in rows[:10]:
        slowest.add_row(duration(slow["seconds"]), duration(slow["ago"]), Text(name), Text(slow["name"]))
    if not loops:
        return Group(table, Text("no event loop is open"))
    return Group(table, slowest)


def state(loop: LoopFigures) -> Any:
    """Whether the loop waits, works or is blocked."""
    from rich.text import Text

    if not loop.running:
        return Text("stopped")
    if loop.busy >= 0.1:
        return Text(f"blocked\n{duration(loop.busy)}", style="bold red")
    return Text("works" if loop.busy else "waits", style="green")


def duration(seconds: float) -> str:
    """A duration in at most seven characters."""
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (1e4, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}" if seconds * factor < 100 else f"{seconds * factor:.0f} {unit}"
    return "> 10⁴ s"


def plain(pid: int, before: page.Page, now: page.Page) -> str:
    """The figures as text, without rich."""
    lines = [f"process {pid}, wakeloop {now.version}"]
    for loop in figures(before, now):
        lines.append(
            f"{loop.name}: used {loop.utilization:.0%}, delay p99 {duration(loop.delay_p99)}, GIL wait p99 "
            f"{duration(loop.gil_wait_p99)}, {loop.ready} ready, {loop.connections} connections"
        )
        lines += [f"  {duration(slow['seconds'])}: {slow['name']}" for slow in loop.slow]
    return "\n".join(lines)


def run(pid: int, *, interval: float, once: bool, as_json_lines: bool) -> None:
    """Show a process until it ends or Ctrl-C. Raises PageError or ImportError."""
    fd = page.find(pid)
    try:
        pairs = readings(fd, interval)
        if once or as_json_lines:
            for before, now in pairs:
                print((as_json if as_json_lines else plain)(pid, before, now), flush=True)
                if once or not _is_alive(pid):
                    return
        else:
            _live(pid, pairs)
    finally:
        os.close(fd)


def _live(pid: int, pairs: Iterator[tuple[page.Page, page.Page]]) -> None:
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        raise ImportError(NEEDS_RICH) from error
    with Live(Text("reading …"), screen=True, auto_refresh=False) as live:
        for before, now in pairs:
            live.update(screen(pid, before, now), refresh=True)
            if not _is_alive(pid):
                return


def _is_alive(pid: int) -> bool:
    """A process that has ended has no descriptors, even while its parent has not fetched its exit code."""
    try:
        return bool(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False
