"""The benchmark suite: every scenario on every loop, rounds interleaved, CPU time per operation.

    python benchmarks/run.py [--only GLOB]... [--loops a,b,c] [--quick] [--rounds N] [--list]

In each round the loops run in a random order: in an order that only rotates, a loop nearly always follows the same
other loop, whose effects on caches and clocks it would inherit. The processes are new in each round (not with --quick),
because two processes of the same program differ by more than two rounds in one. Servers run on one core and the load
generator on another, where there are two. The CPU time is the whole server process's; the load generator reads it at
both ends of its measured window.
"""

from __future__ import annotations

import argparse
import fnmatch
import random
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import report
import tls
from baseline import BASELINE, SCENARIOS_WITH_BASELINE, baseline_command
from clients import CLIENTS
from inprocess import FACTORY_SCENARIOS, SCENARIOS
from loops import KNOWN, split
from processes import Child, ChildError, cores
from servers import SERVERS, put_load

HERE = Path(__file__).parent
NAMES = [*SCENARIOS, *FACTORY_SCENARIOS, *SERVERS, *CLIENTS]
DEFAULT_LOOPS = ",".join((*KNOWN, BASELINE))
START_TIMEOUT = 30.0


@dataclass(frozen=True)
class Settings:
    loops: list[str]
    rounds: int
    inprocess_seconds: float
    server_seconds: float
    server_warmup: float
    server_cpu: int
    load_cpu: int
    fresh: bool


class Contender:
    """One loop on one scenario: its processes, while they run, and its samples."""

    def __init__(self, scenario: str, loop: str, settings: Settings) -> None:
        self.scenario, self.loop, self.settings = scenario, loop, settings
        self.row: report.Row = {"samples": []}
        self.stack = ExitStack()
        self.process: Child | None = None
        self.path, self.port = "", 0
        server = SERVERS.get(scenario)
        self.metric = server.metric if server else "cpu_us"
        self.unpinned = server is not None and server.unpinned
        self.fresh = settings.fresh or self.unpinned
        self.row["metric"] = self.metric

    def _start(self) -> Child:
        more = []
        if self.scenario in SERVERS:
            self.path = f"{self.stack.enter_context(tempfile.TemporaryDirectory())}/s"
            more = ["--path", self.path, "--cpu", str(-1 if self.unpinned else self.settings.server_cpu)]
        elif self.scenario in CLIENTS:
            peer = self._worker("uvloop" if split(["uvloop"])[0] else "asyncio", "tcp/proto/1k/c10")
            more = ["--port", str(peer.receive(START_TIMEOUT)["port"])]
        self.process = self._worker(self.loop, self.scenario, *more)
        self.port = self.process.receive(START_TIMEOUT).get("port", 0)
        if self.scenario in SERVERS and not self.unpinned:
            # A process's first connections cost more than later ones: until one has closed, glibc maps every large
            # buffer anew, and TLS on uvloop costs three times as much.
            self._put(self.process, self.settings.server_warmup, 0.0)
        return self.process

    def _worker(self, loop: str, scenario: str, *more: str) -> Child:
        if loop == BASELINE:
            program, *arguments = baseline_command(scenario, self.settings.server_cpu, self.path)
            return self.stack.enter_context(Child(*arguments, program=program))
        script = str(HERE / "worker.py")
        return self.stack.enter_context(Child(script, "--loop", loop, "--scenario", scenario, *more))

    def round(self) -> None:
        """Adds one sample, or gives up on this loop for this scenario."""
        if "fail" in self.row:
            return
        served = self.scenario in SERVERS
        try:
            process = self.process or self._start()
            sample = self._load_server(process) if served else self._work(process)
            self.row["samples"].append(sample)
        except ChildError as error:
            self.row = {"fail": str(error)}
            self.close()
        if self.fresh:
            self.close()

    def close(self) -> None:
        self.process = None
        self.stack.close()

    def _work(self, process: Child) -> dict[str, float]:
        seconds = self.settings.inprocess_seconds
        answer = process.ask(seconds, START_TIMEOUT + 10 * seconds)
        operations = answer["operations"]
        return {"cpu_us": answer["cpu"] / operations * 1e6, "rate": operations / answer["wall"]}

    def _put(self, process: Child, seconds: float, warmup: float) -> dict[str, Any]:
        where = (self.port, self.path, self.settings.load_cpu)
        return put_load(self.scenario, process.pid, *where, seconds, warmup)

    def _load_server(self, process: Child) -> dict[str, float]:
        before = memory(process.pid, "VmRSS")
        result = self._put(process, self.settings.server_seconds, self.settings.server_warmup)
        if not result["requests"]:
            raise ChildError("no request was answered")
        idle = SERVERS[self.scenario].load.get("idle", 0)
        grown = {"kib_per_idle": (memory(process.pid, "VmHWM") - before) / idle} if idle else {}
        if "kib_per_idle" in result:
            grown = {"kib_per_idle": result["kib_per_idle"]}
        return {
            **grown,
            "cpu_us": result["watched_cpu_seconds"] / result["requests"] * 1e6,
            "rate": result["rate"],
            "p50_us": result["latency_us"]["p50"],
            "p99_us": result["latency_us"]["p99"],
            "load_cpu_us": result["own_cpu_seconds"] / result["requests"] * 1e6,
        }


