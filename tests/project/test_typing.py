"""Types: the package is strictly typed, its stubs match the extension, and users' programs type-check."""

import subprocess
import sys
from pathlib import Path

import pytest

import wakeloop

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


@pytest.mark.parametrize("program", ["user_program.py", "mistakes.py", "programs"])
def test_a_users_program_passes_mypy_strict(program):
    code, said = check("mypy", "--config-file=", "--strict", "--warn-unused-ignores", str(HERE / program))
    assert code == 0, f"\n{said}"


def test_the_users_program_uses_every_public_name():
    text = (HERE / "user_program.py").read_text()
    assert [name for name in wakeloop.__all__ if f"wakeloop.{name}" not in text] == []


def test_the_package_has_py_typed():
    assert (Path(wakeloop.__file__).parent / "py.typed").exists()
