"""Writes the figures of the result pages into the pages that quote them, and draws the chart of README.

    python benchmarks/figures.py             writes what has changed, as `make results` does
    python benchmarks/figures.py --check     names what is out of date, and writes nothing

A quoted figure stands between two comments, which readers do not see:
``<!-- figure: ratio http/aiohttp -->1.22<!-- -->``. A table stands between two such comments on lines of their own. The
first comment says what is quoted:

    ratio SCENARIO [PYTHON]     the median ratio to uvloop
    cost SCENARIO [PYTHON]      what an operation costs on wakeloop
    share SCENARIO COLUMN       a cell of SHARES.md: whose code the CPU time is spent in
    cheaper | behind | rows     rows on which wakeloop costs less than uvloop, or more than some other loop; all rows
    measured | python | uvloop  where, on which Python, and beside which uvloop all this was measured
    passed PYTHON | accepted    tests of CPython's own, from the page about compatibility
    table NAME                  one of the tables below

Without PYTHON, figures are those of the page that was measured last.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import bars
import chart
from chart import OURS, Range

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGES = ("README.md", "docs/**/*.md")
PICTURE = ROOT / "docs" / "pictures" / "cpu-time.svg"
COMPATIBILITY = ROOT / "docs" / "explanation" / "compatibility.md"

QUOTE = re.compile(r"(<!-- figure: ([^>]*?) -->)(.*?)(<!-- -->)", re.DOTALL)

#: The rows of README's table.
FRONT = {
    "uvicorn with httptools, 10 connections": "http/uvicorn-httptools",
    "uvicorn with h11": "http/uvicorn-h11",
    "aiohttp server": "http/aiohttp",
    "echo over TLS, 1 KiB": "tls/proto/1k/c10",
    "echo, asyncio’s streams, 1 KiB": "tcp/streams/1k/c10",
    "echo, a protocol, 1 KiB": "tcp/proto/1k/c10",
    "echo over UDP, 1 KiB": "udp/1k/c10",
    "`call_soon`": "call_soon/noargs",
    "`call_later` and cancel": "call_later/schedule+cancel",
    "`asyncio.sleep(0)` in a task": "task/sleep0",
    "`asyncio.to_thread`, one call at a time": "executor/round-trip",
}
#: The rows of the table in the guide about streams.
STREAMS = {"asyncio's streams": "tcp/streams", "wakeloop's streams": "tcp/native-streams"}
SIZES = {"1 KiB": "1k/c10", "100 KiB": "100k/c10"}


class Results:
    """A page of results."""

    def __init__(self, page: Path) -> None:
        self.text = page.read_text()
        self.table = chart.read(self.text)
        self.python = self.found(r"; Python (\d+\.\d+\.\d+)")
        self.measured = self.found(r"^Measured ([\d-]+ [\d:]+) ")
        self.costs = dict(re.findall(r"^\| (\S+) \| (\S+ \S+(?: CPU)?) \|", self.text, re.MULTILINE))

    def found(self, pattern: str) -> str:
        match = re.search(pattern, self.text, re.MULTILINE)
        assert match, pattern
        return match[1]

    @property
    def minor(self) -> str:
        return self.python.rpartition(".")[0]

    @property
    def date(self) -> str:
        return self.measured.split()[0]

    def ratio(self, name: str, loop: str = OURS) -> Range:
        return self.table[name][loop]

    def cost(self, name: str) -> str:
        number, unit, *_ = self.costs[name].split()
        return f"{float(number):.3g} {unit.replace('us', 'µs')}"

    def where(self) -> str:
        system = self.found(r" on (Linux-\d+\.\d+)").replace("-", " ")
        processor, cores = self.found(r", (AMD EPYC|[^,]*), \d+ cores"), self.found(r", (\d+) cores")
        rounds = self.found(r"; (\d+) rounds")
        return (
            f"CPython {self.python}, uvloop {self.uvloop()}, {system}, {processor}, {cores} cores, {rounds} rounds,"
            f" {self.date}"
        )

    def uvloop(self) -> str:
        return self.found(r"\buvloop (\d[\d.]*)")

    def cheaper(self) -> list[str]:
        return [name for name, row in self.table.items() if row[OURS].median > 1]

    def behind(self) -> list[str]:
        _, _, after = self.text.partition("Rows on which another loop is ahead of ours:\n\n")
        return re.findall(r"^- (\S+): ", after.split("\n\n")[0], re.MULTILINE)


def all_results() -> dict[str, Results]:
    """Every page of results, by its Python; the last one was measured last."""
    pages = sorted(map(Results, HERE.glob("RESULTS*.md")), key=lambda page: page.measured)
    return {page.minor: page for page in pages}


def shares() -> dict[str, dict[str, str]]:
    # A row of the page with all scenarios counts before one of the page about a framework.
    return {**shares_in(HERE / "FASTAPI.md"), **shares_in(HERE / "SHARES.md")}


def shares_in(page: Path) -> dict[str, dict[str, str]]:
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    heads, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(heads, row)) for row in rows}


def conformance() -> dict[str, dict[str, str]]:
    """The table of CPython's own tests, by Python."""
    row = r"^\| (3\.\d+)\.\d+ \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|"
    found = re.findall(row, COMPATIBILITY.read_text(), re.MULTILINE)
    return {python: dict(zip(("passed", "regressions", "accepted"), cells)) for python, *cells in found}


