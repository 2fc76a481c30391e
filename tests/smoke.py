"""A smoke test of an installed wakeloop: the loop, TCP, TLS, primitives, threads and a child process.

    python -m tests.smoke

It needs nothing but wakeloop and openssl, so that it also runs in an empty environment and on an emulated processor.
"""

import asyncio
import pathlib
import sys
import tempfile

import wakeloop
from tests.support.certificate import Certificate

PAYLOAD = bytes(range(256)) * 1024


async def echo(reader, writer):
    writer.write(await reader.readexactly(len(PAYLOAD)))
    await writer.drain()
    writer.close()


async def exchange(server_tls=None, client_tls=None):
    async with await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server_tls) as server:
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=client_tls)
        writer.write(PAYLOAD)
        assert await reader.read() == PAYLOAD
        writer.close()
        await writer.wait_closed()


async def tcp():
    await exchange()


async def tls():
    with tempfile.TemporaryDirectory() as directory:
        certificate = Certificate(pathlib.Path(directory))
        await exchange(certificate.server(), certificate.client())


async def primitives():
    loop = asyncio.get_running_loop()
    start = loop.time()
    assert await wakeloop.sleep(0.01, "slept") == "slept"
    assert loop.time() - start >= 0.01
    assert await wakeloop.spawn_blocking(sum, range(100)) == 4950
    async with await wakeloop.start_echo_server("127.0.0.1", 0) as server:
        async with await wakeloop.TcpStream.connect("127.0.0.1", server.port) as stream:
            await stream.write_all(b"a line\n")
            assert await stream.readline() == b"a line\n"


async def cancellation():
    try:
        async with asyncio.timeout(0.01):
            await wakeloop.sleep(60)
    except TimeoutError:
        return
    raise AssertionError("the timeout did not cancel wakeloop.sleep")


async def threads():
    assert await asyncio.to_thread(lambda: 6 * 7) == 42


async def child_process():
    program = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.exit(3)"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=-1, stdout=-1)
    assert await child.communicate(b"word" * 50_000) == (b"WORD" * 50_000, None)
    assert child.returncode == 3


async def main():
    loop = asyncio.get_running_loop()
    assert type(loop) is wakeloop.EventLoop
    for check in (tcp, tls, primitives, cancellation, threads, child_process):
        async with asyncio.timeout(60):
            await check()
    python = ".".join(map(str, sys.version_info[:3]))
    print(f"wakeloop {wakeloop.__version__} works on Python {python}, TLS by {loop.tls_engine}")


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=wakeloop.new_event_loop) as runner:
        runner.run(main())
