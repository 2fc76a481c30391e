"""The reading guide of the architecture page names the files that a change needs, and how long they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.structure.rules import Source

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/explanation/architecture.md").read_text().partition("## Reading guide")[2]
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!^### ).*\n)+)", GUIDE, re.MULTILINE))
TURN = "src/kernel/turn.rs"
#: Who wants to change the turn reads no more than this.
MOST_LINES = 8000


def listed(section: str) -> dict[str, int]:
    """The files of a list, and the lines that the page says they have."""
    return {file: int(lines) for file, lines in re.findall(r"`([\w./-]+)` \((\d+) lines\)", SECTIONS[section])}


def length(file: str) -> int:
    return len((ROOT / file).read_text().splitlines())


def doors() -> dict[str, str]:
    """What may be named without being read, and the page or the file whose head is read instead."""
    rows = re.findall(r"^\| (.+?): .+ \| `([\w./-]+)` \|$", SECTIONS["Doors"], re.MULTILINE)
    return {place: page for places, page in rows for place in re.findall(r"`([\w./-]+)`", places)}


def lines_to_read(page: str) -> int:
    lines = (ROOT / page).read_text().splitlines()
    is_page = page.endswith(".md") or page in listed("Add a metric")
    return len(lines) if is_page else next(i for i, line in enumerate(lines) if not line.startswith("//!"))


def reached(start: str, closed: list[str]) -> set[str]:
    """The files that one uses, directly or through others, except those behind a door."""
    edges = [(f"src/{user}", f"src/{used}") for user, used in Source.read(ROOT / "src").lines]
    found, rest = {start}, [start]
    while rest:
        user = rest.pop()
        new = {
            used
            for by, used in edges
            if by == user and used not in found and not any(used.startswith(f"{door}/") for door in closed)
        }
        found |= new
        rest += new
    return found


def test_the_first_list_has_each_file_that_a_turn_reaches_and_no_other():
    assert set(listed("Change the turn")) == reached(TURN, list(doors()))


def test_who_changes_the_turn_reads_less_than_the_page_promises():
    files = sum(length(file) for file in listed("Change the turn"))
    assert files + sum(lines_to_read(page) for page in set(doors().values())) <= MOST_LINES


@pytest.mark.parametrize("section", [name for name in SECTIONS if name != "Doors"])
def test_a_list_says_how_long_its_files_are(section):
    files = listed(section)
    assert len(files) >= 5
    # To within a tenth, so that not each change of a file changes the page.
    wrong = {file: length(file) for file, said in files.items() if abs(length(file) - said) > max(10, said // 10)}
    assert wrong == {}
