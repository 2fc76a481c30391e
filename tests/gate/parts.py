"""Parts of a run: each is a target of the Makefile, whose output goes to the terminal and into a log.

A log is a file, and not a pipe: a process that a part leaves behind must not keep the whole from ending.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .closing import Closing, closing, last_line

ROOT = Path(__file__).parent.parent.parent
#: How often a log is read, in seconds.
PAUSE = 0.1
#: How long a part that has reached the time limit may take to end.
GRACE = 10.0

Say = Callable[[str], object]


@dataclass
class Outcome:
    """The result of one part."""

    name: str
    verdict: str
    seconds: float
    closing: Closing
    last_line: str = ""

    @property
    def good(self) -> bool:
        return self.verdict == "ok"


class Limit:
    """The time limit of a run. It is over at once if the run is told to end, by Ctrl-C or by SIGTERM."""

    def __init__(self, seconds: float) -> None:
        self.is_told = False
        self._end = time.monotonic() + seconds
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._tell)

    def _tell(self, *_: object) -> None:
        self.is_told = True

    def is_over(self) -> bool:
        return self.is_told or time.monotonic() > self._end


def run(
    name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], limit: Limit, say: Say
) -> Outcome:
    """Runs a part until it ends, or until the limit is over."""
    started = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0
        )
    try:
        in_time = follow(process, log, limit, say)
    finally:
        end(process)
    text = log.read_text(errors="replace")
    verdict = "ENDED" if not in_time else "ok" if process.returncode == 0 else "FAILED"
    return Outcome(name, verdict, time.monotonic() - started, closing(text), last_line(text))


def follow(process: subprocess.Popen[bytes], log: Path, limit: Limit, say: Say) -> bool:
    """Says each line of the log, until the process has ended. Returns False if the limit was over first."""
    rest = ""
    with open(log, errors="replace") as lines:
        while True:
            ended = process.poll() is not None
            complete, newline, rest = (rest + lines.read()).rpartition("\n")
            if newline:
                say(complete + newline)
            elif ended:
                say(f"{rest}\n" if rest else "")
                return True
            elif limit.is_over():
                return False
            else:
                time.sleep(PAUSE)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a part that still runs, with the processes of its group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                pass


def table(rows: Sequence[Sequence[str]], to_the_left: Sequence[int]) -> str:
    """Aligns columns, those whose numbers are given to the left. The last one is as wide as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column in to_the_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)
