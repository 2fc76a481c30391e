"""gevent and eventlet, whose monkey-patching replaces sockets, selectors, threads and the resolver of the process."""

import subprocess
import sys

import pytest

from tests.ecosystem.support import need_installed
from tests.support.builds import FREE_THREADED
from tests.support.socket_program import CLIENTS

pytestmark = pytest.mark.timeout(90)

#: What each library calls its things.
LIBRARIES = {
    "gevent": ("import gevent.monkey", "gevent.monkey.patch_all()", "gevent"),
    "eventlet": ("import eventlet", "eventlet.monkey_patch()", "eventlet"),
}

PROGRAM = CLIENTS + """
import socket, time

ticks = []

def tick(pause):
    while True:
        ticks.append(1)
        pause(0.001)

def blocking_client(address, answers, wake):
    with socket.create_connection(address) as client:
        client.sendall(b"yo")
        answers.append(client.recv(10))
    wake()

async def main():
    loop = asyncio.get_running_loop()
    green.spawn(tick, green.sleep)
    while len(ticks) < 3:
        await asyncio.sleep(0.001)
    print("other greenlets run while the loop sleeps")
    await unix()
    await udp()
    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        print(await talk(*await asyncio.open_connection(*address)))
        print(await talk(*await asyncio.open_connection("localhost", address[1], family=socket.AF_INET)))
        done, answers = asyncio.Event(), []
        green.spawn(blocking_client, address, answers, lambda: loop.call_soon_threadsafe(done.set))
        await done.wait()
        print(answers)
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    receiving = asyncio.ensure_future(loop.sock_recv(near, 10))
    await asyncio.sleep(0.001)
    await loop.sock_sendall(far, b"sent")
    print(await receiving)
    near.close()
    far.close()
    print(await asyncio.to_thread(lambda: (time.sleep(0.001), "from a thread")[1]))
    print(await loop.getaddrinfo("localhost", 80, family=socket.AF_INET, type=socket.SOCK_STREAM))
    print(type(loop._selector).__name__)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


@pytest.mark.skipif(
    sys.version_info >= (3, 15) or FREE_THREADED, reason="asyncio itself hangs in run_in_executor under both libraries"
)
@pytest.mark.parametrize("order", ["before", "after"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_program_under_monkey_patching_does_what_it_does_on_asyncio(loop_name, library, order):
    """The library patches before, or after, the program imports asyncio and the loop's package."""
    need_installed(library)
    module, patch, name = LIBRARIES[library]

    def output(loop):
        imports = f"import asyncio, {loop}"
        first, then = (patch, imports) if order == "before" else (imports, patch)
        start = f"{module}\n{first}\n{then}\ngreen, new_loop = {name}, {loop}.new_event_loop\n"
        line = [sys.executable, "-W", "ignore", "-c", start + PROGRAM]
        done = subprocess.run(line, capture_output=True, text=True, timeout=40)
        return done.stdout, done.stderr, done.returncode

    found, expected = output(loop_name), output("asyncio")
    assert found == expected and found[1:] == ("", 0), (found, expected)
