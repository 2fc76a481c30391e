"""Types: the package is strictly typed, its stubs match the extension, and users' programs type-check."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import wakeloop
from tests.project import stub_docs

pytestmark = [pytest.mark.native, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests/typing"


def check(*command):
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("version", ["3.11", "3.15"])
def test_the_package_is_strictly_typed(version):
    code, said = check("mypy", "--python-version", version)
    assert code == 0, f"\n{said}"


def test_the_stubs_say_what_the_extension_module_has():
    # Without the configuration: it names the oldest Python, and the stubs are compared with the one that runs.
    code, said = check("mypy.stubtest", "wakeloop._core", "--concise", "--allowlist", str(HERE / "stubtest.allowlist"))
    assert code == 0, (
        f"\n{said}\nThe native module and python/wakeloop/_core.pyi differ. Write what you added or changed into the stub:"
        " the same parameter names and defaults, `/` and `*` where the function has them, @final on a class that cannot"
        " be subclassed. A fast method shows its signature if its text begins with `name(parameters)` and an empty line."
    )


def stub_entries():
    return list(stub_docs.entries(ast.parse(stub_docs.STUB.read_text()).body))


def test_everything_native_in_the_stub_has_a_text_for_help():
    entries = stub_entries()
    assert len(entries) > 300
    assert [name for name, _, thing in entries if not stub_docs.native_text(thing)] == []


def test_the_stub_has_the_texts_that_help_shows():
    wrong = [
        name
        for name, node, thing in stub_entries()
        if stub_docs.paragraphs(ast.get_docstring(node) or "") != stub_docs.paragraphs(stub_docs.native_text(thing))
    ]
    assert wrong == [], "python -m tests.project.stub_docs writes them into the stub"


@pytest.mark.parametrize("program", ["user_program.py", "mistakes.py", "programs"])
def test_a_users_program_passes_mypy_strict(program):
    code, said = check("mypy", "--config-file=", "--strict", "--warn-unused-ignores", str(HERE / program))
    assert code == 0, f"\n{said}"


def test_the_users_program_uses_every_public_name():
    text = (HERE / "user_program.py").read_text()
    assert [name for name in wakeloop.__all__ if f"wakeloop.{name}" not in text] == []


def test_the_package_has_py_typed():
    assert (Path(wakeloop.__file__).parent / "py.typed").exists()
