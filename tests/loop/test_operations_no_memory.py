"""Allocations of the interpreter that fail during operations of a loop: each ends, and the loop works afterwards.

There is no comparison with asyncio here: it may lose the step that had no memory, and hang.
"""

import sys
import textwrap

import pytest

from tests.support import no_memory
from tests.support.script import run_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not no_memory.POSSIBLE, reason="no _testcapi that takes the memory away, or a debug build"),
]

PROGRAM = """
    import contextlib, os, socket, sys, threading, warnings
    import wakeloop
    from tests.support import no_memory

    warnings.simplefilter("ignore")
    loop = new_loop()
    piece = no_memory.Operations(loop).piece

    def listening():
        sock = socket.create_server(("127.0.0.1", 0))
        return sock, sock.getsockname()

    (echoing, ECHO), (calling, CALL) = listening(), listening()
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    DATAGRAMS = datagrams.getsockname()

    # The peers are a process of their own, whose memory does not fail.
    def serve(sock, handle):
        while True:
            threading.Thread(target=handle, args=[sock.accept()[0]], daemon=True).start()

    def echo(sock):
        try:
            while data := sock.recv(2 ** 16):
                sock.sendall(data)
        except OSError:
            pass

    def call(sock):
        address = "127.0.0.1", int(sock.recv(16) or 0)
        # As in asyncio, a server that has no memory for a connection closes it.
        with contextlib.suppress(ConnectionRefusedError):
            while not called(address):
                pass

    def called(address):
        with contextlib.suppress(ConnectionResetError), socket.create_connection(address) as sock:
            sock.sendall(b"line\\n")
            return sock.recv(9)

    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        threading.Thread(target=serve, args=[echoing, echo], daemon=True).start()
        threading.Thread(target=serve, args=[calling, call], daemon=True).start()
        def echo_datagrams():
            while True:
                datagrams.sendto(*datagrams.recvfrom(2 ** 16))
        threading.Thread(target=echo_datagrams, daemon=True).start()
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)

    def connected(kind=socket.SOCK_STREAM, to=ECHO):
        sock = socket.socket(type=kind)
        sock.connect(to)
        sock.setblocking(False)
        return sock

    async def a_socket(kind=socket.SOCK_STREAM, to=ECHO):
        return connected(kind, to)

    async def sock_connect(sock):
        await loop.sock_connect(sock, ECHO)
        assert sock.getpeername() == ECHO

    async def unconnected():
        sock = socket.socket()
        sock.setblocking(False)
        return sock

    async def sock_recv(sock):
        sock.send(b"hi")
        assert await loop.sock_recv(sock, 9) == b"hi"

    async def sock_recv_into(sock):
        sock.send(b"hi")
        assert await loop.sock_recv_into(sock, bytearray(9)) == 2

    async def sock_recvfrom(sock):
        sock.send(b"hi")
        assert await loop.sock_recvfrom(sock, 9) == (b"hi", DATAGRAMS)

    async def sock_sendto(sock):
        assert await loop.sock_sendto(sock, b"hi", DATAGRAMS) == 2

    async def sock_sendall(sock):
        # The peer sends it back, so it waits until somebody has read it.
        data = bytes(4_000_000)
        sending = asyncio.ensure_future(loop.sock_sendall(sock, data))
        received = 0
        while received < len(data):
            received += len(await loop.sock_recv(sock, 2 ** 20))
            if sending.done():
                sending.result()
        await sending

    async def a_listener():
        sock, address = listening()
        sock.setblocking(False)
        caller = connected(to=CALL)
        return sock, caller, str(address[1]).encode()

    async def sock_accept(given):
        sock, caller, port = given
        caller.send(port)
        accepted, _ = await loop.sock_accept(sock)
        assert accepted.fileno() >= 0

    async def a_stream():
        return await wakeloop.TcpStream.connect(*ECHO)

    async def stream_connect(_):
        stream = await wakeloop.TcpStream.connect("localhost", ECHO[1])
        stream.close()

    async def a_native_listener():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        return listener, connected(to=CALL), str(listener.port).encode()

    async def stream_accept(given):
        listener, caller, port = given
        caller.send(port)
        stream = await listener.accept()
        assert await stream.readline() == b"line\\n"

    def request(data, read):
        async def call(stream):
            await stream.write_all(data)
            assert await read(stream) == data.removeprefix(b"\\0\\0\\0\\2")
        return call

    async def write_all(stream):
        data = bytes(4_000_000)
        sending = asyncio.ensure_future(stream.write_all(data, b"x"))
        received = 0
        while received <= len(data):
            received += len(await stream.read(2 ** 20))
            if sending.done():
                sending.result()
        await sending

    async def write_pieces(stream):
        await stream.write_all(*[bytearray(b"hi") for _ in range(50)])
        assert await stream.readexactly(100) == b"hi" * 50

    async def streams():
        return await wakeloop.open_connection(*ECHO)

    async def writelines(streams):
        reader, writer = streams
        writer.writelines([bytearray(b"hi") for _ in range(50)])
        await writer.drain()
        assert await reader.readexactly(100) == b"hi" * 50

    def until(separator):
        async def call(streams):
            reader, writer = streams
            writer.write(b"first|rest")
            assert await reader.readuntil(separator) == b"first|"
        return call

    async def a_queue():
        return wakeloop.Queue(1)

    async def queue_get(queue):
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait(5)
        assert await getting == 5

    async def queue_put(queue):
        queue.put_nowait(5)
        putting = asyncio.ensure_future(queue.put(6))
        await asyncio.sleep(0)
        assert queue.get_nowait() == 5
        await putting
        assert queue.get_nowait() == 6

    def repeated(call):
        "In a thread, until there is memory for it."
        def body(given, go):
            while True:
                try:
                    with go:
                        return call(given)
                except MemoryError:
                    pass
        return body

    def with_thread(prepare, call):
        async def prepared():
            given, go = await prepare(), threading.Lock()
            go.acquire()
            threading.Thread(target=repeated(call), args=[given, go], daemon=True).start()
            return given, go
        return prepared

    async def queue_from_a_thread(given):
        queue, go = given
        getting = asyncio.ensure_future(queue.get())
        await asyncio.sleep(0)
        go.release()
        assert await getting == 5

    async def an_event():
        return wakeloop.Event()

    async def event_wait(event):
        waiting = asyncio.ensure_future(event.wait())
        await asyncio.sleep(0)
        event.set()
        assert await waiting is True

    async def event_from_a_thread(given):
        event, go = given
        go.release()
        assert await event.wait() is True

    async def a_future():
        return loop.create_future()

    def set_if_pending(future):
        future.done() or future.set_result(5)

    def set_soon(future):
        loop.call_soon_threadsafe(set_if_pending, future)

    async def threadsafe(given):
        future, go = given
        go.release()
        assert await future == 5

    async def warm():
        await loop.run_in_executor(None, int)

    async def executor(_):
        assert await loop.run_in_executor(None, len, b"123") == 3

    async def to_thread(_):
        assert await asyncio.to_thread(len, b"123") == 3

    async def spawn_blocking(_):
        # CPython keeps the memory of shorter tuples.
        assert await wakeloop.spawn_blocking(max, *range(100)) == 99

    async def sleep(_):
        await wakeloop.sleep(0.001)

    async def getaddrinfo(_):
        assert await loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)

    async def getnameinfo(_):
        assert await loop.getnameinfo(("127.0.0.1", 80))

    def open_connection(module):
        async def call(_):
            reader, writer = await module.open_connection("localhost", ECHO[1])
            writer.write(b"line\\n")
            assert await reader.readline() == b"line\\n"
            writer.close()
            await writer.wait_closed()
        return call

    async def a_caller():
        return connected(to=CALL)

    def start_server(module):
        async def call(caller):
            got = loop.create_future()
            async def serve(reader, writer):
                line = await reader.readline()
                writer.write(line)
                await writer.drain()
                writer.close()
                got.done() or got.set_result(line)
            server = await module.start_server(serve, "127.0.0.1", 0)
            caller.send(str(server.sockets[0].getsockname()[1]).encode())
            assert await got == b"line\\n"
            server.close()
        return call

    async def a_datagram_endpoint(_):
        got = loop.create_future()
        class Protocol(asyncio.DatagramProtocol):
            def datagram_received(self, data, address):
                got.set_result((data, address))
            def error_received(self, error):
                got.set_exception(error)
            def connection_lost(self, error):
                got.done() or got.set_exception(error or EOFError())
        transport, _ = await loop.create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
        transport.sendto(b"hi", DATAGRAMS)
        assert await got == (b"hi", DATAGRAMS)
        transport.close()

    async def nothing():
        pass

    PIECES = {
        "sock_connect": (unconnected, sock_connect),
        "sock_recv": (a_socket, sock_recv),
        "sock_recv_into": (a_socket, sock_recv_into),
        "sock_recvfrom": (lambda: a_socket(socket.SOCK_DGRAM, DATAGRAMS), sock_recvfrom),
        "sock_sendto": (lambda: a_socket(socket.SOCK_DGRAM, DATAGRAMS), sock_sendto),
        "sock_sendall": (a_socket, sock_sendall),
        "sock_accept": (a_listener, sock_accept),
        "stream connect": (nothing, stream_connect),
        "stream accept": (a_native_listener, stream_accept),
        "stream read": (a_stream, request(b"hi", lambda stream: stream.read(9))),
        "stream readexactly": (a_stream, request(b"hi", lambda stream: stream.readexactly(2))),
        "stream readline": (a_stream, request(b"hi\\n", lambda stream: stream.readline())),
        "stream readuntil": (a_stream, request(b"hi|", lambda stream: stream.readuntil((b"\\n", bytearray(b"|"))))),
        "stream read_frame": (a_stream, request(b"\\0\\0\\0\\2hi", lambda stream: stream.read_frame())),
        "stream write_all": (a_stream, write_all),
        "stream write_all of pieces": (a_stream, write_pieces),
        "writelines": (streams, writelines),
        "readuntil": (streams, until(b"|")),
        "readuntil of several": (streams, until((b"\\n", b"|") if sys.version_info >= (3, 13) else bytearray(b"|"))),
        "queue get": (a_queue, queue_get),
        "queue put": (a_queue, queue_put),
        "queue of a thread": (with_thread(a_queue, lambda queue: queue.put_nowait(5)), queue_from_a_thread),
        "event": (an_event, event_wait),
        "event of a thread": (with_thread(an_event, lambda event: event.set()), event_from_a_thread),
        "call_soon_threadsafe": (with_thread(a_future, set_soon), threadsafe),
        "run_in_executor": (warm, executor),
        "to_thread": (warm, to_thread),
        "spawn_blocking": (nothing, spawn_blocking),
        "sleep": (nothing, sleep),
        "getaddrinfo": (nothing, getaddrinfo),
        "getnameinfo": (nothing, getnameinfo),
        "open_connection": (nothing, open_connection(wakeloop)),
        "asyncio open_connection": (nothing, open_connection(asyncio)),
        "start_server": (a_caller, start_server(wakeloop)),
        "asyncio start_server": (a_caller, start_server(asyncio)),
        "datagrams": (nothing, a_datagram_endpoint),
    }
    name = sys.argv[1]
    no_memory.main({name: piece(*PIECES[name])}, int(sys.argv[2]), no_memory.ONE)
"""

