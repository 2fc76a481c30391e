"""Shows with perf where the CPU time of an operation goes: to the kernel, the interpreter, OpenSSL or the loop.

    python benchmarks/shares.py [--only GLOB]... [--rounds N] [--page FILE]

Unlike ``instructions.py``, this includes the kernel's work. perf samples each scenario's process while it works, and each
sample belongs to the file that its code is from. Beside the shares are the ratio to uvloop, from rounds without perf, and
the ratio if our own library, the C library and the clock cost nothing. No change of the loop can go beyond that, with the
same system calls and the same Python code of the user.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import report
import tls
from clients import CLIENTS
from inprocess import SCENARIOS
from loops import REFERENCE, split
from processes import ChildError, cores
from results import OURS
from run import Contender, Settings, chosen
from servers import SERVERS

NAMES = [*SCENARIOS, *(name for name, it in SERVERS.items() if it.metric == "cpu_us"), *CLIENTS]
FREQUENCY = 4999
# Rounds that are sampled, and how long perf may take to attach.
SAMPLED_ROUNDS, ATTACH = 4, 0.4
# The owner of a file's code, by the first pattern that matches; perf gives names without directories.
OWNERS = (
    ("kernel", r"^\[kernel|^\[guest"),
    ("interpreter", r"^libpython|^python"),
    ("OpenSSL", r"^lib(ssl|crypto)"),
    ("loop", r"^_core\."),
    ("C library", r"^libc[.-]|^libm\.|^libpthread|^ld-linux|^\[vdso\]"),
)
COLUMNS = (*(name for name, _ in OWNERS), "other")
# The most that the loop could save.
AVOIDABLE = ("loop", "C library")

Shares = dict[str, float]


def owner(name: str) -> str:
    return next((who for who, pattern in OWNERS if re.search(pattern, name)), "other")


def shares_in(recording: Path) -> Shares:
    """The part of all samples that each owner has; ChildError if there are none."""
    command = ["perf", "report", "-i", str(recording), "--stdio", "--no-children", "-g", "none", "--sort", "dso"]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = dict.fromkeys(COLUMNS, 0.0)
    for percent, name in re.findall(r"^\s+([\d.]+)%\s+(\S+)", text, re.MULTILINE):
        found[owner(name)] += float(percent)
    if not (total := sum(found.values())):
        raise ChildError("perf took no samples")
    return {who: found[who] / total for who in COLUMNS}


def sampled(contender: Contender) -> Shares:
    """Runs more rounds of a contender that has already run, under perf."""
    assert contender.process is not None
    with tempfile.TemporaryDirectory() as directory:
        recording = Path(directory) / "perf.data"
        command = ["perf", "record", "-q", "-F", str(FREQUENCY), "-o", str(recording), "-p", str(contender.process.pid)]
        perf = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            time.sleep(ATTACH)
            for _ in range(SAMPLED_ROUNDS):
                contender.round()
        finally:
            perf.send_signal(signal.SIGINT)
            perf.wait(30)
        if "fail" in contender.row:
            raise ChildError(contender.row["fail"])
        return shares_in(recording)


def measure(name: str, settings: Settings) -> tuple[float, list[float], Shares]:
    """Our cost in microseconds, the ratios to the reference, and the shares."""
    contenders = {loop: Contender(name, loop, settings) for loop in settings.loops}
    try:
        for _ in range(settings.rounds):
            for contender in random.sample(list(contenders.values()), len(contenders)):
                contender.round()
                if "fail" in contender.row:
                    raise ChildError(f"{contender.loop}: {contender.row['fail']}")
        ours, reference = contenders[OURS], contenders[REFERENCE]
        cost, found = report.median_of(ours.row, "cpu_us"), report.ratios(ours.row, reference.row)
        assert cost is not None
        return cost, found, sampled(ours)
    finally:
        for contender in contenders.values():
            contender.close()


def line(name: str, cost: float, ratios: list[float], shares: Shares) -> str:
    ratio = statistics.median(ratios)
    most = ratio / (1 - sum(shares[who] for who in AVOIDABLE))
    cells = [name, f"{cost:.3g} us", f"{ratio:.2f} [{min(ratios):.2f}–{max(ratios):.2f}]"]
    cells += [f"{shares[who]:.0%}" if shares[who] >= 0.1 else f"{shares[who]:.1%}" for who in COLUMNS]
    return "| " + " | ".join([*cells, f"{most:.2f}"]) + " |"


def heading(title: str, rounds: int) -> list[str]:
    about = report.meta([REFERENCE, OURS])
    titles = ["scenario", "cost", f"ratio to {REFERENCE}", *COLUMNS, "ratio if ours cost nothing"]
    return [
        f"# {title}",
        "",
        f"Measured {about['date']} on {about['machine']}; Python {about['python'].split()[0]}; {rounds} rounds: the CPU"
        f" time of an operation on {OURS}, and whose code it was spent in. The last ratio leaves out all that is in our"
        " library, in the C library and in the clock: no loop that makes the same system calls and runs the same Python can"
        " go beyond it there."
        f" {report.loopback(about)} Made by `benchmarks/shares.py`, which says how.",
        "",
        "| " + " | ".join(titles) + " |",
        "|" + " --- |" * len(titles),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="where the CPU time of an operation goes, by perf")
    parser.add_argument("--only", action="append", metavar="GLOB", help="scenarios by name; may be repeated")
    parser.add_argument("--title", default="Where the time goes", help="of the page")
    parser.add_argument("--rounds", type=int, default=7, help="rounds for the ratio")
    parser.add_argument("--page", type=Path, help="where the table goes, beside the terminal")
    arguments = parser.parse_args()
    if shutil.which("perf") is None:
        print("perf is not installed; it is a package of that name or linux-perf, linux-tools")
        return 2
    names = chosen(NAMES, arguments.only)
    loops, missing = split([REFERENCE, OURS])
    if missing:
        print(*(f"{loop} is needed: {why}" for loop, why in missing.items()), sep="\n")
        return 2
    tls.certificate()
    server_cpu, load_cpu = cores()
    settings = Settings(loops, arguments.rounds, 0.2, 0.5, 0.15, server_cpu, load_cpu, fresh=False)
    text = heading(arguments.title, arguments.rounds)
    print("\n".join(text[4:]), flush=True)
    for name in names:
        try:
            text.append(line(name, *measure(name, settings)))
        except ChildError as error:
            text.append(f"| {name} | FAIL: {error} |" + " |" * (len(COLUMNS) + 3))
        print(text[-1], flush=True)
    if arguments.page:
        arguments.page.write_text("\n".join(text) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
