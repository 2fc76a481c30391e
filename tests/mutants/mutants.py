"""Reads mutants.toml, applies a mutant to the source, and writes the tables of tests/models/MODELS.md."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DATA = Path(__file__).with_name("mutants.toml")
PAGE = ROOT / "tests" / "models" / "MODELS.md"

HEADER = "| where | mutation | caught by |\n|---|---|---|\n"
TABLE = re.compile(r"(?m)^\|.*\n(?:\|.*\n)*")
# A memory ordering passed as an argument.
ORDERING = re.compile(r"\b(?:Acquire|Release|AcqRel|SeqCst)\b(?=[,)])")
# What is not code: test modules, imports and comments.
NO_CODE = re.compile(r"(?ms)^#\[cfg\(all\(test[^\n]*\nmod \w+ \{.*|^(?:pub )?use [^;]*;|//[^\n]*")
# A model's test function. The first group is set if only shuttle runs it.
MODEL = re.compile(r"(#\[cfg\(wakeloop_shuttle\)\]\s+)?#\[test\]\s+fn (\w+)\(")


class Mistake(Exception):
    """mutants.toml does not match the source or the page."""


@dataclass(frozen=True)
class Mutant:
    heading: str
    where: str
    mutation: str
    file: str
    changes: list[tuple[str, str]]
    models: list[str]
    hangs: bool = False

    @property
    def title(self) -> str:
        return f"{self.where}: {self.mutation}".replace("`", "")

    def apply(self, text: str) -> str:
        """Returns the text of `file` with all the changes made."""
        for before, after in self.changes:
            if (count := text.count(before)) != 1:
                raise Mistake(f"{self.title}: found {count} times in {self.file}: {before!r}")
            text = text.replace(before, after)
        return text

    def row(self) -> str:
        models = ", ".join(f"`{model}`" for model in self.models)
        return f"| {self.where} | {self.mutation} | {models}{', which does not end' if self.hangs else ''} |\n"


def read() -> list[Mutant]:
    entries = tomllib.loads(DATA.read_text())["mutant"]
    mutants = [Mutant(**entry | {"changes": [(before, after) for before, after in entry["changes"]]}) for entry in entries]
    for mutant in mutants:
        if not mutant.changes or not mutant.models:
            raise Mistake(f"{mutant.title}: changes nothing, or names no model")
    return mutants


def unmodelled() -> dict[str, list[str]]:
    """Returns, for each file, the snippets whose ordering no mutant weakens."""
    texts: dict[str, list[str]] = tomllib.loads(DATA.read_text())["unmodelled"]
    return texts


def orderings(file: Path) -> list[tuple[int, int]]:
    """Returns the spans in a file's code of every ordering stronger than Relaxed."""
    code = NO_CODE.sub(lambda found: " " * len(found[0]), file.read_text())
    return [found.span() for found in ORDERING.finditer(code)]


def models_in(root: Path) -> list[str]:
    """Returns the names of all loom models."""
    files = [*(root / "src").rglob("*.rs"), *(root / "tests" / "models").rglob("*.rs")]
    sources = [path.read_text() for path in files if path.name != "whole_runtime.rs"]
    found = [MODEL.findall(text) for text in sources if "shim::model::" in text]
    return [name for names in found for for_shuttle, name in names if not for_shuttle]


def with_tables(page: str, mutants: list[Mutant]) -> str:
    """Returns the page with its tables, one in each section, rebuilt from the mutants."""
    before, *sections = re.split(r"(?m)^(?=## )", page)
    headings = [section.splitlines()[0].removeprefix("## ") for section in sections]
    if unknown := {mutant.heading for mutant in mutants} - set(headings):
        raise Mistake(f"{PAGE.name} has no section {', '.join(sorted(unknown))}")
    parts = [before]
    for heading, section in zip(headings, sections, strict=True):
        tables = list(TABLE.finditer(section))
        if len(tables) != 1:
            raise Mistake(f"{PAGE.name}, {heading}: a section must have exactly one table")
        start, end = tables[0].span()
        parts += [section[:start], HEADER, *(mutant.row() for mutant in mutants if mutant.heading == heading), section[end:]]
    return "".join(parts)