def front_table(page: Results) -> str:
    rows = [f"| {label} | {ratio_and_range(page.ratio(name))} |" for label, name in FRONT.items() if name in page.table]
    return "\n".join(["| what is measured | ratio to uvloop |", "|---|--:|", *rows])


def streams_table(pages: dict[str, Results]) -> str:
    columns = [(page, size) for page in sorted(pages.values(), key=lambda page: page.minor) for size in SIZES]
    heads = [f"{page.minor}: {size}" for page, size in columns]
    rows = [
        [label, *(f"{page.ratio(f'{name}/{SIZES[size]}').median:.2f}" for page, size in columns)]
        for label, name in STREAMS.items()
    ]
    lines = [["", *heads], ["---", *["--:"] * len(columns)], *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def ratio_and_range(ratio: Range) -> str:
    return f"{ratio.median:.2f} [{ratio.lowest:.2f}–{ratio.highest:.2f}]"


class Figures:
    """The figures that the comments of a page may ask for."""

    def __init__(self) -> None:
        self.pages = all_results()
        self.newest = list(self.pages.values())[-1]

    def value(self, wanted: str) -> str:
        page = self.newest
        match wanted.split():
            case ["ratio", name, *python]:
                return f"{(self.pages[python[0]] if python else page).ratio(name).median:.2f}"
            case ["cost", name, *python]:
                return (self.pages[python[0]] if python else page).cost(name)
            case ["share", name, *column]:
                return shares()[name][" ".join(column)].partition(" [")[0].replace("%", " %")
            case ["cheaper"]:
                return str(len(page.cheaper()))
            case ["behind"]:
                return str(len(page.behind()))
            case ["rows"]:
                return str(len(page.table))
            case ["measured"]:
                return page.where()
            case ["python"]:
                return page.minor
            case ["uvloop"]:
                return page.uvloop()
            case ["passed", python]:
                return conformance()[python]["passed"]
            case ["accepted"]:
                return max(conformance().values(), key=lambda row: int(row["accepted"]))["accepted"]
            case ["table", "front"]:
                return front_table(page)
            case ["table", "streams"]:
                return streams_table(self.pages)
        raise ValueError(f"no such figure: {wanted}")

    def fill(self, text: str) -> str:
        """The text with today's figures."""

        def replace(quote: re.Match[str]) -> str:
            begin, wanted, _, end = quote.groups()
            space = "\n\n" if wanted.startswith("table ") else ""
            # Markdown takes a line that begins with a comment for HTML.
            if not space and quote.string[: quote.start()].rpartition("\n")[2].strip() == "":
                raise ValueError(f"a line begins with the figure {wanted!r}")
            return f"{begin}{space}{self.value(wanted)}{space}{end}"

        return QUOTE.sub(replace, text)

    def picture(self) -> str:
        page = self.newest
        return bars.draw(page.table, f"CPython {page.python}, {page.date}")


def out_of_date() -> dict[Path, str]:
    """The files whose figures are not those of the results, and what they have to be."""
    figures = Figures()
    pages = (page for pattern in PAGES for page in ROOT.glob(pattern) if "_build" not in page.parts)
    wanted = {page: figures.fill(page.read_text()) for page in pages}
    wanted[PICTURE] = figures.picture()
    return {file: text for file, text in wanted.items() if not file.exists() or file.read_text() != text}


def main() -> int:
    parser = argparse.ArgumentParser(description="writes figures of the results into the pages that quote them")
    parser.add_argument("--check", action="store_true", help="name what is out of date, and write nothing")
    arguments = parser.parse_args()
    changed = out_of_date()
    for file, text in changed.items():
        if not arguments.check:
            file.write_text(text)
        print(f"{file.relative_to(ROOT)}: {'is out of date: make results' if arguments.check else 'written'}")
    return 1 if arguments.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
