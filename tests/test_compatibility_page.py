"""docs/COMPATIBILITY.md: every row is shown by tests, and each of them exists."""

import pathlib
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

ROOT = pathlib.Path(__file__).parent.parent
PAGE = ROOT / "docs" / "COMPATIBILITY.md"


def rows():
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 8 and "wakeloop" not in cells:
            yield cells


def named_tests():
    return set(re.findall(r"`(test_\w+)`", PAGE.read_text()))


def test_every_row_is_kept_and_names_its_tests():
    table = list(rows())
    assert len(table) > 50
    for feature, *others, ours, tests in table:
        assert ours.strip() == "Y", feature
        assert all(answer in "YPN" for answer in others), feature
        assert re.fullmatch(r"`test_\w+`(, `test_\w+`)*", tests.rstrip(" |")), feature


@pytest.mark.timeout(120)
def test_every_test_named_on_the_page_is_collected():
    sources = {path: path.read_text() for path in (ROOT / "tests").glob("test_*.py")}
    wanted = named_tests()
    files = [path for path, text in sources.items() if any(f"def {name}(" in text for name in wanted)]
    line = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header", *map(str, files)]
    listing = subprocess.run(line, capture_output=True, text=True, timeout=100, cwd=ROOT)
    assert listing.returncode == 0, listing.stdout[-2000:]
    collected = set(re.findall(r"::(test_\w+)", listing.stdout))
    assert not wanted - collected, f"named in {PAGE.name}, but not a test: {sorted(wanted - collected)}"
