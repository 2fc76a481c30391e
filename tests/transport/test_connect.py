"""create_connection: its exceptions, the order of its calls, and what it leaves to asyncio."""

import asyncio
import contextlib
import contextvars
import errno
import gc
import logging
import os
import re
import resource
import socket
import sys
from unittest import mock

import pytest

from tests.support.protocol import Recording
from tests.support.script import run_script
from tests.support.sockets import socketpair

REAL_SOCKET = socket.socket
VARIABLE = contextvars.ContextVar("VARIABLE", default="nothing")


@contextlib.contextmanager
def refusing_port():
    """Returns a port that is bound (so that nothing else uses it) and does not listen."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def silent_listener():
    """Returns a listener whose backlog is full, so that one more connection only waits."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.asynccontextmanager
async def serving(protocol=Recording, host="127.0.0.1"):
    server = await asyncio.get_running_loop().create_server(protocol, host, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)


async def ended(*protocols):
    for protocol in protocols:
        protocol.transport.close()
    await asyncio.gather(*[protocol.lost for protocol in protocols])


async def failure(awaitable):
    try:
        await awaitable
    except BaseException as error:
        return type(error), error.args, str(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"family": socket.AF_INET},
        {"proto": socket.IPPROTO_TCP, "flags": socket.AI_V4MAPPED},
        {"ssl": None, "sock": None, "local_addr": None, "server_hostname": None, "happy_eyeballs_delay": None},
        {"local_addr": ("127.0.0.1", 0)},
        {"happy_eyeballs_delay": 0.25},
        {"interleave": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_create_connection_returns_a_transport_with_a_transport_socket(run, host, options):
    async def main():
        async with serving() as port:
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, host, port, **options)
            assert protocol.calls == ["connection_made"] and protocol.transport is transport
            sock = transport.get_extra_info("socket")
            assert (sock.family, sock.type, sock.proto) == (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert not os.get_inheritable(sock.fileno()) and not os.get_blocking(sock.fileno())
            assert transport.get_extra_info("peername") == ("127.0.0.1", port)
            assert transport.get_extra_info("sockname") == sock.getsockname()
            await ended(protocol)

    run(main())


@pytest.mark.parametrize(
    "nowhere, host", [("0.0.0.0", "127.0.0.1"), ("::", "::1"), ("::ffff:0.0.0.0", "127.0.0.1")]
)
def test_connecting_to_the_unspecified_address_reports_the_address_reached(run, nowhere, host):
    async def main():
        async with serving(host=host) as port:
            loop = asyncio.get_running_loop()
            (early, first), (_, second) = [await loop.create_connection(Recording, nowhere, port) for _ in range(2)]
            reached = early.get_extra_info("socket").getpeername()
            assert reached[1] == port and nowhere != reached[0] and reached[0].endswith(host)
            assert early.get_extra_info("peername") == reached
            await ended(first, second)
            assert second.transport.get_extra_info("peername") == reached

    run(main())


def test_ipv6_literals_connect(run):
    async def main():
        async with serving(host="::1") as port:
            transport, protocol = await asyncio.get_running_loop().create_connection(Recording, "::1", str(port))
            assert transport.get_extra_info("peername") == ("::1", port, 0, 0)
            await ended(protocol)

    run(main())


def test_a_refused_connection_names_the_address_in_its_error(run):
    async def main():
        loop = asyncio.get_running_loop()
        with refusing_port() as port:
            wanted = (errno.ECONNREFUSED, f"Connect call failed ('127.0.0.1', {port})")
            kind, args, _ = await failure(loop.create_connection(Recording, "127.0.0.1", port))
            assert (kind, args) == (ConnectionRefusedError, wanted)
            kind, args, _ = await failure(loop.create_connection(Recording, "::1", port))
            wanted = (errno.ECONNREFUSED, f"Connect call failed ('::1', {port}, 0, 0)")
            assert (kind, args) == (ConnectionRefusedError, wanted)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all_errors is new in 3.12")
def test_all_errors_raises_an_exception_group(run):
    async def main():
        loop = asyncio.get_running_loop()
        with refusing_port() as port:
            with pytest.raises(ExceptionGroup, match="create_connection failed") as caught:
                await loop.create_connection(Recording, "127.0.0.1", port, all_errors=True)
            assert [type(error) for error in caught.value.exceptions] == [ConnectionRefusedError]

    run(main())


WRONG = {
    "an option that does not exist": ((asyncio.Protocol, "127.0.0.1", 1), {"nonsense": None}),
    "no host and no socket": ((asyncio.Protocol,), {}),
    "server_hostname without ssl": ((asyncio.Protocol, "127.0.0.1", 1), {"server_hostname": "x"}),
    "a timeout without ssl": ((asyncio.Protocol, "127.0.0.1", 1), {"ssl_handshake_timeout": 1}),
    "a port that is too large": ((asyncio.Protocol, "127.0.0.1", 65536), {}),
    "a port below zero": ((asyncio.Protocol, "127.0.0.1", -1), {}),
    "a family of another address": ((asyncio.Protocol, "127.0.0.1", 1), {"family": socket.AF_INET6}),
    "a protocol of another type": ((asyncio.Protocol, "127.0.0.1", 1), {"proto": socket.IPPROTO_ICMP}),
    "the broadcast address": ((asyncio.Protocol, "255.255.255.255", 1), {}),
    "an interface that is not there": ((asyncio.Protocol, "fe80::1", 1), {}),
}


@pytest.mark.native
@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_raise_what_asyncio_raises(run, case):
    args, options = WRONG[case]

    async def main():
        async def connect():
            await asyncio.get_running_loop().create_connection(*args, **options)

        return await failure(connect())

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        wanted = runner.run(main())
    # A method in Python is named with its own class.
    assert re.sub(r"\bEventLoop\.", "BaseEventLoop.", str(run(main()))) == str(wanted)


def test_the_factory_is_called_when_the_connection_is_there_in_the_caller_s_context(run):
    seen = []

    class Noting(Recording):
        def __init__(self):
            super().__init__()
            seen.append(("factory", VARIABLE.get(), asyncio.current_task().get_name()))

        def connection_made(self, transport):
            super().connection_made(transport)
            seen.append(("made", VARIABLE.get(), asyncio.current_task()))

    async def main():
        async with serving() as port:
            VARIABLE.set("caller's")
            task = asyncio.create_task(
                asyncio.get_running_loop().create_connection(Noting, "127.0.0.1", port), name="connector"
            )
            VARIABLE.set("later")
            await asyncio.sleep(0)
            assert not seen
            _, protocol = await task
            assert seen == [("factory", "caller's", "connector"), ("made", "caller's", None)]
            await ended(protocol)

    run(main())


def test_data_the_server_sends_first_is_received_after_connection_made(run):
    class Greeting(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"hello")
            transport.close()

    async def main():
        async with serving(Greeting) as port:
            for _ in range(50):
                _, protocol = await asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
                await protocol.lost
                assert bytes(protocol.data) == b"hello"
                assert protocol.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]

    run(main())


