"""tests/README.md names every folder of the tests, and commands that can be run; Cargo.toml names every test of tests/rust."""

import re
import tomllib

import pytest

from tests.support.pages import ROOT

pytestmark = pytest.mark.native

TESTS = ROOT / "tests"
PAGE = (TESTS / "README.md").read_text()
CELLS = re.findall(r"^\| (.*?) \| (.*?) \|", PAGE, re.MULTILINE)


def rust_tests():
    return {test["name"]: test["path"] for test in tomllib.loads((ROOT / "Cargo.toml").read_text())["test"]}


def test_the_map_names_every_folder_and_no_other():
    folders = {path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"}
    named = [match[1] for first, _ in CELLS if (match := re.fullmatch(r"`(\w+)`", first))]
    assert sorted(named) == sorted(folders)


def test_every_python_test_is_in_a_folder():
    assert list(TESTS.glob("test_*.py")) == []


def test_every_path_on_the_page_exists():
    named = re.findall(r"\b(?:tests|src|python|docs|release)/[\w./]*\w", PAGE)
    assert len(named) > 40
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_source_on_the_map_exists():
    rows = re.findall(r"^\| `\w+` \|[^|]*\| ([^|]*)\|", PAGE, re.MULTILINE)
    named = [(name, home) for row in rows for name in re.findall(r"`([\w./]+)`", row) for home in [home_of(name)]]
    assert len(named) > 50
    assert [name for name, home in named if home is None] == []


def home_of(name):
    for folder in (ROOT / "src", ROOT / "python/wakeloop", ROOT):
        if (folder / name).exists() or (folder / f"{name}.rs").exists():
            return folder
    return None


def test_every_command_on_the_page_can_be_run():
    modules = re.findall(r"`P -m (tests\.\w+)", PAGE)
    assert modules and all((ROOT / module.replace(".", "/") / "__main__.py").exists() for module in modules)
    names = re.findall(r"--test (\w+)", PAGE)
    assert names and set(names) <= set(rust_tests())


def test_cargo_knows_every_file_of_the_rust_tests():
    files = {path.stem: path.relative_to(ROOT).as_posix() for path in (TESTS / "rust").glob("*.rs")}
    assert rust_tests() == files
