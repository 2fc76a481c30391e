"""``make demo``: real services under real load, on asyncio, uvloop and wakeloop side by side.

Every service runs in its own process on every loop; the Rust load generator, in a process of its own, gives them
their turns round by round, in an order that rotates, and compares every byte they answer. Where there are two
cores, servers stand on one and the load on the other. CPU time is the server process's, over exactly the requests
that were counted.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from wakeloop.demo.processes import Child, ChildError, cores, load_process, run_load
from wakeloop.demo.serve import BODY, DOCUMENT, HELLO, MESSAGE

CONNECTIONS = 32
START_PATIENCE = 30.0
PRACTICE = 0.2
LOOPS = ("asyncio", "uvloop", "wakeloop")
RUST = "rust echo"


@dataclass(frozen=True)
class Service:
    """What is asked of a server; ``server`` names it in ``serve.py``."""

    title: str
    server: str
    load: dict[str, Any]


def _http(path: str, body: bytes) -> dict[str, Any]:
    return {"kind": "http", "url_path": path, "expect_body": body}


_ECHO = {"kind": "echo", "size": MESSAGE}
SERVICES = (
    Service("uvicorn hello", "uvicorn", _http("/", HELLO)),
    Service("uvicorn JSON", "uvicorn", _http("/json", DOCUMENT)),
    Service("uvicorn 10 KiB", "uvicorn", _http("/body", BODY)),
    Service("streams 1 KiB", "streams", _ECHO),
    Service("protocol 1 KiB", "protocol", _ECHO),
)
# The Rust primitive does the work of the last service, and is compared with uvloop there.
RUST_SERVICE = SERVICES[-1]


@dataclass(frozen=True)
class Sample:
    """One round."""

    rate: float
    cpu_us: float
    p50_us: float
    p99_us: float
    busy: float
    """The part of a core that the server used: well below 1 it could have answered more."""
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
        """What this entry is compared with; None for the reference itself and for what has no figures."""
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


def available(names: list[str]) -> tuple[list[str], list[str]]:
    """The loops that can be imported here, and those that cannot."""
    found = [name for name in names if name == "asyncio" or importlib.util.find_spec(name)]
    return found, [name for name in names if name not in found]


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
        self.load = self.stack.enter_context(load_process(self.load_cpu))
        return self

    def __exit__(self, *exception: object) -> None:
        self.stack.close()

    def start(self, report: Callable[[str], None]) -> None:
        """Starts every server; one that does not come up is a trouble of its entries."""
        for entry in self.entries:
            key = self._key(entry)
            if key in self.servers or entry.trouble:
                continue
            server, loop = key
            report(f"starting {server} on {loop}")
            try:
                child = self.stack.enter_context(
                    Child(
                        *("-m", "wakeloop.demo.serve", "--service", server, "--loop", loop),
                        *("--cpu", str(self.server_cpu)),
                    )
                )
                self.servers[key] = child.receive(START_PATIENCE)["port"], child.pid
            except ChildError as error:
                for other in self.entries:
                    if self._key(other) == key:
                        other.trouble = f"did not start: {error}"

    def practice(self, report: Callable[[Entry], None]) -> None:
        """A short round before the first, of which only the errors count: a server's first thousands of requests
        cost more than all later ones, most of all asyncio's (its receive buffers are mapped afresh until the
        allocator has learnt their size)."""
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
        return ("rust", "wakeloop") if entry.loop == RUST else (entry.service.server, entry.loop)

    def _measure(self, entry: Entry) -> None:
        port, pid = self.servers[self._key(entry)]
        try:
            answer = run_load(
                self.load, pid, port=port, connections=CONNECTIONS, duration=self.window, warmup=self.warmup,
                **entry.service.load,
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