def test_data_that_waited_in_the_socket_before_connection_made_is_delivered(run):
    """Only the kernel listens: it has sent data before the client's loop runs its next iteration."""

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listener:
            loop = asyncio.get_running_loop()

            def factory():
                # Called between the connect and the transport: no protocol can get data yet.
                peer, _ = listener.accept()
                with peer:
                    peer.sendall(b"early")
                return Recording()

            _, protocol = await loop.create_connection(factory, *listener.getsockname())
            await protocol.lost
            assert bytes(protocol.data) == b"early"

    run(main())


@pytest.mark.native
def test_a_factory_that_raises_leaves_no_socket_behind(run):
    def factory():
        raise LookupError("no protocol today")

    async def main():
        async with serving() as port:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(3):
                with pytest.raises(LookupError):
                    await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", port)
                with pytest.raises(AttributeError):
                    await asyncio.get_running_loop().create_connection(object, "127.0.0.1", port)
            assert len(os.listdir("/proc/self/fd")) <= before + 6  # the server's ends

    run(main())


def test_a_cancelled_connect_closes_its_socket(run):
    async def main():
        with silent_listener() as port:
            await asyncio.sleep(0.001)  # a loop may make a descriptor for its first timer
            before = len(os.listdir("/proc/self/fd"))
            task = asyncio.create_task(asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port))
            await asyncio.sleep(0.02)
            assert not task.done() and len(os.listdir("/proc/self/fd")) == before + 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            del task
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) == before

    run(main())


