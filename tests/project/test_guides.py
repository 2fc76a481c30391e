"""Every code block on every page of the documentation is run; tests/support/pages.py says how.

Pages about other people's packages are skipped where these are not installed. `make guides` installs them.
"""

import sys

import pytest

from tests.support.builds import FREE_THREADED
from tests.support.pages import PAGES, Reader, blocks, missing, name

pytestmark = [pytest.mark.native, pytest.mark.timeout(900)]

#: How many blocks of each page say that they do not run.
NOT_RUN = {
    "README.md": 3,
    "docs/development.md": 6,
    "docs/explanation/performance.md": 1,
    "docs/guides/deployment.md": 4,
    "docs/guides/processes.md": 1,
    "docs/guides/rust.md": 3,
    "docs/guides/slow.md": 1,
    "docs/reference/recorder.md": 1,
    "docs/releasing.md": 2,
    "docs/start.md": 1,
    "docs/tutorial.md": 1,
}


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.is_code for block in blocks(page))], ids=name)
def test_what_a_page_says_works(page, tmp_path, request):
    if lacks := missing(page):
        assert not request.config.getoption("--every-guide"), f"needs {', '.join(lacks)}"
        pytest.skip(f"needs {', '.join(lacks)}: make every-guide")
    with Reader(page, tmp_path) as reader:
        for block in blocks(page):
            since = tuple(map(int, block.marks.get("since", "3").split(".")))
            runs_here = sys.version_info >= since and not (FREE_THREADED and "gil" in block.marks)
            if block.is_code and block.reason is None and runs_here:
                reader.do(block)


def test_blocks_that_do_not_run_say_why_and_are_counted():
    reasons = {name(page): [block.reason for block in blocks(page) if block.reason is not None] for page in PAGES}
    assert all(len(reason.split()) >= 3 for each in reasons.values() for reason in each), reasons
    assert {page: len(each) for page, each in reasons.items() if each} == NOT_RUN


def test_a_block_that_is_a_file_begins_with_its_name():
    unnamed = [
        (name(page), block.line)
        for page in PAGES
        for block in blocks(page)
        if "file" in block.marks and "from" not in block.marks and block.code.splitlines()[0] != f"# {block.marks['file']}"
    ]
    assert unnamed == []
