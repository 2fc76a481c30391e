"""The mutants that are equivalent to the original, from equivalent.toml."""

import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("equivalent.toml")
PACKAGE = Path(__file__).parent.parent.parent / "python" / "wakeloop"


@dataclass(frozen=True)
class Equivalent:
    """Lines of a module, without their indentation, what mutants make of them, and why no test can tell.

    `function` is given if the module has such lines in several functions.
    """

    module: str
    was: str
    becomes: tuple[str, ...]
    why: str
    function: str = ""

    def occurs(self) -> bool:
        lines = [line.strip() for line in (PACKAGE / self.module).read_text().splitlines()]
        return self.was in " ".join(lines)


def read() -> list[Equivalent]:
    listed = tomllib.loads(FILE.read_text()).get("mutant", ())
    return [Equivalent(**row | {"becomes": tuple(row["becomes"])}) for row in listed]


def reason(rows: list[Equivalent], module: str, function: str, was: str, becomes: str) -> str | None:
    """Why this mutant is equivalent to the original, if it is listed."""
    for row in rows:
        if (row.module, row.was) == (module, was) and becomes in row.becomes and row.function in ("", function):
            return row.why
    return None
