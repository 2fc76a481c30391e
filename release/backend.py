"""The build backend: maturin's, which first says what is missing to build from source.

Where maturin finds no Rust it downloads a toolchain. Somebody who installs a package does not expect that, and behind a
firewall it ends in the traceback of a download.

pip imports this module before it compares `requires-python` with the interpreter. So everything up to the check of the
version has to run on an older Python.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
if sys.version_info < OLDEST:
    sys.exit("wakeloop needs Python %d.%d or newer, and this is Python %s" % (*OLDEST, sys.version.split()[0]))

import tomllib  # noqa: E402

MISSING = """
wakeloop has no wheel for this Python and system, so it is built from source. That needs Rust {needed} or newer,
and {found}.

There are wheels for CPython 3.11 to 3.15 on Linux (glibc 2.17 or newer, or musl 1.2), for x86_64 and aarch64. If that is
what you have, a newer pip may find yours: python -m pip install --upgrade pip
Otherwise install Rust from your system's packages or from https://rustup.rs, and try again.
"""


def missing_rust(needed: str) -> str | None:
    """Returns what keeps this system from building for Rust `needed`, or None."""
    if shutil.which("cargo") is None or shutil.which("rustc") is None:
        return "cargo and rustc are not on the path"
    done = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=False)
    version = re.match(r"rustc (\d+)\.(\d+)", done.stdout)
    if version is None:
        return f"`rustc --version` says: {(done.stdout + done.stderr).strip()}"
    if tuple(map(int, version.groups())) < tuple(map(int, needed.split("."))):
        return f"there is {done.stdout.strip()}"
    return None


# Builders import this module before they call any of its functions.
_NEEDED = tomllib.loads(Path("Cargo.toml").read_text())["workspace"]["package"]["rust-version"]
if (_FOUND := missing_rust(_NEEDED)) is not None:
    sys.exit(MISSING.format(needed=_NEEDED, found=_FOUND))
os.environ["MATURIN_NO_INSTALL_RUST"] = "1"
# maturin warns that pip will not use it, because the backend's name is not its own.
os.environ["MATURIN_NO_MISSING_BUILD_BACKEND_WARNING"] = "1"

from maturin import *  # noqa: E402, F403
