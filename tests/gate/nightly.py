"""Runs the long parts one by one, and remembers what each found; `make nightly` and `make nightly-report` call it.

    python -m tests.gate.nightly            every part that has not run on this commit
    python -m tests.gate.nightly PART ...   these parts, even if they have
    python -m tests.gate.nightly --report   when each part last ran, on which commit, and what it found

A run that was interrupted is continued when it is started again. With uncommitted changes in the tree, every part runs.
The records and logs are in target/nightly. Exit code 1: a part failed.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from .parts import ROOT, Limit, Outcome, run, table

RECORDS = ROOT / "target" / "nightly"

#: The parts, the quick ones first, and the targets of the Makefile that each consists of.
PARTS: dict[str, tuple[str, ...]] = {
    "measure": ("measure",),
    "test-rust-with-python": ("test-rust-with-python",),
    "shuttle": ("shuttle",),
    "loom": ("loom",),
    "miri": ("miri",),
    "sanitize": ("sanitize",),
    "other-systems": ("other-systems",),
    "guides": ("every-guide",),
    "determinism": ("determinism",),
    "release-check": ("release-check",),
    "stress-loops": ("stress-loops",),
    "stress-loops-sanitized": ("stress-loops-sanitized",),
    "sanitize-threads": ("sanitize-threads",),
    "soak": ("soak",),
    "fuzz": ("fuzz",),
    "fuzz-coverage": ("fuzz-coverage", "SECONDS_EACH=1200"),
    "wheels": ("wheels", "check-wheels", "check-sdist"),
    "arm64": ("wheels", "check-arm64", "WHEEL_SYSTEMS=aarch64-unknown-linux-gnu"),
    "debug-python": ("debug-python",),
    "mutants": ("mutants",),
    "mutants-python": ("mutants-python",),
    "conformance-matrix": ("conformance-matrix",),
    "ecosystem": ("ecosystem",),
}

#: Seconds for one part. The longest takes two hours.
LIMIT = 8 * 3600


@dataclass
class Record:
    """The record of a part's last run."""

    part: str
    commit: str
    when: str
    seconds: int
    verdict: str
    said: str

    @staticmethod
    def file(part: str) -> Path:
        return RECORDS / f"{part}.json"

    @classmethod
    def read(cls, part: str) -> "Record | None":
        file = cls.file(part)
        return cls(**json.loads(file.read_text())) if file.exists() else None

    def write(self) -> None:
        self.file(self.part).parent.mkdir(parents=True, exist_ok=True)
        self.file(self.part).write_text(json.dumps(asdict(self), indent=1) + "\n")


def commit() -> str:
    """The commit that is checked out, and whether the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def verdict(outcome: Outcome) -> str:
    """`ok` only for what has run: a target that needs a tool which is missing says so, and succeeds."""
    was_skipped = outcome.good and outcome.closing.tests is None and outcome.last_line.startswith("skipped:")
    return "skipped" if was_skipped else outcome.verdict


def said(outcome: Outcome) -> str:
    """One line: the last of the closing lines that counts tests, or the last line of all."""
    lines = [line for line in outcome.closing.lines if not line.startswith(("retries", "skipped:"))]
    line = lines[-1].strip("= ") if lines else outcome.last_line
    retries = f"; {outcome.closing.retries} retries" if outcome.closing.retries else ""
    skipped = f"; skipped {why}" if (why := outcome.closing.why()) else ""
    return f"{line}{retries}{skipped}"


def has_run(part: str, now: str) -> bool:
    record = Record.read(part)
    return record is not None and record.commit == now and not now.endswith("-dirty")


def report(parts: list[str]) -> Iterator[tuple[str, ...]]:
    yield "part", "result", "when", "commit", "seconds", "said"
    for part in parts:
        if record := Record.read(part):
            yield part, record.verdict, record.when, record.commit, str(record.seconds), record.said
        else:
            yield part, "never ran", "", "", "", ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gate.nightly", description="Runs the long parts.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"any of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--report", action="store_true", help="print the records, and run nothing")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    chosen = options.parts or list(PARTS)
    if not options.report:
        now = commit()
        for part in chosen:
            if part not in options.parts and has_run(part, now):
                print(f"{part} has run on {now}", flush=True)
                continue
            print(f"\n== {part}", flush=True)
            limit = Limit(LIMIT)
            when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
            command = ["make", "--no-print-directory", *PARTS[part]]
            outcome = run(part, command, RECORDS / f"{part}.log", os.environ, limit, sys.stdout.write)
            if limit.is_told:
                print(f"{part} was interrupted: nothing is recorded")
                return 130
            Record(part, now, when, round(outcome.seconds), verdict(outcome), said(outcome)).write()
    print(f"\n{table(list(report(chosen)), to_the_left=(0, 1, 2, 3))}")
    bad = [part for part in chosen if (record := Record.read(part)) and record.verdict not in ("ok", "skipped")]
    return 1 if bad and not options.report else 0


if __name__ == "__main__":
    sys.exit(main())
