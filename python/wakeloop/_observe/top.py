"""`python -m wakeloop top`: a live screen of the event loops of other processes, which their windows show."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from ..metrics import Histogram, LoopMetrics, SlowCallback
from . import client

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Slow tasks are shown for so many seconds.
RECENT = 30.0
#: The signals that end a process by default, and that come from a terminal or its user. Ctrl-C has a handler already.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
NEEDS_RICH = "the live screen needs rich: pip install wakeloop[top]. `--once --json` works without it"


@dataclasses.dataclass(frozen=True)
class Loop:
    """A loop, as a window shows it."""

    name: str
    #: It changes when another loop takes the place of this one.
    generation: int
    metrics: LoopMetrics
    #: For how many seconds the loop has not been back at the poll; 0 if it waits there.
    busy_seconds: float
    #: The latest first.
    slow: tuple[SlowCallback, ...]


@dataclasses.dataclass(frozen=True)
class Reading:
    """The loops of a process at one moment."""

    pid: int
    #: When it was read: `time.monotonic()`.
    time: float
    #: The version of the target's wakeloop.
    version: str
    loops: tuple[Loop, ...]


def read(pid: int) -> Reading:
    """Ask a process for its loops. Raises WindowError."""
    found = client.ask(pid, "/loops")
    try:
        return Reading(pid, float(found["time"]), _text(found["version"]), tuple(map(_loop, found["loops"])))
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise client.WindowError(f"process {pid} has an answer of another version of wakeloop") from error


def _loop(found: dict[str, Any]) -> Loop:
    values: dict[str, Any] = {"closed": False, "running": bool(found["running"])}
    for name, metric in LoopMetrics._table.items():
        if name in found["metrics"]:
            value = found["metrics"][name]
            if metric.kind == "histogram":
                counts = tuple(map(int, value["counts"]))
                if len(counts) != len(Histogram.bounds):
                    raise ValueError("another number of buckets")
                values[name] = Histogram(counts, float(value["sum"]), float(value["max"]))
            elif isinstance(value, dict):
                values[name] = {str(kind): int(number) for kind, number in value.items()}
            else:
                values[name] = float(value) if name.endswith("_seconds") else int(value)
    slow = (SlowCallback(_text(each["name"]), float(each["seconds"]), float(each["ago"])) for each in found["slow"])
    return Loop(
        _text(found["name"]), int(found["generation"]), LoopMetrics(**values), float(found["busy_seconds"]), tuple(slow)
    )


def _text(text: str) -> str:
    """A text without control characters: it may go to a terminal."""
    return "".join(char if char.isprintable() else "?" for char in text)


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


def figures(before: Reading, now: Reading) -> list[LoopFigures]:
    """The work of the loops between two readings."""
    # A loop that is new counts from its beginning.
    earlier = {(loop.name, loop.generation): loop.metrics for loop in before.loops}
    elapsed = max(now.time - before.time, 1e-9)
    return [_figures(loop, earlier.get((loop.name, loop.generation)), elapsed) for loop in now.loops]


def _figures(loop: Loop, earlier: Any, elapsed: float) -> LoopFigures:
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


class Readings:
    """Reads the processes of a list again and again."""

    def __init__(self, pids: Callable[[], list[int]]) -> None:
        self._pids = pids
        self._before: dict[int, Reading] = {}
        #: The processes that have a window and did not answer the last time.
        self.silent: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether no process of the list has a window any more."""
        return not self._before and not self.silent

    def next(self) -> list[tuple[Reading, Reading]]:
        """The last reading of each process, and the one before."""
        now, before, self.silent = {}, self._before, []
        for pid in self._pids():
            try:
                now[pid] = read(pid)
            except client.NoAnswer:
                self.silent.append(pid)
            except client.WindowError:
                pass
        # What a process does in the time without an answer is in its next figures.
        self._before = {**{pid: before[pid] for pid in self.silent if pid in before}, **now}
        return [(before[pid], reading) for pid, reading in now.items() if pid in before]


def no_answer(pid: int) -> str:
    """A line about a process that does not answer."""
    return f"process {pid} does not answer"


def as_json(before: Reading, now: Reading) -> str:
    """The figures of a process as a JSON object in one line."""
    loops = [{**dataclasses.asdict(each), "connections": each.connections} for each in figures(before, now)]
    return json.dumps({"pid": now.pid, "version": now.version, "interval": now.time - before.time, "loops": loops})


