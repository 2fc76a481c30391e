"""The figures in README and in docs/ are those of the pages of results: `make results` writes them."""

import re
import subprocess
import sys

import pytest

from tests.support.pages import PAGES, ROOT, name

pytestmark = pytest.mark.native

BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))

import figures  # noqa: E402

#: A row of a page of results: the scenario, and the cells after what it costs.
ROW = re.compile(r"^\| (\S+) \| [^|]* \| (.*) \|$", re.MULTILINE)


def newest():
    """The page of results that was measured last, as text."""
    pages = {re.search(r"^Measured (\S+ \S+) ", text, re.MULTILINE)[1]: text for text in results()}
    return pages[max(pages)]


def results():
    return [page.read_text() for page in BENCHMARKS.glob("RESULTS*.md")]


def ratios():
    """Our cell of each row, with the range."""
    text = newest()
    heads = [head.strip() for head in re.search(r"^\| scenario \| [^|]*\| (.*) \|$", text, re.MULTILINE)[1].split("|")]
    ours = heads.index("wakeloop")
    return {scenario: cells.split("|")[ours].strip() for scenario, cells in ROW.findall(text) if "[" in cells}


def test_no_figure_of_the_docs_is_out_of_date():
    line = [sys.executable, str(BENCHMARKS / "figures.py"), "--check"]
    check = subprocess.run(line, capture_output=True, text=True, timeout=50, check=False)
    assert check.returncode == 0, check.stdout + check.stderr


def test_every_row_of_the_readme_is_a_row_of_the_newest_results():
    readme = (ROOT / "README.md").read_text()
    rows = re.findall(r"^\| (.*) \| (\d\.\d\d \[.*\]) \|$", readme, re.MULTILINE)
    assert len(rows) > 8
    assert dict(rows) == {label: ratios()[scenario] for label, scenario in figures.FRONT.items()}


def test_every_bar_of_the_chart_is_a_row_of_the_newest_results():
    picture = (ROOT / "docs/pictures/cpu-time.svg").read_text()
    drawn = re.findall(r"<title>wakeloop: ([\d.]+), from ([\d.]+) to ([\d.]+)</title>", picture)
    wanted = [ratios()[scenario] for scenario in figures.bars.ROWS.values()]
    assert [f"{median} [{lowest}–{highest}]" for median, lowest, highest in drawn] == wanted


def test_the_readme_counts_the_rows_of_the_newest_results():
    medians = [float(cell.split()[0]) for cell in ratios().values()]
    cheaper = sum(median > 1 for median in medians)
    readme = re.sub(r"<!--.*?-->", "", (ROOT / "README.md").read_text())
    assert f"on {cheaper} of the {len(medians)} rows" in readme


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_line_that_begins_with_a_comment_has_no_figure(page):
    """Markdown would take all of it for HTML."""
    assert re.findall(r"^ *<!-- figure: (?!table )[^>]*-->.*", page.read_text(), re.MULTILINE) == []


def test_a_figure_that_was_changed_by_hand_is_found_and_corrected():
    quoted = figures.Figures()
    median = ratios()["http/aiohttp"].split()[0]
    right = f"uvloop takes <!-- figure: ratio http/aiohttp -->{median}<!-- --> times as much"
    assert quoted.fill(right) == right
    assert quoted.fill(re.sub(r"-->[\d.]+<", "-->9.99<", right)) == right
