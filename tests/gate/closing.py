"""Reads what runners of tests say at their end: how many tests, how many retries, and what was skipped, and why.

The runners are cargo, pytest, the ones of tests/conformance, tests/suites and tests/mutants, and the Makefile, which
says `skipped: REASON` in place of a step that cannot run here.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

#: The escape sequences of colours.
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CARGO = re.compile(r"test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored;")
PYTEST = re.compile(r"(?:=+ )?((?:\d+ [a-z]+(?:, )?)+|no tests ran) in \d+\.\d+s\b.*")
PYTEST_SKIPPED = re.compile(r"SKIPPED \[(\d+)\] [^ ]+: (.*)")
RUNNER = re.compile(r"(\d+) passed, (\d+) failed, (\d+) skipped")
RETRIES = re.compile(r"retries(?: on asyncio, for the baseline)?: (\d+)\b.*")
REGRESSIONS = re.compile(r"regressions against asyncio: \d+")
MUTANTS = re.compile(r"(\d+) mutants: .*")
STEP = re.compile(r"skipped: (.*)")
NOTHING_TO_COMPARE = re.compile(r".* (carries no test\.test_asyncio)\b.*")

#: The outcomes of pytest's closing line that are tests which ran.
RAN = {"passed", "failed", "error", "errors", "xfailed", "xpassed"}


@dataclass
class Closing:
    """The sum of a part's closing lines. Without such a line, `tests` is None."""

    tests: int | None = None
    retries: int = 0
    skipped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)

    def count(self, tests: int, skipped: int = 0) -> None:
        self.tests = (self.tests or 0) + tests
        self.skipped += skipped

    def read(self, line: str) -> bool:
        """Counts what a line says. Returns whether it is a closing line."""
        if found := CARGO.match(line):
            passed, failed, ignored = map(int, found.groups())
            self.count(passed + failed, ignored)
            self.reasons["ignored in Rust"] += ignored
        elif found := RUNNER.fullmatch(line):
            passed, failed, skipped = map(int, found.groups())
            self.count(passed + failed, skipped)
        elif found := PYTEST.fullmatch(line):
            counts = {what: int(number) for number, what in re.findall(r"(\d+) (\w+)", found[1])}
            self.count(sum(number for what, number in counts.items() if what in RAN), counts.get("skipped", 0))
        elif found := MUTANTS.fullmatch(line):
            self.count(int(found[1]))
        elif found := RETRIES.fullmatch(line):
            self.retries += int(found[1])
        elif found := STEP.fullmatch(line) or NOTHING_TO_COMPARE.fullmatch(line):
            self.skipped += 1
            self.reasons[found[1]] += 1
        elif found := PYTEST_SKIPPED.fullmatch(line):
            # The closing line has the number.
            self.reasons[found[2]] += int(found[1])
            return False
        else:
            return REGRESSIONS.fullmatch(line) is not None
        return True

    def why(self, width: int = 60) -> str:
        """The number of skipped tests and steps, and the reasons for most of them, in `width` columns or a few more."""
        if not self.skipped:
            return ""
        said = f"{self.skipped}:"
        named = 0
        for reason, number in self.reasons.most_common():
            if number and len(said) < width:
                said += f" {shortened(reason)}," if number == self.skipped else f" {number} {shortened(reason)},"
                named += number
        if (others := self.skipped - named) > 0:
            said += f" {others} others,"
        return said[:-1]


def closing(output: str) -> Closing:
    """The closing lines of a part's runners."""
    found = Closing()
    for line in COLOUR.sub("", output).splitlines():
        if found.read(line := line.strip()):
            found.lines.append(line)
    return found


def last_line(output: str) -> str:
    """The last line that is not make's, for programs without a closing line."""
    lines = [line.strip() for line in COLOUR.sub("", output).splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith("make")), "")


def shortened(reason: str, width: int = 30) -> str:
    reason = reason.removeprefix("Skipped: ").partition("; ")[0]
    return reason if len(reason) <= width else reason[: width - 1].rstrip(" -") + "…"
