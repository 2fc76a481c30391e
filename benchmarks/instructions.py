"""Counts, with valgrind, how many instructions an operation takes outside the kernel, and in whose code.

    python benchmarks/instructions.py [--only GLOB]... [--loops a,b] [--page FILE]

Unlike time, the counts do not depend on what else the machine does. Each scenario runs twice, shorter and longer, and the
difference is divided by the difference in operations: start and end of the process cancel out. The counts cover everything
the process does, by the file that the code is from: the interpreter, the loop's own library, OpenSSL, the C library. The
kernel's work is not included; see the baseline in ``run.py``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import tls
from clients import CLIENTS
from inprocess import FACTORY_SCENARIOS, SCENARIOS
from loops import REFERENCE, split
from processes import Child, ChildError, cores
from run import chosen
from servers import SERVERS, put_load

HERE = Path(__file__).parent
NAMES = [*SCENARIOS, *FACTORY_SCENARIOS, *(name for name, it in SERVERS.items() if it.metric == "cpu_us"), *CLIENTS]
TIMEOUT = 300.0
# Operations of the shorter and the longer run of a server; seconds of them where the load counts no operations. With ten
# times fewer, one collection of garbage more or less in a run is 2 % of a row.
REQUESTS = (1000, 5000)
SECONDS = (1.0, 4.0)
# The owner of a file's code, by the first pattern that its path matches.
OWNERS = (
    ("loop", r"/wakeloop/_core|/uvloop/|/rloop/|/rsloop/|/zuvloop/|/aiofastnet/"),
    ("OpenSSL", r"/lib(ssl|crypto)"),
    ("interpreter", r"/libpython|/bin/python|/lib-dynload/"),
    ("C library", r"/libc\.so|/libc-|/libm|/ld-linux|/libpthread|/vgpreload"),
)
COLUMNS = (*(name for name, _ in OWNERS), "other")

Counts = Counter[str]


def owner(path: str) -> str:
    return next((name for name, pattern in OWNERS if re.search(pattern, path)), "other")


def counts_of(profile: Path) -> Counts:
    """Reads what each owner's code cost by itself from a file of callgrind (see "cl-format" in valgrind's manual)."""
    objects: dict[str, str] = {}
    counts: Counts = Counter()
    current, called = "other", False
    for line in profile.read_text().splitlines():
        if line.startswith("ob="):
            number, _, path = line[3:].partition(" ")
            current = owner(objects.setdefault(number, path))
        elif line.startswith("cob="):
            number, _, path = line[4:].partition(" ")
            objects.setdefault(number, path)
        elif line.startswith("calls="):
            called = True  # the next line is the cost of the callee, which is counted where it is
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if not called:
                counts[current] += int(line.split()[1])
            called = False
    return counts


def load_server(name: str, port: int, path: str, pid: int, place: int) -> int:
    """Puts the load of a scenario on a server; returns how many requests it answered."""
    timed = SERVERS[name].load["scheme"] == "tls"
    duration = SECONDS[place] if timed else TIMEOUT / 2
    result = put_load(name, pid, port, path, cores()[1], duration, 0.0, count=REQUESTS[place])
    return int(result["requests"])


def measure(loop: str, name: str, directory: Path, place: int) -> tuple[int, Counts]:
    """The operations of one run, and what the whole process cost."""
    profile = directory / f"{place}.callgrind"
    worker = ["--loop", loop, "--scenario", name, "--path", str(directory / f"s{place}")]
    if name in CLIENTS:
        peer = Child(str(HERE / "worker.py"), "--loop", "asyncio", "--scenario", "tcp/proto/1k/c10")
        with peer:
            worker += ["--port", str(peer.receive(30)["port"])]
            return counted(name, profile, worker, place)
    return counted(name, profile, worker, place)


def counted(name: str, profile: Path, worker: list[str], place: int) -> tuple[int, Counts]:
    valgrind = ["--quiet", "--tool=callgrind", f"--callgrind-out-file={profile}", sys.executable]
    with Child(*valgrind, str(HERE / "worker.py"), *worker, program="valgrind") as process:
        said = process.receive(TIMEOUT)
        if name in SERVERS:
            operations = load_server(name, said.get("port", 0), worker[5], process.pid, place)
        else:
            operations = process.ask(0.0 if place == 0 else SECONDS[place], TIMEOUT)["operations"]
        process.end(signal.SIGTERM, 30)
    return operations, counts_of(profile)


def instructions(loop: str, name: str) -> Counts:
    """Instructions per operation, by owner."""
    with tempfile.TemporaryDirectory() as directory:
        (fewer, before), (more, after) = (measure(loop, name, Path(directory), place) for place in (0, 1))
    if more <= fewer:
        raise ChildError(f"{more} operations in the longer run, {fewer} in the shorter")
    return Counter({who: round((after[who] - before[who]) / (more - fewer)) for who in COLUMNS})


def page(rows: dict[str, dict[str, Counts | str]], loops: list[str], versions: str) -> str:
    text = [
        "# Instructions",
        "",
        f"Counted {time.strftime('%Y-%m-%d')} with {versions}: instructions per operation outside the kernel, in all"
        " and by whose code they are. Made by `make bench-instructions`; `benchmarks/instructions.py` says what is"
        " counted.",
        "",
        f"| scenario | loop | all | {REFERENCE}'s over it | " + " | ".join(COLUMNS) + " |",
        "|" + " --- |" * (4 + len(COLUMNS)),
    ]
    for name, by_loop in rows.items():
        reference = by_loop.get(REFERENCE)
        for loop in loops:
            if isinstance(counts := by_loop[loop], str):
                text.append(f"| {name} | {loop} | {counts} |" + " |" * (1 + len(COLUMNS)))
                continue
            total = counts.total()
            ratio = f"{reference.total() / total:.2f}" if isinstance(reference, Counter) and total else "–"
            cells = [name, loop, f"{total:,}", ratio, *(f"{counts[who]:,}" for who in COLUMNS)]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="instructions per operation, by valgrind")
    parser.add_argument("--only", action="append", metavar="GLOB", help="scenarios by name; may be repeated")
    parser.add_argument("--loops", default="uvloop,wakeloop", help="names, separated by commas")
    parser.add_argument("--page", type=Path, help="where the table goes, beside the terminal")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("valgrind is not installed; it is a package of that name nearly everywhere")
        return 2
    # With random hashes, the places of strings in dicts differ from run to run, and the start of Python alone differs
    # by half a million instructions.
    os.environ["PYTHONHASHSEED"] = "0"
    names = chosen(NAMES, arguments.only)
    loops, missing = split(arguments.loops.split(","))
    for loop, why in missing.items():
        print(f"{loop} is left out: {why}")
    tls.certificate()
    width = max(map(len, names), default=0) + 1
    print(f"{'':<{width}}" + f"{'':<20}" + "".join(f"{who:>14}" for who in ("all", *COLUMNS)))
    rows: dict[str, dict[str, Counts | str]] = {}
    for name in names:
        rows[name] = {}
        for loop in loops:
            try:
                counts = rows[name][loop] = instructions(loop, name)
                text = "".join(f"{number:>14,}" for number in (counts.total(), *(counts[who] for who in COLUMNS)))
            except ChildError as error:
                rows[name][loop] = text = f"FAIL: {error}"
            print(f"{name:<{width}}{loop:<20}{text}", flush=True)
    if arguments.page:
        python = f"Python {sys.version.split()[0]}"
        arguments.page.write_text(page(rows, loops, f"{python}, {sys.platform}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