def test_a_connect_that_is_cancelled_with_its_transport_made_closes_it(run):
    async def main():
        loop = asyncio.get_running_loop()
        async with serving() as port:
            made = []

            def factory():
                made.append(Recording())
                task.cancel()
                return made[0]

            task = asyncio.create_task(loop.create_connection(factory, "127.0.0.1", port))
            with pytest.raises(asyncio.CancelledError):
                await task
            await made[0].lost
            assert made[0].calls == ["connection_made", "connection_lost"] and made[0].error is None

    run(main())


@pytest.mark.native
def test_a_loop_that_is_closed_under_a_connect_closes_its_socket(loop_factory):
    with silent_listener() as port:
        before = len(os.listdir("/proc/self/fd"))
        loop = loop_factory()
        task = loop.create_task(loop.create_connection(Recording, "127.0.0.1", port))
        loop.call_later(0.02, loop.stop)
        loop.run_forever()
        loop.close()
        task._log_destroy_pending = False
        del loop, task
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before


def test_connecting_without_free_descriptors_raises_oserror(run):
    async def main():
        async with serving() as port:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            used = max(map(int, os.listdir("/proc/self/fd"))) + 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (used, hard))
            held = []
            try:
                with contextlib.suppress(OSError):
                    while True:
                        held.append(os.dup(0))
                kind, args, _ = await failure(
                    asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
                )
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                for fd in held:
                    os.close(fd)
            assert (kind, args) == (OSError, (errno.EMFILE, "Too many open files"))

    run(main())


def test_an_overridden_sock_connect_is_called(loop):
    calls = []

    class Loop(type(loop)):
        async def sock_connect(self, sock, address):
            calls.append(address)
            return await super().sock_connect(sock, address)

    async def main():
        async with serving() as port:
            _, protocol = await asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
            assert calls == [("127.0.0.1", port)]
            await ended(protocol)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())


def test_a_method_that_is_replaced_on_the_loop_is_called(run):
    async def main():
        async with serving() as port:
            loop = asyncio.get_running_loop()
            original, calls = loop._make_socket_transport, []

            def replacement(sock, *args, **kwargs):
                calls.append(sock)
                return original(sock, *args, **kwargs)

            loop._make_socket_transport = replacement
            _, protocol = await loop.create_connection(Recording, "127.0.0.1", port)
            assert any(isinstance(sock, socket.socket) for sock in calls)
            await ended(protocol)

    run(main())


def noting(made):
    """Returns a socket class that appends its instances to the list."""

    class Socket(socket.socket):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

    return Socket


def test_a_replaced_socket_class_is_used(run, monkeypatch):
    made = []
    Socket = noting(made)

    async def main():
        async with serving() as port:
            monkeypatch.setattr(socket, "socket", Socket)
            _, protocol = await asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
            assert made[0].getpeername() == ("127.0.0.1", port)
            await ended(protocol)
            monkeypatch.undo()

    run(main())


def plain_function(*args, **kwargs):
    return REAL_SOCKET(*args, **kwargs)


