"""The contest of the demo: real services under real load, on each loop in turn.

Every service runs in its own process on every loop. The load generator asks them round by round, in an order that
rotates, and compares every byte of their answers. Where there are two cores, the servers run on one and the load on the
other. CPU time is that of the server process, over exactly the requests that were counted.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import load_generator
from processes import Child, ChildError, cores
from side_by_side.services import BODY, DOCUMENT, HELLO, MESSAGE

WORKER = Path(__file__).parent.parent / "worker.py"

CONNECTIONS = 32
START_TIMEOUT = 30.0
PRACTICE = 0.2
LOOPS = ("asyncio", "uvloop", "wakeloop")
RUST = "rust echo"


@dataclass(frozen=True)
class Service:
    """A server, and the load that it gets."""

    title: str
    server: str
    """A scenario of ``services.py``."""
    target: str
    """The load generator's, with the port left open."""
    load: dict[str, Any]


def _http(title: str, path: str, body: bytes) -> Service:
    return Service(title, "demo/uvicorn", f"http://127.0.0.1:{{port}}{path}", {"expect_body": body})


def _echo(title: str, server: str) -> Service:
    return Service(title, server, "tcp://127.0.0.1:{port}", {"size": MESSAGE})


SERVICES = (
    _http("uvicorn hello", "/", HELLO),
    _http("uvicorn JSON", "/json", DOCUMENT),
    _http("uvicorn 10 KiB", "/body", BODY),
    _echo("streams 1 KiB", "demo/streams"),
    _echo("protocol 1 KiB", "demo/protocol"),
)
# The Rust primitive does the same work as the last service, and is compared with uvloop there.
RUST_SERVICE = SERVICES[-1]


@dataclass(frozen=True)
class Sample:
    """One round."""

    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float
    busy: float
    """The part of a core that the server used. Well below 1, it could have answered more."""
    load_busy: float
    """The part of its core that the load generator used."""


@dataclass
class Entry:
    """One service on one loop."""

    service: Service
    loop: str
    samples: list[Sample] = field(default_factory=list)
    errors: int = 0
    trouble: str | None = None
    """The first error, or why there is nothing to show."""

    def median(self, name: str) -> float:
        return float(statistics.median(getattr(sample, name) for sample in self.samples))

    def ratios(self, reference: Entry) -> list[float]:
        """The reference's CPU time per request over ours, round by round."""
        pairs = zip(self.samples, reference.samples)
        return [theirs.cpu_us / ours.cpu_us for ours, theirs in pairs if ours.cpu_us]


@dataclass
class Results:
    entries: list[Entry]
    reference: str
    rounds: int

    def reference_for(self, entry: Entry) -> Entry | None:
        """The entry that this one is compared with; None for the reference itself and for entries without figures."""
        for other in self.entries:
            if other.loop == self.reference and other.service == entry.service and other is not entry:
                return other if other.samples and entry.samples else None
        return None

    def troubled(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.errors or entry.trouble]

    def as_json(self) -> str:
        rows = [
            {
                "service": entry.service.title,
                "loop": entry.loop,
                "samples": [vars(sample) for sample in entry.samples],
                "ratio": statistics.median(entry.ratios(reference)) if reference else None,
                "errors": entry.errors,
                "trouble": entry.trouble,
            }
            for entry in self.entries
            for reference in [self.reference_for(entry)]
        ]
        return json.dumps({"reference": self.reference, "rounds": self.rounds, "rows": rows}, indent=1)


class Contest:
    """The servers, the load, and the rounds."""

    def __init__(self, loops: list[str], window: float, warmup: float) -> None:
        self.window, self.warmup = window, warmup
        self.server_cpu, self.load_cpu = cores()
        self.stack = ExitStack()
        self.entries = [Entry(service, loop) for service in SERVICES for loop in loops]
        if "wakeloop" in loops:
            self.entries.append(Entry(RUST_SERVICE, RUST))
        self.servers: dict[tuple[str, str], tuple[int, int]] = {}

    def __enter__(self) -> Contest:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def start(self, report: Callable[[str], None]) -> None:
        """Builds the load generator and starts every server. If one does not start, its entries say so."""
        report("building the load generator")
        load_generator.program()
        for entry in self.entries:
            key = self._key(entry)
            if key in self.servers or entry.trouble:
                continue
            server, loop = key
            report(f"starting {server.removeprefix('demo/')} on {loop}")
            try:
                child = self.stack.enter_context(
                    Child(str(WORKER), "--loop", loop, "--scenario", server, "--cpu", str(self.server_cpu))
                )
                self.servers[key] = child.receive(START_TIMEOUT)["port"], child.pid
            except ChildError as error:
                for other in self.entries:
                    if self._key(other) == key:
                        other.trouble = f"did not start: {error}"

    def practice(self, report: Callable[[Entry], None]) -> None:
        """A short round before the first, of which only the errors count.

        A server's first thousands of requests cost more than later ones, above all on asyncio: until the allocator has
        adapted to the size of its receive buffers, it maps each of them anew.
        """
        window, self.window = self.window, PRACTICE
        self.round(0, report)
        self.window = window
        for entry in self.entries:
            entry.samples.clear()

    def round(self, number: int, report: Callable[[Entry], None]) -> None:
        """One turn for every entry: service by service, the loops in an order that rotates."""
        for service in SERVICES:
            entries = [entry for entry in self.entries if entry.service == service]
            turn = number % len(entries)
            for entry in entries[turn:] + entries[:turn]:
                report(entry)
                if entry.trouble is None:
                    self._measure(entry)

    def _key(self, entry: Entry) -> tuple[str, str]:
        return ("demo/rust", "wakeloop") if entry.loop == RUST else (entry.service.server, entry.loop)

    def _measure(self, entry: Entry) -> None:
        port, pid = self.servers[self._key(entry)]
        try:
            answer = load_generator.run(
                entry.service.target.format(port=port), pid, cpu=self.load_cpu, connections=CONNECTIONS,
                duration=self.window, warmup=self.warmup, **entry.service.load,
            )  # fmt: skip
        except ChildError as error:
            entry.trouble = str(error)
            return
        entry.errors += sum(answer["errors"].values())
        if answer["errors"] or not answer["requests"]:
            entry.trouble = answer["first_error"] or "no request was answered"
            return
        requests, latency = answer["requests"], answer["latency_us"]
        entry.samples.append(
            Sample(
                rate=answer["rate"],
                cpu_us=answer["watched_cpu_seconds"] / requests * 1e6,
                p50_us=latency["p50"],
                p99_us=latency["p99"],
                busy=answer["watched_cpu_seconds"] / answer["seconds"],
                load_busy=answer["own_cpu_seconds"] / answer["seconds"],
            )
        )
