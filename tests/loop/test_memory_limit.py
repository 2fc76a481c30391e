"""Programs that schedule, start or write more than there is memory for, under a limit of the address space: MemoryError."""

import sys
import textwrap

import pytest

from tests.support.script import run_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="the size of the address space is limited, and read from /proc"),
]

PROGRAM = """
    import os, resource, socket, time
    import wakeloop

    def leave(extra):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))

    async def others_sleep():
        # The C library ends the process if a thread begins when there is no memory.
        others = [path for path in os.listdir("/proc/self/task") if int(path) != os.getpid()]
        while not all(open(f"/proc/self/task/{path}/stat").read().rpartition(") ")[2][0] == "S" for path in others):
            await asyncio.sleep(0.001)

    def started(make, *arguments):
        kept = []
        def start():
            call = make(*arguments)
            call.send(None)
            kept.append(call)
        return start

    async def main():
        loop = asyncio.get_running_loop()
        await wakeloop.spawn_blocking(int)
        await others_sleep()
        near, far = socket.socketpair()
        near.setblocking(False)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
        unread = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = "\\0wakeloop-%d" % os.getpid()
        unread.bind(name)
        datagrams, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, family=socket.AF_UNIX, remote_addr=name
        )
        repeated = {
            "call_soon": lambda: loop.call_soon(int),
            "call_soon_threadsafe": lambda: loop.call_soon_threadsafe(int),
            "call_later": lambda: loop.call_later(1000, int),
            "sleep": started(wakeloop.sleep, 1000),
            "spawn_blocking": started(wakeloop.spawn_blocking, time.sleep, 0.01),
            "write": lambda: transport.write(b"x"),
            "sendto": lambda: datagrams.sendto(b"x"),
        }[NAME]
        leave(60_000_000)
        try:
            while True:
                repeated()
        except MemoryError:
            os.write(1, b"MemoryError")
            os._exit(0)

    asyncio.Runner(loop_factory=new_loop).run(main())
"""


@pytest.mark.parametrize(
    "name", ["call_soon", "call_soon_threadsafe", "call_later", "sleep", "spawn_blocking", "write", "sendto"]
)
def test_a_flood_without_memory_raises_memory_error(name):
    outcome = run_script("wakeloop", f"NAME = {name!r}\n" + textwrap.dedent(PROGRAM))
    assert (outcome.code, outcome.out) == (0, "MemoryError"), outcome
