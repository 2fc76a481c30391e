"""The version of this checkout. Cargo writes a pre-release as 0.2.0-alpha.1, and Python as 0.2.0a1 (PEP 440)."""

from __future__ import annotations

import re
import tomllib

#: Cargo's names of the kinds of pre-releases, and Python's.
KINDS = {"alpha": "a", "beta": "b", "rc": "rc"}


def python_version(manifest: str) -> str:
    """The version of a Cargo.toml as Python, the changelog and the tag have it."""
    return as_python(tomllib.loads(manifest)["package"]["version"])


def as_python(version: str) -> str:
    return re.sub(r"-([a-z]+)\.(\d+)$", lambda found: KINDS[found[1]] + found[2], version)
