"""Says which package is missing where a module needs one that wakeloop itself does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def needed(module: str, package: str, install: str) -> Iterator[None]:
    """Imports in the block are of a package that may be missing; then the error says how to install it."""
    try:
        yield
    except ImportError as error:
        message = f"{module} needs {package}: pip install {install}"
        raise ModuleNotFoundError(message, name=error.name, path=error.path) from error
