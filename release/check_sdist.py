"""Builds wakeloop from the source distribution of a directory, as pip does, and tests what comes out.

    python -m release.check_sdist dist

The build is offline, so the crates must be in cargo's cache (`cargo fetch --locked`), and only the versions of
Cargo.lock are there. It is not optimised: what is checked is that nothing is missing. Without Rust, the build must end
with a message that says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from .check_wheels import LICENSES, ROOT, run, smoke_with

#: Builds in a minute instead of three.
QUICK = {"CARGO_PROFILE_RELEASE_LTO": "off", "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0", "CARGO_PROFILE_RELEASE_CODEGEN_UNITS": "16"}

NEEDED = ["Cargo.toml", "Cargo.lock", "PKG-INFO", "README.md", "pyproject.toml", "release/backend.py", *LICENSES]


def locked(lock: str) -> set[tuple[str, str]]:
    return {(crate["name"], crate["version"]) for crate in tomllib.loads(lock)["package"]}


def build(source: Path, out: Path, **environment: str) -> tuple[int, str]:
    command: list[str | Path] = ["-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", out, source]
    return run(sys.executable, *command, env={**os.environ, **environment})


def problems(sdist: Path, directory: Path) -> Iterator[str]:
    source = directory / sdist.name.removesuffix(".tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
        names = {str(Path(member.name).relative_to(source.name)) for member in archive if member.isfile()}
    yield from (f"{name} is missing" for name in NEEDED if name not in names)
    _, tracked = run("git", "ls-files", cwd=ROOT)
    yield from (f"{name} is not a file of the repository" for name in sorted(names - {"PKG-INFO", *tracked.split()}))

    code, said = build(source, directory, PATH=str(directory / "nothing"), CARGO_HOME=str(directory))
    if code == 0 or "needs Rust" not in said or "Traceback" in said:
        yield f"without Rust, pip does not say what is missing:\n{said}"

    code, said = build(source, directory, CARGO_NET_OFFLINE="true", CARGO_TARGET_DIR=str(ROOT / "target/sdist"), **QUICK)
    if code != 0:
        yield f"it cannot be built:\n{said}"
        return
    if strange := locked((source / "Cargo.lock").read_text()) - locked((ROOT / "Cargo.lock").read_text()):
        yield f"it was built with crates that are not in Cargo.lock: {sorted(strange)}"
    passed, said = smoke_with(sys.executable, directory)
    print(said)
    if not passed:
        yield "what was built does not work"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m release.check_sdist", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    (sdist,) = options.directory.glob("wakeloop-*.tar.gz")
    with tempfile.TemporaryDirectory() as directory:
        found = list(problems(sdist, Path(directory)))
    print(f"{sdist.stat().st_size:>9,}  {sdist.name}  {'' if found else 'ok'}")
    print("\n".join(f"    {problem}" for problem in found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
