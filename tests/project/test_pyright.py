"""Pyright in strict mode finds no error in users' programs, in the examples, and in the Python blocks of the pages."""

import pytest

from tests.support import pages, pyright

pytest.importorskip("basedpyright")
pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

PROGRAMS = ("tests/typing", "examples")


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    roots = {name: pages.ROOT / name for name in PROGRAMS} | pyright.write_blocks(folder)
    found = pyright.check(folder, {root: pyright.RULES.get(name, {}) for name, root in roots.items()})
    return {name: found[root] for name, root in roots.items()}


def with_python():
    return [pages.name(page) for page in pages.PAGES if any(block.language == "python" for block in pages.blocks(page))]


@pytest.mark.parametrize("name", [*PROGRAMS, *with_python()])
def test_python_passes_pyright_strict(errors, name):
    assert errors.get(name, []) == []


def test_errors_are_found(tmp_path):
    program = "import wakeloop\n\n\nasync def main() -> str:\n    return await wakeloop.sleep(0.1, 5)\n"
    (tmp_path / "wrong.py").write_text(program)
    (tmp_path / "elsewhere.py").write_text(f"import a_package_that_is_not_installed\n{program}")
    (found,) = pyright.check(tmp_path, {tmp_path: {}}).values()
    assert len(found) == 1 and found[0].startswith("wrong.py:5: ") and "reportReturnType" in found[0]