NAMES = [
    "sock_connect",
    "sock_recv",
    "sock_recv_into",
    "sock_recvfrom",
    "sock_sendto",
    "sock_sendall",
    "sock_accept",
    "stream connect",
    "stream accept",
    "stream read",
    "stream readexactly",
    "stream readline",
    "stream readuntil",
    "stream read_frame",
    "stream write_all",
    "stream write_all of pieces",
    "writelines",
    "readuntil",
    "readuntil of several",
    "queue get",
    "queue put",
    "queue of a thread",
    "event",
    "event of a thread",
    "call_soon_threadsafe",
    "run_in_executor",
    "to_thread",
    "spawn_blocking",
    "sleep",
    "getaddrinfo",
    "getnameinfo",
    "open_connection",
    "asyncio open_connection",
    "start_server",
    "asyncio start_server",
    "datagrams",
]


# CPython 3.12 and 3.13 free a code object twice if there is no memory for the function that `def` makes of it.
DEF_CORRUPTS = (3, 12) <= sys.version_info < (3, 14)
DEFINING = {"start_server", "asyncio start_server", "datagrams"}


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_ends_when_an_allocation_fails_and_the_loop_works_afterwards(name):
    if DEF_CORRUPTS and name in DEFINING:
        pytest.skip("an operation that makes functions, and a CPython that does not survive that without memory")
    most = "140" if "server" in name else "70"
    body = f"import sys\nsys.argv[1:] = {[name, most]!r}\n" + textwrap.dedent(PROGRAM)
    outcome = run_script("wakeloop", body, timeout=60)
    assert outcome.code == 0, outcome
