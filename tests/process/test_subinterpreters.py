"""Subinterpreters: importing the extension raises ImportError."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.native

BODY = """
try:
    import wakeloop
except ImportError as error:
    print("ImportError:", error)
"""


@pytest.mark.parametrize("imported_before", [False, True])
def test_the_import_in_a_subinterpreter_is_an_import_error_and_the_main_one_goes_on(imported_before):
    script = f"""
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
import asyncio
if {imported_before}:
    import wakeloop
other = interpreters.create()
interpreters.run_string(other, {BODY!r})
interpreters.destroy(other)
import wakeloop
print(wakeloop.run(asyncio.sleep(0.001, "goes on")))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    refused, goes_on = done.stdout.splitlines()
    assert refused.startswith("ImportError:") and "subinterpreters" in refused and goes_on == "goes on"
