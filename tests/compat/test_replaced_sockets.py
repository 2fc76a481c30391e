"""Programs and test tools replace `socket.socket`, or methods on it: the loop calls what asyncio's loop calls."""

import asyncio
import contextlib
import socket

import pytest

from tests.support.script import run_script
from tests.support.socket_program import CLIENTS, OPERATIONS
from tests.support.sockets import listener, socketpair

GREEN = """
import asyncio, contextlib, socket

Real = socket.socket

class Green:
    '''As the sockets of gevent and eventlet: not derived from _socket.socket.'''

    def __init__(self, *args, _sock=None, **options):
        self._sock = _sock or Real(*args, **options)

    def __getattr__(self, name):
        return getattr(self._sock, name)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._sock.close()

    def accept(self):
        conn, address = self._sock.accept()
        return Green(_sock=conn), address
"""

EVERYTHING = CLIENTS + """
async def main():
    await tcp()
    await unix()
    await udp()
    await sock()

def go(new_loop):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
"""

ANSWERS = "b'hi'\nb'hi'\nb'hi'\nb'datagram'\nb'sent' Green\n"


def test_a_socket_class_of_another_kind_that_is_there_before_the_loops_package(loop_name):
    # The prelude imports the package, so another process runs the program.
    program = f"""
import subprocess, sys
source = {GREEN!r} + "socket.socket = Green\\n" + {EVERYTHING!r}
source += "import importlib; go(importlib.import_module({loop_name!r}).new_event_loop)"
print(subprocess.run([sys.executable, "-W", "error", "-c", source], capture_output=True, text=True))
"""
    outcome = run_script(loop_name, program)
    assert f"returncode=0, stdout={ANSWERS!r}, stderr=''" in outcome.out, outcome


def test_a_socket_class_of_another_kind_that_comes_after_the_loops_package(loop_name):
    outcome = run_script(loop_name, GREEN + "socket.socket = Green\n" + EVERYTHING + "go(new_loop)", options=["-W", "error"])
    assert (outcome.out, outcome.err) == (ANSWERS, ""), outcome


@contextlib.contextmanager
def replaced(name, replacement):
    original = getattr(socket.socket, name)
    setattr(socket.socket, name, replacement)
    try:
        yield
    finally:
        # As pytest-socket does: the class keeps an inherited method in its own dict.
        setattr(socket.socket, name, original)


def test_a_guard_in_place_of_connect_sees_every_connection(run):
    async def connected(host, port):
        _, writer = await asyncio.open_connection(host, port, family=socket.AF_INET)
        writer.close()
        await writer.wait_closed()

    async def main():
        seen = []

        def connect(sock, address):
            seen.append(address)
            raise PermissionError("no network in tests")

        with listener() as server:
            port = server.getsockname()[1]
            for host in ("127.0.0.1", "localhost"):
                with replaced("connect", connect):
                    with pytest.raises(PermissionError, match="no network in tests"):
                        await connected(host, port)
                await connected(host, port)
        assert seen == [("127.0.0.1", port)] * 2

    run(main())


METHODS = [
    "__init__", "_accept", "accept", "bind", "close", "connect", "fileno", "getpeername", "getsockname", "getsockopt",
    "listen", "recv", "recv_into", "recvfrom", "recvfrom_into", "send", "sendmsg", "sendto", "setblocking", "setsockopt",
    "shutdown",
]  # fmt: skip

#: Prints which of the replaced methods each operation calls: with all of them replaced, and with one after the other.
RECORDER = """
async def main():
    seen = set()

    def recorder(name, method):
        def recorded(sock, *args, **options):
            seen.add(name)
            return method(sock, *args, **options)
        return recorded

    def report(operation):
        print(operation, sorted(seen))
        seen.clear()

    for names in METHODS, *([name] for name in METHODS):
        originals = {name: getattr(socket.socket, name) for name in names}
        for name, original in originals.items():
            setattr(socket.socket, name, recorder(name, original))
        await operations(report)
        for name, original in originals.items():
            setattr(socket.socket, name, original)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


def test_a_method_in_place_of_the_sockets_is_called_wherever_asyncio_calls_it(loop_name):
    program = f"METHODS = {METHODS!r}\n" + OPERATIONS + RECORDER
    found, expected = (run_script(name, program) for name in (loop_name, "asyncio"))
    assert (found.out, found.err, found.code) == (expected.out, expected.err, 0), (found, expected)


def test_a_class_in_place_of_the_sockets_counts_for_the_next_connection_that_a_server_accepts(run, monkeypatch):
    class Counted(socket.socket):
        pass

    async def main():
        kinds = asyncio.Queue()

        def serve(reader, writer):
            kinds.put_nowait(type(writer.get_extra_info("socket")._sock))
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            for kind in (socket.socket, Counted, socket.socket):
                with monkeypatch.context() as patch:
                    patch.setattr(socket, "socket", kind)
                    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                    assert await reader.read() == b"" and await kinds.get() is kind
                    assert type(writer.get_extra_info("socket")._sock) is kind
                    writer.close()
                    await writer.wait_closed()

    run(main())


def test_a_send_in_place_of_the_sockets_is_called_by_a_datagram_transport_that_is_open(run):
    async def main():
        loop, sent = asyncio.get_running_loop(), []

        def send(sock, data):
            sent.append(bytes(data))
            return len(data)

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
            far.bind(("127.0.0.1", 0))
            far.settimeout(10)
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=far.getsockname())
            transport.sendto(b"first")
            with replaced("send", send):
                transport.sendto(b"second")
                transport.sendto(b"third")
            transport.sendto(b"fourth")
            transport.close()
            await asyncio.sleep(0.001)
            assert [far.recv(100), far.recv(100), *sent] == [b"first", b"fourth", b"second", b"third"]

    run(main())


def test_an_override_in_a_subclass_is_called_by_the_sock_methods(run):
    class Counting(socket.socket):
        received = 0

        def recv(self, size):
            self.received += 1
            return super().recv(size)

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far), Counting(fileno=near.detach()) as counting:
            counting.setblocking(False)
            far.send(b"hello")
            assert await loop.sock_recv(counting, 10) == b"hello"
            assert counting.received == 1

    run(main())
