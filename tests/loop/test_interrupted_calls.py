"""System calls that a signal interrupts (EINTR): the loop tries them again, and nothing is lost or waits forever.

The poller reports an edge once. So a receive that is interrupted has to be tried again at once: data that is there, or
the end of the stream, causes no other event.
"""

import os
import subprocess
import sys
import textwrap

import pytest

from tests.support import preload
from tests.support.loops import PRELUDE

pytestmark = preload.needs_preload

HELPERS = """
import ctypes, os, socket, tempfile
library = ctypes.CDLL(os.environ["LD_PRELOAD"])
loop = new_loop()

class Collects(asyncio.Protocol):
    def __init__(self):
        self.data, self.lost = bytearray(), loop.create_future()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.data += data

    def datagram_received(self, data, address):
        self.data += data

    def connection_lost(self, exception):
        self.lost.set_result(exception)

class Buffered(asyncio.BufferedProtocol, Collects):
    def get_buffer(self, hint):
        self.buffer = bytearray(1000)
        return self.buffer

    def buffer_updated(self, count):
        self.data += self.buffer[:count]

def pair(family):
    if family == socket.AF_UNIX:
        near, far = socket.socketpair()
    else:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            far = socket.create_connection(listener.getsockname())
            near, _ = listener.accept()
    near.setblocking(False)
    return near, far

def run(main):
    library.interrupt(1)
    try:
        return loop.run_until_complete(asyncio.wait_for(main, 10))
    finally:
        library.interrupt(0)
        if not ctypes.c_ulong.in_dll(library, "interrupted").value:
            print("nothing was interrupted")
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return preload.build("interrupt", tmp_path_factory.mktemp("interrupt"))


@pytest.fixture
def interrupted(loop_name, library):
    def run(body):
        source = PRELUDE[loop_name] + HELPERS + textwrap.dedent(body)
        done = subprocess.run(
            [sys.executable, "-X", "faulthandler", "-c", source],
            env={**os.environ, "LD_PRELOAD": str(library)},
            capture_output=True,
            text=True,
            timeout=30,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("family", ["AF_INET", "AF_UNIX"])
@pytest.mark.parametrize("kind", ["Collects", "Buffered", "StreamReader"])
def test_the_end_behind_data_whose_receive_is_interrupted_is_seen(interrupted, family, kind):
    body = f"""
        async def main():
            for _ in range(20):
                near, far = pair(socket.{family})
                if {kind!r} == "StreamReader":
                    reader, writer = await asyncio.open_connection(sock=near)
                    reading = asyncio.ensure_future(reader.read())
                else:
                    transport, protocol = await loop.create_connection({kind.replace("StreamReader", "Collects")}, sock=near)
                await asyncio.sleep(0.001)
                far.send(b"x" * 1000)
                far.close()
                if {kind!r} == "StreamReader":
                    assert len(await reading) == 1000
                    writer.close()
                else:
                    assert await protocol.lost is None and len(protocol.data) == 1000
            return "seen"

        print(run(main()))
    """
    assert interrupted(body) == "seen\n"


def test_large_amounts_pass_through_interrupted_calls_in_both_directions(interrupted):
    body = """
        async def serve(reader, writer):
            while data := await reader.read(100_000):
                writer.write(data)
                await writer.drain()
            writer.close()

        async def main():
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            sent = os.urandom(3_000_000)
            writer.writelines([sent[:1_000_000], sent[1_000_000:]])
            writer.write_eof()
            received = await reader.read()
            writer.close()
            server.close()
            return received == sent

        print(run(main()))
    """
    assert interrupted(body) == "True\n"


def test_datagrams_pipes_files_and_sockets_pass_through_interrupted_calls(interrupted):
    body = """
        async def datagrams():
            receiver, protocol = await loop.create_datagram_endpoint(Collects, local_addr=("127.0.0.1", 0))
            sender, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=receiver.get_extra_info("sockname"))
            for _ in range(50):
                sender.sendto(b"0123456789")
            while len(protocol.data) < 500:
                await asyncio.sleep(0.001)
            sender.close()
            receiver.close()

        async def pipes():
            read, write = os.pipe()
            _, protocol = await loop.connect_read_pipe(Collects, os.fdopen(read, "rb", 0))
            transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(write, "wb", 0))
            transport.write(bytes(300_000))
            transport.write_eof()
            assert await protocol.lost is None and len(protocol.data) == 300_000

        async def files():
            near, far = pair(socket.AF_INET)
            transport, _ = await loop.create_connection(Collects, sock=near)
            far.setblocking(False)
            _, protocol = await loop.create_connection(Collects, sock=far)
            with tempfile.TemporaryFile() as file:
                file.truncate(2_000_000)
                assert await loop.sendfile(transport, file) == 2_000_000
            transport.close()
            assert await protocol.lost is None and len(protocol.data) == 2_000_000

        async def sockets():
            listener = socket.create_server(("127.0.0.1", 0))
            client = socket.socket()
            listener.setblocking(False)
            client.setblocking(False)
            accepting = asyncio.ensure_future(loop.sock_accept(listener))
            await loop.sock_connect(client, listener.getsockname())
            accepted, _ = await accepting
            sending = asyncio.ensure_future(loop.sock_sendall(client, bytes(2_000_000)))
            received = 0
            while received < 2_000_000:
                received += len(await loop.sock_recv(accepted, 100_000))
            await sending
            client.close()
            assert await loop.sock_recv(accepted, 10) == b""
            accepted.close()
            listener.close()

        async def main():
            for each in datagrams, pipes, files, sockets:
                await each()
            return "all"

        print(run(main()))
    """
    assert interrupted(body) == "all\n"


@pytest.mark.native
def test_the_primitives_try_interrupted_calls_again(interrupted, loop_name):
    body = """
        import wakeloop

        async def echo(stream):
            while data := await stream.read(100_000):
                await stream.write_all(data)
            stream.close()

        async def main():
            listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
            stream = await wakeloop.TcpStream.connect(listener.host, listener.port)
            serving = asyncio.create_task(echo(await listener.accept()))
            for size in (1, 1000, 3_000_000):
                sent = os.urandom(size)
                sending = asyncio.create_task(stream.write_all(sent)) if size > 1000 else await stream.write_all(sent)
                assert await stream.readexactly(size) == sent
                if sending is not None:
                    await sending
            stream.write_eof()
            assert await stream.read() == b""
            await serving
            udp = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
            for _ in range(20):
                await udp.send_to(b"datagram", (udp.host, udp.port))
                assert (await udp.recv_from())[0] == b"datagram"
            await wakeloop.sleep(0.001)
            return "all"

        print(run(main()))
    """
    assert interrupted(body) == "all\n"
