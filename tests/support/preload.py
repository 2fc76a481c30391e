"""Libraries that are preloaded (LD_PRELOAD), and stand between a program and the system's calls."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

needs_preload = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="no compiler for a library to preload"
)


def build(name, folder):
    """Compiles tests/support/NAME.c into the folder, and returns the library's path."""
    library = folder / f"{name}.so"
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(library), "-ldl"], check=True)
    return library
