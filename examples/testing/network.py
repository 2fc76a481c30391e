"""Found by a network in memory that shortens reads: a message that arrives in several pieces.

python examples/testing/network.py
"""

import asyncio

from wakeloop import testing
from wakeloop.testing.network import Network


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    length = int.from_bytes(await reader.readexactly(4))
    message = await reader.read(length)  # the bug: read() may return less
    writer.write(f"{len(message)} bytes\n".encode())
    await reader.read()  # until the client closes
    writer.close()


async def a_message() -> None:
    async with await asyncio.start_server(serve, "127.0.0.1", 8000):
        reader, writer = await asyncio.open_connection("127.0.0.1", 8000)
        writer.write((1000).to_bytes(4) + bytes(1000))
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        await asyncio.sleep(1)
    assert answer == b"1000 bytes\n", f"the server has received {answer.decode().strip()} of 1000"


def slow_network() -> Network:
    network = Network(latency=0.05)
    network.shorten("recv", (1, 600))
    return network


if __name__ == "__main__":
    testing.run(a_message, network=Network())
    try:
        testing.run(a_message, seed=1, network=slow_network())
    except AssertionError as error:
        print(error)