@pytest.mark.parametrize(
    "replacement", [plain_function, mock.Mock(wraps=socket.socket)], ids=["a function", "a mock"]
)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replacement_of_the_socket_class_may_be_a_function(run, monkeypatch, tmp_path, replacement, when):
    """`mock.patch("socket.socket", ...)`, as asyncssh's tests have it; asyncio only calls it."""

    async def echo(reader, writer):
        assert writer.get_extra_info("socket").fileno() >= 0
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    async def asked(reader, writer):
        writer.write(b"a line\n")
        assert await reader.read() == b"a line\n"
        assert writer.get_extra_info("socket").type == socket.SOCK_STREAM
        writer.close()
        await writer.wait_closed()

    async def main():
        loop, path = asyncio.get_running_loop(), str(tmp_path / "s")
        if when == "before":
            monkeypatch.setattr(socket, "socket", replacement)
        async with (
            await asyncio.start_server(echo, "127.0.0.1", 0) as server,
            await asyncio.start_unix_server(echo, path),
        ):
            monkeypatch.setattr(socket, "socket", replacement)
            await asked(*await asyncio.open_connection(*server.sockets[0].getsockname()))
            await asked(*await asyncio.open_unix_connection(path))
            with socketpair() as (ours, theirs):
                ours.setblocking(False)
                theirs.setblocking(True)
                _, writer = await asyncio.open_connection(sock=ours)
                writer.write(b"given")
                assert await loop.run_in_executor(None, theirs.recv, 10) == b"given"
                writer.close()
                await writer.wait_closed()
            received = loop.create_future()

            class Receiver(asyncio.DatagramProtocol):
                def datagram_received(self, data, address):
                    received.set_result(data)

            endpoint, _ = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
            endpoint.sendto(b"datagram", endpoint.get_extra_info("sockname"))
            assert await received == b"datagram"
            endpoint.close()
        monkeypatch.undo()

    run(main())


def test_accepted_connections_use_the_current_socket_class(run, monkeypatch):
    """A server made while the class is replaced accepts with the replacement, as socket.accept() does."""
    made = []
    Socket = noting(made)

    async def main():
        monkeypatch.setattr(socket, "socket", Socket)
        async with serving() as port:
            _, protocol = await asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
            while len(made) < 3:  # the listener, the client's, and what the server accepted
                await asyncio.sleep(0.01)
            await ended(protocol)
            monkeypatch.undo()

    run(main())


def test_debug_mode_logs_the_connection(run, caplog):
    async def main():
        async with serving() as port:
            _, protocol = await asyncio.get_running_loop().create_connection(Recording, "127.0.0.1", port)
            await ended(protocol)
            return port

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        port = run(main(), debug=True)
    assert any(f" connected to 127.0.0.1:{port}: (" in record.getMessage() for record in caplog.records)


def test_audit_hooks_see_the_socket_and_where_it_goes(loop_name):
    script = """
import socket, sys
seen = []

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sys.addaudithook(hook)
    transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    (new, connect), sock = seen[:2], transport.get_extra_info("socket")
    assert new[0] == "socket.__new__" and new[1][1:] == (socket.AF_INET, socket.SOCK_STREAM, 6), new
    assert connect[0] == "socket.connect" and connect[1][1] == ("127.0.0.1", port), connect
    assert connect[1][0].fileno() == sock.fileno() and connect[1][0].getpeername() == ("127.0.0.1", port)
    transport.close()
    forbidden.append("socket.connect")
    try:
        await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
    except PermissionError as error:
        print(error)
    server.close()

forbidden = []

def hook(event, args):
    if event in forbidden:
        raise PermissionError(f"{event} to {args[1][0]}")
    if event in ("socket.__new__", "socket.connect"):
        seen.append((event, args))

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""
    outcome = run_script(loop_name, script, options=["-W", "error"])
    assert (outcome.out, outcome.err, outcome.code) == ("socket.connect to 127.0.0.1\n", "", 0), outcome


def test_the_task_that_awaits_create_connection_resumes_before_data_received(run):
    """A protocol often gets what it needs there: SSH's port forwarding sets the other end."""

    class Greeting(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"hello")
            transport.close()

    class Client(asyncio.Protocol):
        def __init__(self):
            self.known, self.seen, self.lost = False, [], asyncio.get_running_loop().create_future()

        def data_received(self, data):
            self.seen.append((self.known, data))

        def connection_lost(self, exc):
            self.lost.set_result(self.known)

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Greeting, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        for name in [host, "localhost"] * 10:
            _, client = await loop.create_connection(Client, name, port, family=socket.AF_INET)
            client.known = True
            async with asyncio.timeout(10):
                assert await client.lost
            assert client.seen == [(True, b"hello")]
        # The greeting is in the socket before the loop gets it.
        for _ in range(10):
            sock = socket.create_connection((host, port))
            await asyncio.sleep(0.005)
            sock.setblocking(False)
            _, client = await loop.create_connection(Client, sock=sock)
            client.known = True
            async with asyncio.timeout(10):
                assert await client.lost
            assert client.seen == [(True, b"hello")]
        server.close()

    run(main())
