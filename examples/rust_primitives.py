"""Primitives that Python awaits and Rust runs: a timer, and an echo server that never takes the GIL.

    python examples/rust_primitives.py
"""

import asyncio
import socket
import time

import wakeloop


def round_trip(port: int, count: int) -> float:
    """Returns the microseconds per round trip, for a client with a blocking socket."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = time.perf_counter()
        for _ in range(count):
            client.sendall(b"ping")
            assert client.recv(16) == b"ping"
        return (time.perf_counter() - start) / count * 1e6


async def main() -> None:
    start = time.perf_counter()
    await wakeloop.sleep(0.05)
    print(f"wakeloop.sleep(0.05) took {time.perf_counter() - start:.4f} s")

    # Cancelling the awaiting task drops the Rust future: nothing is left behind.
    try:
        async with asyncio.timeout(0.01):
            await wakeloop.sleep(3600)
    except TimeoutError:
        print("an hour's sleep was cancelled after 10 ms")

    server = await wakeloop.start_echo_server("127.0.0.1", 0)
    microseconds = await asyncio.to_thread(round_trip, server.port, 2000)
    print(f"the echo server on port {server.port} answers in {microseconds:.0f} us: {server.stats()}")
    server.close()
    await server.wait_closed()


if __name__ == "__main__":
    wakeloop.run(main())
