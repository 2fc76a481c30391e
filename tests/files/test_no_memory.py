"""Allocations of the interpreter that fail during operations on files and jobs of the blocking pool: the operation ends.

CPython itself may lose the step of a task that has no memory, and Python 3.11 also the callback of a future. That is
reported.
"""

import textwrap

import pytest

from tests.support import no_memory
from tests.support.script import run_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not no_memory.POSSIBLE, reason="no _testcapi that takes the memory away, or a debug build"),
]

PROGRAM = """
    import os, sys, tempfile, warnings
    import wakeloop, wakeloop.fs
    from tests.support import no_memory

    warnings.simplefilter("ignore")
    loop = new_loop()

    def report(error):
        if isinstance(error, MemoryError):
            os.write(2, b"\\nreported")
            os._exit(0)

    loop.set_exception_handler(lambda loop, context: report(context.get("exception")))
    sys.unraisablehook = lambda unraisable: report(unraisable.exc_value)
    path = sys.argv[1]
    with open(path, "wb") as file:
        file.write(b"line\\n" * 200_000)

    async def opened(mode):
        # The runtime starts, in the child.
        await wakeloop.sleep(0.001)
        file = await wakeloop.open(path, mode)
        if hasattr(os, "posix_fadvise"):
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return file

    async def attempt(call, file):
        return await call(file)

    def piece(mode, call):
        return (lambda: loop.run_until_complete(opened(mode)), lambda file: loop.run_until_complete(attempt(call, file)))

    PIECES = {
        "read": piece("rb", lambda file: file.read()),
        "read of a size": piece("rb", lambda file: file.read(700_000)),
        "readlines": piece("rb", lambda file: file.readlines(1000)),
        "pread": piece("rb", lambda file: file.pread(700_000, 5)),
        "write": piece("rb+", lambda file: file.write(bytearray(300_000))),
        "writelines": piece("rb+", lambda file: file.writelines([b"x" * 150_000] * 2)),
        "truncate": piece("rb+", lambda file: file.truncate(5)),
        "close": piece("rb+", lambda file: file.close()),
        "open": piece("rb", lambda file: attempt_open()),
        "spawn_blocking": piece("rb", lambda file: wakeloop.spawn_blocking(len, b"123")),
        "stat": piece("rb", lambda file: wakeloop.fs.stat(path)),
        "touch": piece("rb", lambda file: wakeloop.fs.touch(path)),
    }

    async def attempt_open():
        async with wakeloop.open(path, "rb"):
            pass

    name = sys.argv[2]
    no_memory.main({name: PIECES[name]}, int(sys.argv[3]), no_memory.ONE)
"""

NAMES = ["read", "read of a size", "readlines", "pread", "write", "writelines", "truncate", "close", "open"]
NAMES += ["spawn_blocking", "stat", "touch"]


@pytest.mark.parametrize("name", NAMES)
def test_a_single_allocation_that_fails_neither_hangs_an_operation_nor_ends_the_process(tmp_path, name):
    body = f"import sys\nsys.argv[1:] = {[str(tmp_path / 'file'), name, '60']!r}\n" + textwrap.dedent(PROGRAM)
    outcome = run_script("wakeloop", body, timeout=60)
    assert outcome.code == 0, outcome