def memory(pid: int, field: str) -> int:
    """A field of /proc/PID/status, in KiB; 0 where there is no such file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field + ":")), 0)


def run_scenario(name: str, settings: Settings) -> dict[str, report.Row]:
    loops = [loop for loop in settings.loops if loop != BASELINE or name in SCENARIOS_WITH_BASELINE]
    contenders = [Contender(name, loop, settings) for loop in loops]
    with ExitStack() as stack:
        for contender in contenders:
            stack.callback(contender.close)
        fewer = SERVERS[name].rounds if name in SERVERS else None
        for _ in range(min(settings.rounds, fewer or settings.rounds)):
            for contender in random.sample(contenders, len(contenders)):
                contender.round()
    return {contender.loop: contender.row for contender in contenders}


def chosen(names: list[str], globs: list[str] | None) -> list[str]:
    """The names that match one of the patterns, or all names if there is no pattern."""
    return [name for name in names if any(fnmatch.fnmatchcase(name, glob) for glob in globs or ["*"])]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="wakeloop's benchmark suite")
    parser.add_argument("--only", action="append", metavar="GLOB", help="scenarios by name; may be repeated")
    parser.add_argument("--loops", default=DEFAULT_LOOPS, help="names, separated by commas; missing ones are left out")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help="rounds per scenario")
    parser.add_argument("--out", type=Path, help="the JSON file (benchmarks/out/<time>.json)")
    parser.add_argument("--list", action="store_true", help="names the scenarios and ends")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    names = chosen(NAMES, arguments.only)
    if arguments.list or not names:
        print("\n".join(names or ["no scenario has such a name; --list names them"]))
        return 0 if names else 2
    loops, missing = split(arguments.loops.split(","))
    for name, why in missing.items():
        print(f"{name} is left out: {why}")
    if any(name.startswith("tls/") for name in names):
        tls.certificate()  # before the servers start, which take it from the environment
    server_cpu, load_cpu = cores()
    quick = arguments.quick
    rounds = arguments.rounds or (3 if quick else 11)
    lengths = (0.1, 0.3, 0.1) if quick else (0.2, 0.5, 0.15)
    settings = Settings(loops, rounds, *lengths, server_cpu, load_cpu, fresh=not quick)
    about = report.meta(loops, rounds=rounds, quick=quick)
    width = max(map(len, [*names, "CPU us per operation"])) + 1
    rows: report.Rows = {}
    start = time.monotonic()
    print(report.heading(loops, width), flush=True)
    try:
        for number, name in enumerate(names, 1):
            if sys.stdout.isatty():
                print(f"\r{number}/{len(names)} {name} …", end="\r", flush=True)
            rows[name] = run_scenario(name, settings)
            print(report.line(name, rows[name], loops, width), flush=True)
    except KeyboardInterrupt:
        print("interrupted; what was measured is saved")
    for text in report.failures(rows):
        print(text)
    out = arguments.out or HERE / "out" / time.strftime("%Y%m%d-%H%M%S.json")
    report.save(out, rows, {**about, "seconds": round(time.monotonic() - start, 1)})
    print(f"{len(rows)} scenarios in {time.monotonic() - start:.0f} s; {out}")
    return 1 if any("fail" in row for by_loop in rows.values() for row in [by_loop.get("wakeloop", {})]) else 0


if __name__ == "__main__":
    sys.exit(main())
