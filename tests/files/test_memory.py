"""Files of `wakeloop.open` for whose data there is no memory: MemoryError, and the file can be used on."""

import sys

import pytest

from tests.support.builds import FREE_THREADED
from tests.support.files import run_program

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="the size of the address space is limited, and read from /proc"),
    pytest.mark.skipif(FREE_THREADED, reason="a free-threaded build of Python reserves address space in advance"),
]

PROGRAM = """
    import asyncio, os, resource, wakeloop
    path, case = sys.argv[1:]
    MB = 1 << 20

    def leave(extra):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))

    async def attempt(call):
        await wakeloop.spawn_blocking(int)
        leave(100 * MB)
        try:
            return await call()
        except MemoryError:
            return "MemoryError"
        finally:
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    async def written(buffering, data, name="write"):
        async with wakeloop.open(path, "wb", buffering) as file:
            await file.write(b"before ")
            print(await attempt(lambda: getattr(file, name)(data)))
            await file.write(b"after")
        print(open(path, "rb").read(100))

    async def read(name, *arguments):
        with open(path, "wb") as file:
            file.write(b"begin")
            file.truncate(300 * MB)
        async with wakeloop.open(path, "rb") as file:
            print(await attempt(lambda: getattr(file, name)(*arguments)))
            print(await file.read(5))

    async def read_lines(name, *arguments):
        with open(path, "wb") as file:
            file.write(b"\\n" * (40 * MB))
        async with wakeloop.open(path, "rb") as file:
            print(await attempt(lambda: file.readlines()))
            print(await file.read(1))
"""

WRITES = {
    "kept": "written(2**31 - 1, bytes(300 * MB))",
    "kept, behind other data": "written(301 * MB, bytes(301 * MB - 3))",
    "copied": "written(-1, bytearray(300 * MB))",
    "joined": "written(-1, [bytes(100 * MB)] * 3, 'writelines')",
    "listed": "written(-1, (b'' for _ in range(40 * MB)), 'writelines')",
}
READS = {
    "read": "read('read')",
    "read of a size": "read('read', 290 * MB)",
    "readexactly": "read('readexactly', 290 * MB)",
    "readline": "read('readline')",
    "readlines": "read('readlines')",
    "next": "read('__anext__')",
    "pread": "read('pread', 290 * MB, 5)",
    "pread of more than there is": "read('pread', 2**62, 5)",
    "pread of more than there is, beyond the end": "read('pread', 2**62, 2**62)",
}


@pytest.mark.parametrize("case", WRITES)
def test_a_write_without_memory_raises_memory_error(tmp_path, case):
    output = run_program(PROGRAM + f"\n    asyncio.run({WRITES[case]})\n", str(tmp_path / "file"), case)
    assert output.splitlines() == ["MemoryError", "b'before after'"]


@pytest.mark.parametrize("case", READS)
def test_a_read_without_memory_raises_memory_error_and_moves_nothing(tmp_path, case):
    output = run_program(PROGRAM + f"\n    asyncio.run({READS[case]})\n", str(tmp_path / "file"), case)
    assert output.splitlines() == ["b''" if "beyond the end" in case else "MemoryError", "b'begin'"]


def test_a_list_of_lines_without_memory_raises_memory_error(tmp_path):
    output = run_program(PROGRAM + "\n    asyncio.run(read_lines('readlines'))\n", str(tmp_path / "file"), "")
    assert output.splitlines() == ["MemoryError", "b'\\n'"]
