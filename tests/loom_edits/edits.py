"""The edits of edits.toml, and the tables of src/runtime/MODELS.md that are made of them."""

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DATA = Path(__file__).with_name("edits.toml")
PAGE = ROOT / "src" / "runtime" / "MODELS.md"

HEADER = "| where | edit | found by |\n|---|---|---|\n"
TABLE = re.compile(r"(?m)^\|.*\n(?:\|.*\n)*")
# An ordering that is an argument.
ORDERING = re.compile(r"\b(?:Acquire|Release|AcqRel|SeqCst)\b(?=[,)])")
# Tests within a file, imports and comments.
NO_CODE = re.compile(r"(?ms)^#\[cfg\(all\(test.*|^use [^;]*;|//[^\n]*")
# A model in Rust, and whether it is one for shuttle alone.
MODEL = re.compile(r"(#\[cfg\(wakeloop_shuttle\)\]\s+)?#\[test\]\s+fn (\w+)\(")


class Mistake(Exception):
    """The data does not fit the source or the page."""


@dataclass(frozen=True)
class Edit:
    heading: str
    where: str
    edit: str
    file: str
    changes: list[tuple[str, str]]
    models: list[str]
    hangs: bool = False

    @property
    def title(self) -> str:
        return f"{self.where}: {self.edit}".replace("`", "")

    def apply(self, text: str) -> str:
        """The text of `file` with all the changes."""
        for before, after in self.changes:
            if (count := text.count(before)) != 1:
                raise Mistake(f"{self.title}: stands {count} times in {self.file}: {before!r}")
            text = text.replace(before, after)
        return text

    def row(self) -> str:
        models = ", ".join(f"`{model}`" for model in self.models)
        return f"| {self.where} | {self.edit} | {models}{', which does not end' if self.hangs else ''} |\n"


def read() -> list[Edit]:
    entries = tomllib.loads(DATA.read_text())["edit"]
    edits = [Edit(**entry | {"changes": [(before, after) for before, after in entry["changes"]]}) for entry in entries]
    for edit in edits:
        if not edit.changes or not edit.models:
            raise Mistake(f"{edit.title}: changes nothing, or names no model")
    return edits


def unmodelled() -> dict[str, list[str]]:
    """By file, text with an ordering that no edit weakens."""
    texts: dict[str, list[str]] = tomllib.loads(DATA.read_text())["unmodelled"]
    return texts


def orderings(file: Path) -> list[tuple[int, int]]:
    """Where in the code of a file an ordering stronger than Relaxed stands."""
    code = NO_CODE.sub(lambda found: " " * len(found[0]), file.read_text())
    return [found.span() for found in ORDERING.finditer(code)]


def models_in(root: Path) -> list[str]:
    """The names of all models for loom."""
    sources = [path.read_text() for path in (root / "src").rglob("*.rs") if path.name != "shuttle_model.rs"]
    found = [MODEL.findall(text) for text in sources if "shim::model::" in text]
    return [name for names in found for for_shuttle, name in names if not for_shuttle]


def with_tables(page: str, edits: list[Edit]) -> str:
    """The page with its tables as the edits have them: one in each section."""
    before, *sections = re.split(r"(?m)^(?=## )", page)
    headings = [section.splitlines()[0].removeprefix("## ") for section in sections]
    if unknown := {edit.heading for edit in edits} - set(headings):
        raise Mistake(f"{PAGE.name} has no section {', '.join(sorted(unknown))}")
    parts = [before]
    for heading, section in zip(headings, sections, strict=True):
        tables = list(TABLE.finditer(section))
        if len(tables) != 1:
            raise Mistake(f"{PAGE.name}, {heading}: a section has one table")
        start, end = tables[0].span()
        parts += [section[:start], HEADER, *(edit.row() for edit in edits if edit.heading == heading), section[end:]]
    return "".join(parts)
