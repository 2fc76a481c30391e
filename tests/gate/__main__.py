"""Runs everything that a change must pass, and ends with one table.

    python -m tests.gate            what `make test` and CI run
    python -m tests.gate PART ...   some parts; `make PART` runs one, too

A part is a target of the Makefile. A part that fails does not keep the others from running, unless it builds what they
need. The logs of the parts are in target/gate. Exit code 1: a part failed, or files were left behind.
"""

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .closing import Closing
from .parts import ROOT, Limit, Outcome, run, table

LOGS = ROOT / "target" / "gate"

#: The parts of a lane run one after the other, and the lanes of a stage beside each other. The first lane's output is
#: printed at once, and that of another when a part of it has ended. Conformance runs alone: asyncio's own tests expect
#: a machine that has time for them.
STAGES: tuple[tuple[tuple[str, ...], ...], ...] = (
    (("environment",),),
    (("build", "requirements"), ("lint",)),
    (("test-rust",), ("types", "extension", "docs", "guides")),
    (("test-loop",), ("test-others",)),
    (("conformance-quick",),),
)
#: If one of these fails, the stages after it do not run.
NEEDED = {"environment", "build", "requirements"}
#: Parts that run tests. If one ends without saying how many, it fails.
TESTS = {"types", "test-rust", "test-loop", "test-others", "conformance-quick", "guides", "extension"}

#: All of it takes 13 to 28 minutes on two quiet cores. The limit allows for a machine that has other work, and takes four
#: times as long: it is for what never ends, and each test has a limit of its own.
LIMIT = 110 * 60

#: Where programs that tests start would write in the home, if a test let them.
IN_HOME = (".config/dask", ".config/matplotlib", ".dask", ".gunicorn", ".ipython", ".jupyter", ".local/share/jupyter")


class Gate:
    """Runs parts, and keeps their outcomes in the order of STAGES."""

    def __init__(self, chosen: Sequence[str], limit: Limit, environment: dict[str, str]) -> None:
        self._stages = [[[part for part in lane if part in chosen] for lane in stage] for stage in STAGES]
        parts = [part for stage in self._stages for lane in stage for part in lane]
        self.outcomes = {part: Outcome(part, "not run", 0, Closing()) for part in parts}
        self._limit = limit
        self._environment = environment
        self._terminal = threading.Lock()

    def run(self) -> None:
        for stage in self._stages:
            lanes = [
                threading.Thread(target=self._run_lane, args=(lane, number == 0)) for number, lane in enumerate(stage)
            ]
            for thread in lanes:
                thread.start()
            for thread in lanes:
                thread.join()
            if any(part in NEEDED and not self.outcomes[part].good for lane in stage for part in lane):
                return

    def _run_lane(self, lane: Sequence[str], is_first: bool) -> None:
        for part in lane:
            if self._limit.is_over():
                return
            heading = f"\n== make {part}\n"
            say = self._say if is_first else lambda text: None
            say(heading)
            log = LOGS / f"{part}.log"
            outcome = run(part, ["make", "--no-print-directory", part], log, self._environment, self._limit, say)
            if outcome.good and part in TESTS and outcome.closing.tests is None:
                outcome.verdict = "no tests"
            self.outcomes[part] = outcome
            if not is_first:
                self._say(heading + log.read_text(errors="replace"))

    def _say(self, text: str) -> None:
        with self._terminal:
            sys.stdout.write(text)
            sys.stdout.flush()


@contextmanager
def nothing_left(left: list[str]) -> Iterator[dict[str, str]]:
    """Lends an environment whose temporary files have a folder of their own. What stays there is named in `left`."""
    home = Path.home()
    before = {name for name in IN_HOME if (home / name).exists()}
    # A short name: paths of Unix sockets have at most 107 bytes. Servers that run as another user may enter it.
    with tempfile.TemporaryDirectory(prefix="wl-", ignore_cleanup_errors=True) as folder:
        os.chmod(folder, 0o1777)
        yield {**os.environ, "TMPDIR": folder}
        # pytest keeps the folders of its last three runs for those who want to look at them.
        left += sorted(f"{name} in TMPDIR" for name in os.listdir(folder) if not name.startswith("pytest-of-"))
    left += [f"~/{name}" for name in IN_HOME if name not in before and (home / name).exists()]


def rows(outcomes: Sequence[Outcome], left: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """The closing table, with its heading."""
    yield "part", "result", "tests", "seconds", "retries", "skipped"
    for outcome in outcomes:
        counts = outcome.closing
        tests = "" if counts.tests is None else str(counts.tests)
        yield outcome.name, outcome.verdict, tests, f"{outcome.seconds:.0f}", str(counts.retries), counts.why()
    yield "left behind", "FAILED" if left else "ok", "", "", "", ", ".join(left) or "nothing"


def main() -> int:
    known = [part for stage in STAGES for lane in stage for part in lane]
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description="Runs what a change must pass.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(known)} (default: all)")
    chosen = parser.parse_args().parts or known
    if unknown := set(chosen) - set(known):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    started = time.monotonic()
    left: list[str] = []
    with nothing_left(left) as environment:
        gate = Gate(chosen, Limit(LIMIT), environment)
        gate.run()
    outcomes = list(gate.outcomes.values())
    print("\n== closing lines")
    for outcome in outcomes:
        print("\n".join(outcome.closing.lines), end="\n" if outcome.closing.lines else "")
    print(f"\n{table(list(rows(outcomes, left)), to_the_left=(0, 1))}\n")
    bad = [outcome.name for outcome in outcomes if not outcome.good] + ["left behind"] * bool(left)
    seconds = f"{time.monotonic() - started:.0f} s"
    print(f"make test FAILED after {seconds}: {', '.join(bad)}" if bad else f"make test passed in {seconds}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
