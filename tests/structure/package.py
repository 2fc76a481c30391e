"""The Python half of the structure check: import-linter's contracts, and what it cannot see."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CONTRACTS = Path(__file__).with_name("importlinter.toml")
PACKAGE = "wakeloop"


def check_package(folder: Path, contracts: Path = CONTRACTS) -> Iterator[str]:
    """What is wrong with the package that stands in `folder`."""
    yield from uses_of_init(folder)
    command = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linter = subprocess.run(
        [sys.executable, "-c", command, "--config", contracts, "--no-cache", "--no-logo"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    if linter.returncode:
        yield (linter.stdout + linter.stderr).strip()


def uses_of_init(folder: Path) -> Iterator[str]:
    """Modules that import names from the package's `__init__.py`, which imports them.

    For import-linter, `from . import x` uses the package also where x is the extension module, so no contract says this.
    """
    package = folder / PACKAGE
    for file in sorted(package.rglob("*.py")):
        if file.name in ("__init__.py", "__main__.py"):
            continue
        inside = file.relative_to(folder).parent.parts
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.Import(names=names) if any(name.name == PACKAGE for name in names):
                    yield f"cycle: {file.relative_to(folder)}:{node.lineno} imports {PACKAGE}/__init__.py"
                case ast.ImportFrom(module=module, names=names, level=level):
                    base = inside[: len(inside) - level + 1] if level else ()
                    if ".".join([*base, *([module] if module else [])]) != PACKAGE:
                        continue
                    taken = [name.name for name in names if not is_module(package, name.name)]
                    if taken:
                        yield f"cycle: {file.relative_to(folder)}:{node.lineno} imports {', '.join(taken)} from {PACKAGE}/__init__.py"


def is_module(package: Path, name: str) -> bool:
    return any((package / path).exists() for path in (f"{name}.py", f"{name}.pyi", f"{name}/__init__.py"))
