"""Which tests execute which lines of the package, and which of them to run for a mutant.

The record of `startup/wakeloop_lines.py` has a row for each line that a test executes, and one for each phase of a
test.
"""

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Self

#: Tests that take a larger part of the time of all tests are not run for a mutant.
LONGEST = 1 / 200


@dataclass
class Coverage:
    seconds: dict[str, float] = field(default_factory=dict)
    #: By module and line.
    tests: dict[str, dict[int, set[str]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(set)))

    @cached_property
    def all_seconds(self) -> float:
        return sum(self.seconds.values())

    def add(self, record: Path) -> None:
        failed = set()
        with record.open(errors="replace") as rows:
            for row in rows:
                first, second, third = row.rstrip("\n").split("\t")
                if first.startswith("="):
                    self.seconds[first[1:]] = self.seconds.get(first[1:], 0) + float(third)
                    if second == "failed":
                        failed.add(first[1:])
                elif first:
                    self.tests[second][int(third)].add(first)
        for test in failed:
            self.seconds.pop(test, None)

    def write(self, file: Path) -> None:
        numbers = {test: number for number, test in enumerate(self.seconds)}
        lines = {
            module: {line: sorted(numbers[test] for test in tests if test in numbers) for line, tests in of.items()}
            for module, of in self.tests.items()
        }
        file.write_text(json.dumps({"tests": list(self.seconds.items()), "lines": lines}))

    @classmethod
    def read(cls, file: Path) -> Self:
        content = json.loads(file.read_text())
        names = [test for test, _ in content["tests"]]
        result = cls(dict(content["tests"]))
        for module, lines in content["lines"].items():
            for line, numbers in lines.items():
                result.tests[module][int(line)] = {names[number] for number in numbers}
        return result


class Module:
    """Chooses the tests of one module's mutants."""

    def __init__(self, coverage: Coverage, name: str, source: str) -> None:
        self.coverage = coverage
        self.lines = coverage.tests.get(name, {})
        #: The tests of files that have the module's name: they may ask for signatures, and execute no line.
        file = Path(name)
        named = file.parent.name if file.stem == "__init__" else ""
        word = (named or file.stem).strip("_").removesuffix("s")
        about = re.compile(rf"/({word}s?/|test_{word}s?[_.])")
        self.named = {test for test in coverage.seconds if about.search(file_of(test))}
        tree = ast.parse(source)
        self.statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.excepthandler)]
        self.functions = [node for node in self.statements if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        #: What runs only when a function is called.
        self.in_functions = {
            line for node in self.functions for line in range(node.body[0].lineno, (node.end_lineno or 0) + 1)
        }
        #: How much each test is about this module: a line counts the more, the fewer tests execute it.
        self.weights: dict[str, float] = defaultdict(float)
        for line in self.in_functions & self.lines.keys():
            for test in self.lines[line]:
                self.weights[test] += 1 / len(self.lines[line])
        for test in self.named:
            self.weights[test] = max(self.weights.get(test, 0), 2)

    def tests_of(self, first: int, last: int) -> set[str]:
        """The tests that execute the statement in these lines, or the function whose head they are in."""
        if not self.in_functions.issuperset(range(first, last + 1)):
            heads = [node for node in self.functions if head(node) <= first <= last < node.body[0].lineno]
            function = max(heads, key=head, default=None)
            if function is None:
                return self.usable(self.executing(self.in_functions) | self.named)
            body = range(function.body[0].lineno, (function.end_lineno or 0) + 1)
            return self.usable(self.executing(body) | self.named)
        if exact := self.executing(range(first, last + 1)):
            return self.usable(exact)
        around = [node for node in self.statements if node.lineno <= first and last <= (node.end_lineno or 0)]
        smallest = max(around, key=lambda node: (node.lineno, -(node.end_lineno or 0)))
        inner = getattr(smallest, "body", None)
        end = inner[0].lineno - 1 if inner else smallest.end_lineno or 0
        return self.usable(self.executing(range(smallest.lineno, max(end, smallest.lineno) + 1)))

    def executing(self, lines: Iterable[int]) -> set[str]:
        return set(chain.from_iterable(self.lines.get(line, ()) for line in lines))

    def usable(self, tests: Iterable[str]) -> set[str]:
        longest = LONGEST * self.coverage.all_seconds
        return {test for test in tests if self.coverage.seconds.get(test, longest) < longest}

    def chosen(self, first: int, last: int, part: float, at_most: int) -> list[str]:
        """The tests to run, which take no more than a part of the time of all tests.

        Half of them are those that are most about this module for the time that they take. The others are of as many
        files as possible, because some lines are executed by all tests.
        """

        def value(test: str) -> tuple[float, str]:
            return -self.weights.get(test, 0) / (self.coverage.seconds[test] + 0.3), test

        best = sorted(self.tests_of(first, last), key=value)
        of_files = list({file_of(test): test for test in reversed(best)}.values())
        kept: list[str] = []
        left = part * self.coverage.all_seconds
        for test in dict.fromkeys([*best[: at_most // 2], *of_files, *best]):
            if len(kept) < at_most and self.coverage.seconds[test] <= left:
                kept.append(test)
                left -= self.coverage.seconds[test]
        return kept


def file_of(test: str) -> str:
    return test.partition("::")[0]


def head(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