def screen(pairs: list[tuple[Reading, Reading]], silent: Iterable[int] = ()) -> RenderableType:
    """The screen, for rich, with the processes that do not answer. Raises ImportError if that is not installed."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    versions = ", ".join(sorted({now.version for _, now in pairs}))
    processes = f"process {pairs[0][1].pid}" if len(pairs) == 1 else f"{len(pairs)} processes"
    table = Table(title=Text(f"{processes}, wakeloop {versions}"), title_justify="left", expand=True)
    table.add_column("process\nloop", ratio=1, no_wrap=True)
    # One column for each two figures, so that they fit into 80 columns.
    for heading in ("used", "delay\np99/max", "GIL wait\np99/max", "ready\ntimers", "conns", "turns/s", "state"):
        table.add_column(heading, justify="right", no_wrap=True)
    slowest = Table(title=Text(f"slowest of the last {RECENT:.0f} s"), title_justify="left", expand=True)
    slowest.add_column("took", justify="right", no_wrap=True)
    slowest.add_column("ago", justify="right", no_wrap=True)
    slowest.add_column("loop", no_wrap=True)
    slowest.add_column("task or callback", ratio=1, no_wrap=True)
    rows: list[tuple[dict[str, Any], str]] = []
    for before, now in pairs:
        for loop in figures(before, now):
            table.add_row(
                Text(f"{now.pid}\n{loop.name}"),
                f"{loop.utilization:.0%}",
                f"{duration(loop.delay_p99)}\n{duration(loop.delay_max)}",
                f"{duration(loop.gil_wait_p99)}\n{duration(loop.gil_wait_max)}",
                f"{loop.ready:,}\n{loop.timers:,}",
                f"{loop.connections:,}",
                f"{loop.turns_rate:,.0f}",
                state(loop),
            )
            rows += [(slow, loop.name) for slow in loop.slow]
    for slow, name in sorted(rows, key=lambda row: -row[0]["seconds"])[:10]:
        slowest.add_row(duration(slow["seconds"]), duration(slow["ago"]), Text(name), Text(slow["name"]))
    shown: list[RenderableType] = [Text(no_answer(pid), style="bold red") for pid in silent]
    if table.row_count:
        shown += [table, slowest]
    elif not shown:
        shown += [table, Text("no event loop is open")]
    return Group(*shown)


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


def plain(before: Reading, now: Reading) -> str:
    """The figures of a process as text, without rich."""
    lines = [f"process {now.pid}, wakeloop {now.version}"]
    for loop in figures(before, now):
        lines.append(
            f"{loop.name}: used {loop.utilization:.0%}, delay p99 {duration(loop.delay_p99)}, GIL wait p99 "
            f"{duration(loop.gil_wait_p99)}, {loop.ready} ready, {loop.connections} connections"
        )
        lines += [f"  {duration(slow['seconds'])}: {slow['name']}" for slow in loop.slow]
    return "\n".join(lines)


def run(pid: int | None, *, interval: float, once: bool, as_json_lines: bool) -> None:
    """Show the user's processes, or one with its workers, until they end, `q` or Ctrl-C.

    Raises WindowError if there is none, or ImportError.
    """
    readings = Readings(client.processes if pid is None else lambda: client.family(pid))
    readings.next()
    if not readings._before:
        if readings.silent:
            raise client.WindowError(no_answer(readings.silent[0]))
        if pid is None:
            raise client.WindowError("no process of this user has a window: start one with WAKELOOP_ADMIN=1")
        read(pid)
    if not once and not as_json_lines:
        return _live(readings, interval)
    show = as_json if as_json_lines else plain
    reported: set[int] = set()
    while True:
        time.sleep(interval)
        pairs = readings.next()
        if pairs:
            print("\n".join(show(before, now) for before, now in pairs), flush=True)
        elif once and readings.silent:
            raise client.WindowError(no_answer(readings.silent[0]))
        for each in readings.silent:
            if each not in reported:
                print(f"wakeloop: {no_answer(each)}", file=sys.stderr, flush=True)
        reported = set(readings.silent)
        if once or readings.is_empty:
            return


def _live(readings: Readings, interval: float) -> None:
    try:
        from rich.live import Live
        from rich.text import Text
    except ImportError as error:
        raise ImportError(NEEDS_RICH) from error
    with (
        _signals_end_the_block(),
        _Keys() as keys,
        Live(Text("reading …"), screen=True, auto_refresh=False) as live,
        _stops_outside(live, keys),
    ):
        while not keys.end_within(interval):
            pairs = readings.next()
            if readings.is_empty:
                return
            live.update(screen(pairs, readings.silent), refresh=True)


@contextlib.contextmanager
def _signals_end_the_block() -> Iterator[None]:
    """Lets the block restore the terminal before a signal ends the process."""
    received: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        if not received:
            received.append(number)
            raise SystemExit(128 + number)

    # One that is ignored, as nohup does, stays so.
    handled = [each for each in _ENDING if signal.getsignal(each) == signal.SIG_DFL]
    for number in handled:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        if received:
            # For the parent process, the signal has ended this one.
            os.kill(os.getpid(), received[0])


class _Keys:
    """The keys that are pressed, without their echo. Without a terminal there are none."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno())
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            import termios

            termios.tcsetattr(sys.stdin.fileno(), termios.TCSADRAIN, self._before)
            self._before = None

    def end_within(self, seconds: float) -> bool:
        """Waits, and returns whether `q` was pressed meanwhile."""
        if self._before is None:
            time.sleep(seconds)
            return False
        fd = sys.stdin.fileno()
        end = time.monotonic() + seconds
        while select.select([fd], [], [], max(0.0, end - time.monotonic()))[0]:
            key = os.read(fd, 1)
            if key in (b"q", b"Q", b""):
                return True
        return False


@contextlib.contextmanager
def _stops_outside(live: Live, keys: _Keys) -> Iterator[None]:
    """Gives the terminal back while Ctrl-Z has stopped the process."""

    def stop(number: int, _frame: FrameType | None) -> None:
        live.stop()
        keys.__exit__()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        # It goes on.
        signal.signal(number, stop)
        keys.__enter__()
        live.start(refresh=True)

    is_default = signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL
    if is_default:
        signal.signal(signal.SIGTSTP, stop)
    try:
        yield
    finally:
        if is_default:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)
