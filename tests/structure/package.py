"""The Python half of the structure check: import-linter's contracts, and what it cannot see."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

CONTRACTS = Path(__file__).with_name("importlinter.toml")
PACKAGE = "wakeloop"

#: A line, the module that it imports, and the names that it takes from that one.
Import = tuple[int, str, list[str]]


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
    """Imports of an `__init__.py` by a module of its package that this `__init__.py` imports itself.

    import-linter compares the modules of a package with each other, and their `__init__.py` is none of them.
    """
    sources = sorted(file for pattern in ("*.py", "*.pyi") for file in (folder / PACKAGE).rglob(pattern))
    files = {name_of(file, folder): file for file in sources}
    imports = {name: list(imports_of(name, file, files)) for name, file in files.items()}
    for user, uses in imports.items():
        for line, used, names in uses:
            if user.startswith(f"{used}.") and user in needed_by(used, imports):
                by, init = (files[name].relative_to(folder) for name in (user, used))
                yield f"cycle: {by}:{line} imports {', '.join(names)} from {init}"


def name_of(file: Path, folder: Path) -> str:
    return ".".join(file.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")


def imports_of(name: str, file: Path, modules: Container[str]) -> Iterator[Import]:
    """The modules of the package that a module imports, in functions and for type checkers too."""
    inside = name.split(".") if file.stem == "__init__" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        match node:
            case ast.Import(names):
                yield from ((node.lineno, each.name, [each.name]) for each in names if each.name in modules)
            case ast.ImportFrom(module, names, level):
                base = inside[: len(inside) - level + 1] if level else []
                of = ".".join([*base, *([module] if module else [])])
                taken = [each.name for each in names if f"{of}.{each.name}" not in modules]
                yield from ((node.lineno, f"{of}.{each.name}", []) for each in names if each.name not in taken)
                if taken and of in modules:
                    yield node.lineno, of, taken


def needed_by(name: str, imports: Mapping[str, list[Import]]) -> set[str]:
    """The modules that a module imports, and those that they import, and so on."""
    found: set[str] = set()
    left = [name]
    while left:
        new = {used for _, used, _ in imports[left.pop()]} - found
        found |= new
        left += new
    return found
