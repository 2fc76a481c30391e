"""Reads of a TcpStream under a limit of the address space: MemoryError, and the process goes on."""

import sys

import pytest

from tests.support.script import run_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(sys.platform != "linux", reason="other systems do not keep to the limit"),
]

PRELUDE = """
import logging, os, resource, socket, struct
logging.disable()
MB = 1 << 20

def limit(more):
    size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + more, size + more))

async def streams():
    "A TcpStream, and a socket at the other end."
    listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
    client = socket.create_connection((listener.host, listener.port))
    stream = await listener.accept()
    client.setblocking(False)
    return stream, client

async def send(client, *chunks):
    for chunk in chunks:
        await asyncio.get_running_loop().sock_sendall(client, chunk)
    client.close()
"""

ENDING = """
try:
    new_loop().run_until_complete(main())
    print("finished", flush=True)
except MemoryError:
    os.write(1, b"MemoryError\\n")
os._exit(0)
"""


def outcome(body):
    done = run_script("wakeloop", f"{PRELUDE}{body}{ENDING}", timeout=60)
    assert done.code == 0, done
    return done.out


@pytest.mark.parametrize("read", ["read_frame(max_size=2**32)", f"readexactly({280 << 20})", "read()"])
def test_a_peer_that_sends_more_than_there_is_memory_for_causes_a_memory_error(read):
    body = f"""
async def main():
    stream, client = await streams()
    chunks = [bytes(MB)] * 300
    if {read!r}.startswith("read_frame"):
        chunks.insert(0, struct.pack(">I", 2**32 - 1))
    sending = asyncio.create_task(send(client, *chunks))
    limit(100 * MB)
    await stream.{read}
"""
    assert outcome(body) == "MemoryError\n"


def test_bytes_for_which_a_read_had_no_memory_can_be_read_in_smaller_pieces():
    body = """
async def main():
    stream, client = await streams()
    sending = asyncio.create_task(send(client, *[bytes(MB)] * 200))
    limit(150 * MB)
    try:
        await stream.readexactly(200 * MB)
    except MemoryError:
        pass
    else:
        print("there was memory")
    left = 200 * MB
    while data := await stream.read(MB // 2):
        left -= len(data)
    print(left)
"""
    assert outcome(body) == "0\nfinished\n"
