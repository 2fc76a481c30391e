"""Other people's tests patch methods of asyncio's transports, on the class that defines or inherits them. The
replacement is called for our transports.
"""

import asyncio
import functools
import logging
import os
import socket
from asyncio import constants, selector_events, sslproto, unix_events
from unittest import mock

import pytest

from tests.support.protocol import Recording, close, pair
from tests.support.sockets import socketpair
from tests.support.tls_pair import finish, secure_pair, talk


async def stream():
    """Returns a transport of a connection, and a coroutine function that ends it."""
    near, far = await pair()

    async def end():
        await close(near, far)

    return near.transport, end


async def datagrams():
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0)
    )

    async def end():
        transport.close()
        await asyncio.sleep(0.001)

    return transport, end


async def pipe(method):
    connection = socketpair()
    near, far = connection.__enter__()
    transport, _ = await getattr(asyncio.get_running_loop(), method)(Recording, near)

    async def end():
        transport.close()
        await asyncio.sleep(0.001)
        far.close()

    return transport, end


MAKERS = {
    "stream": stream,
    "datagram": datagrams,
    "read pipe": functools.partial(pipe, "connect_read_pipe"),
    "write pipe": functools.partial(pipe, "connect_write_pipe"),
}
ASYNCIOS = {
    "stream": selector_events._SelectorSocketTransport,
    "datagram": selector_events._SelectorDatagramTransport,
    "read pipe": unix_events._UnixReadPipeTransport,
    "write pipe": unix_events._UnixWritePipeTransport,
}


def inherited():
    """Returns (kind, name, class) for each public method that asyncio's transports inherit, with the defining class."""
    for kind, transport in ASYNCIOS.items():
        for name in dir(transport):
            home = next(each for each in transport.__mro__ if name in vars(each))
            if not name.startswith("_") and home is not transport and callable(getattr(transport, name)):
                yield pytest.param(kind, name, home, id=f"{kind}-{name}")


CASES = list(inherited())
ARGUMENTS = {"set_protocol": 1, "get_extra_info": 1, "write": 1, "writelines": 1}


@pytest.mark.parametrize(("kind", "name", "home"), CASES)
def test_a_method_that_asyncios_transport_inherits_can_be_patched(run, monkeypatch, kind, name, home):
    async def main():
        transport, end = await MAKERS[kind]()
        calls = []

        def replacement(self, *args, **options):
            calls.append((self, args, options))
            return "patched"

        arguments = ["an argument"] * ARGUMENTS.get(name, 0)
        with monkeypatch.context() as patch:
            patch.setattr(home, name, replacement)
            assert getattr(transport, name)(*arguments) == "patched"
            assert calls == [(transport, tuple(arguments), {})]
        if not arguments and name != "abort":
            try:
                assert getattr(transport, name)() != "patched"
            except NotImplementedError:
                pass
        assert len(calls) == 1
        await end()

    run(main())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("home", [asyncio.BaseTransport, None], ids=["its home", "the class itself"])
def test_get_extra_info_can_be_a_mock(run, kind, home):
    async def main():
        transport, end = await MAKERS[kind]()
        kept = transport.get_extra_info("sockname")
        where = home or ASYNCIOS[kind]
        with mock.patch.object(where, "get_extra_info", return_value="mocked") as mocked:
            assert transport.get_extra_info("peername", default=1) == "mocked"
            mocked.assert_called_once_with("peername", default=1)
        with mock.patch.object(where, "get_extra_info", autospec=True) as mocked:
            transport.get_extra_info("peername")
            mocked.assert_called_once_with(transport, "peername")
        with mock.patch.object(where, "get_extra_info", side_effect=KeyError("mocked")):
            with pytest.raises(KeyError, match="mocked"):
                transport.get_extra_info("peername")
        assert transport.get_extra_info("sockname") == kept
        await end()

    run(main())


@pytest.mark.parametrize("kind", MAKERS)
def test_a_patched_get_extra_info_can_call_the_original(run, monkeypatch, kind):
    original, names = asyncio.BaseTransport.get_extra_info, []

    def get_extra_info(self, name, default=None):
        names.append(name)
        return original(self, name, default)

    async def main():
        transport, end = await MAKERS[kind]()
        expected = [transport.get_extra_info(name, "default") for name in ("sockname", "pipe", "nothing")]
        with monkeypatch.context() as patch:
            patch.setattr(asyncio.BaseTransport, "get_extra_info", get_extra_info)
            found = [transport.get_extra_info(name, "default") for name in ("sockname", "pipe", "nothing")]
        assert found == expected and names == ["sockname", "pipe", "nothing"]
        await end()

    run(main())


def test_a_get_extra_info_with_other_code_is_called(run):
    def rewritten(self, name, default=None):
        return f"rewritten {name}"

    async def main():
        transport, end = await stream()
        function = asyncio.BaseTransport.get_extra_info
        code = function.__code__
        function.__code__ = rewritten.__code__
        try:
            assert transport.get_extra_info("peername") == "rewritten peername"
        finally:
            function.__code__ = code
        assert transport.get_extra_info("peername")[0] == "127.0.0.1"
        await end()

    run(main())


def test_streams_and_tls_show_what_a_patched_get_extra_info_says(run, tls, tls_engine, monkeypatch):
    async def main():
        near, far = await secure_pair(tls)
        with mock.patch.object(asyncio.BaseTransport, "get_extra_info", return_value="mocked") as mocked:
            assert near.transport.get_extra_info("peername") == "mocked"
            assert near.transport.get_extra_info("cipher") != "mocked"
            mocked.assert_called_once_with("peername", None)
        await finish(near, far)
        accepted = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(lambda *ends: accepted.set_result(ends), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        _, other = await accepted
        with mock.patch.object(asyncio.BaseTransport, "get_extra_info", return_value="mocked"):
            assert writer.get_extra_info("peername") == other.get_extra_info("socket") == "mocked"
        for end in (writer, other):
            end.close()
            await end.wait_closed()
        server.close()
        await server.wait_closed()

    run(main())
@pytest.mark.parametrize("home", [selector_events._SelectorTransport, selector_events._SelectorSocketTransport])
def test_a_transport_is_asyncios_own_where_its_private_class_is_patched(run, monkeypatch, home):
    """A patch that calls the original finds every private attribute that asyncio's code has."""
    name = "close" if home is selector_events._SelectorTransport else "write"
    original, calls = getattr(home, name), []

    def patched(self, *args):
        calls.append(args)
        original(self, *args)

    async def main():
        near, far = await pair()
        near.transport.write(b"through the patch")
        assert await far.received(17) == b"through the patch"
        near.transport.close()
        await near.lost
        await close(far)

    monkeypatch.setattr(home, name, patched)
    run(main())
    assert calls


@pytest.mark.parametrize("name", ["_read_ready", "_call_connection_lost"])
def test_datagram_transports_are_asyncios_own_where_their_private_class_is_patched(run, monkeypatch, name):
    kind = selector_events._SelectorDatagramTransport
    original, calls = getattr(kind, name), []

    def patched(self, *args):
        calls.append(args)
        original(self, *args)

    async def main():
        transport, end = await datagrams()
        transport.sendto(b"to itself", transport.get_extra_info("sockname"))
        await asyncio.sleep(0.01)
        await end()

    monkeypatch.setattr(kind, name, patched)
    run(main())
    assert calls


def pipe_functions(monkeypatch):
    """Replaces os.read and os.write, as fault injectors and eventlet do. Returns the descriptors of the calls."""
    used = {"read": [], "write": []}
    for name, calls in used.items():
        original = getattr(os, name)

        def replacement(fd, argument, original=original, calls=calls):
            calls.append(fd)
            return original(fd, argument)

        monkeypatch.setattr(os, name, replacement)
    return used


def test_pipes_read_and_write_with_replaced_functions_of_os(run, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = os.pipe()
        source, protocol = await loop.connect_read_pipe(Recording, open(near, "rb", 0))
        sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, open(far, "wb", 0))
        sink.write(b"data")
        assert await protocol.received(4) == b"data"
        sink.close()
        await protocol.lost
        source.close()
        return near, far

    used = pipe_functions(monkeypatch)
    near, far = run(main())
    assert near in used["read"] and far in used["write"]


def test_a_pipe_sees_the_error_of_a_replaced_os_read(run, monkeypatch, asyncio_log):
    original, failing = os.read, []

    def read(fd, size):
        if fd in failing:
            raise OSError(28, "injected")
        return original(fd, size)

    async def main():
        near, far = os.pipe()
        failing.append(near)
        _, protocol = await asyncio.get_running_loop().connect_read_pipe(Recording, open(near, "rb", 0))
        os.write(far, b"data")
        error = await protocol.lost
        os.close(far)
        return error

    monkeypatch.setattr(os, "read", read)
    assert str(run(main())) == "[Errno 28] injected"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("SSLProtocol", "buffer_updated"),
        ("SSLProtocol", "_do_read"),
        ("SSLProtocol", "_write_appdata"),
        ("SSLProtocol", "connection_made"),
        ("_SSLProtocolTransport", "write"),
    ],
)
def test_a_replaced_method_of_asyncios_tls_protocol_is_called(run, tls, tls_engine, monkeypatch, kind, name):
    home = getattr(sslproto, kind, None)
    if home is None or name not in vars(home):
        pytest.skip(f"this Python has no {kind}.{name}")
    original, calls = getattr(home, name), []

    def replacement(self, *args):
        calls.append(args)
        return original(self, *args)

    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        await finish(near, far)

    monkeypatch.setattr(home, name, replacement)
    run(main())
    assert calls


def test_a_replaced_class_of_tls_protocols_is_used(run, tls, tls_engine, monkeypatch):
    made = []

    class Replacement(sslproto.SSLProtocol):
        def __init__(self, *args, **options):
            made.append(self)
            super().__init__(*args, **options)

    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        await finish(near, far)

    monkeypatch.setattr(sslproto, "SSLProtocol", Replacement)
    run(main())
    assert len(made) == 2


def test_log_lines_go_to_the_logger_of_the_module_that_logs_them_in_asyncio(run, monkeypatch):
    lines = {}
    for module in (selector_events, unix_events):
        logger = logging.Logger(module.__name__, logging.DEBUG)
        logger.handle = lambda record, module=module: lines.setdefault(record.msg, set()).add(module)
        monkeypatch.setattr(module, "logger", logger)

    async def main():
        stream_transport, end_stream = await stream()
        near, far = os.pipe()
        pipe_transport, reading = await asyncio.get_running_loop().connect_read_pipe(Recording, open(near, "rb", 0))
        for each in (stream_transport, pipe_transport):
            each.pause_reading()
            each.resume_reading()
        stream_transport.abort()
        for _ in range(10):
            stream_transport.write(b"to nobody")
        await end_stream()
        pipe_transport.close()
        await reading.lost
        os.close(far)

    run(main(), debug=True)
    assert lines["%r pauses reading"] == lines["%r resumes reading"] == {selector_events, unix_events}
    assert lines["socket.send() raised exception."] == {selector_events}


class Pieces(asyncio.Protocol, asyncio.DatagramProtocol):
    """Keeps the sizes of what it receives."""

    def __init__(self):
        self.sizes = []
        self.enough = asyncio.get_running_loop().create_future()

    def data_received(self, data):
        self.sizes.append(len(data))
        if sum(self.sizes) == 100:
            self.enough.set_result(self.sizes)

    def datagram_received(self, data, addr):
        self.data_received(data)


async def sizes_received(kind, set_size):
    """The sizes of the reads of 100 bytes that have arrived already, or of four datagrams of 50 bytes."""
    loop = asyncio.get_running_loop()
    if kind == "datagram":
        transport, protocol = await loop.create_datagram_endpoint(Pieces, local_addr=("127.0.0.1", 0))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            set_size(transport)
            for _ in range(4):
                sender.sendto(bytes(50), transport.get_extra_info("sockname"))
    else:
        near, far = socket.socketpair()
        with far:
            near.setblocking(False)
            if kind == "stream":
                transport, protocol = await loop.create_connection(Pieces, sock=near)
            else:
                transport, protocol = await loop.connect_read_pipe(Pieces, near)
            set_size(transport)
            far.sendall(bytes(100))
    sizes = await protocol.enough
    transport.close()
    await asyncio.sleep(0)
    return sizes


SIZES = {"stream": [30, 30, 30, 10], "datagram": [25, 25, 25, 25], "read pipe": [30, 30, 30, 10]}


@pytest.mark.parametrize("kind", SIZES)
def test_max_size_of_a_transport_bounds_its_reads(run, kind):
    def set_size(transport):
        assert transport.max_size == type(transport).max_size == 256 * 1024
        transport.max_size = SIZES[kind][0]

    assert run(sizes_received(kind, set_size)) == SIZES[kind]


@pytest.mark.parametrize("kind", SIZES)
def test_max_size_of_asyncios_class_bounds_the_reads_of_new_transports(run, monkeypatch, kind):
    home = next(each for each in ASYNCIOS[kind].__mro__ if "max_size" in vars(each))
    monkeypatch.setattr(home, "max_size", SIZES[kind][0])
    assert run(sizes_received(kind, lambda transport: None)) == SIZES[kind]


def test_max_size_of_a_transport_bounds_what_a_stream_reader_gets_at_once(run):
    async def main():
        near, far = socket.socketpair()
        with far:
            reader, writer = await asyncio.open_connection(sock=near)
            writer.transport.max_size = 30
            far.sendall(bytes(100))
            first = await reader.read(1000)
            writer.close()
            await writer.wait_closed()
        return len(first)

    assert run(main()) == 30


@pytest.mark.parametrize("threshold", [0, 2, 7])
def test_the_threshold_of_asyncios_constants_decides_which_lost_writes_are_logged(
    run, asyncio_log, monkeypatch, threshold
):
    async def main():
        transport, end = await stream()
        transport.abort()
        for _ in range(10):
            transport.write(b"to nobody")
        await end()

    monkeypatch.setattr(constants, "LOG_THRESHOLD_FOR_CONNLOST_WRITES", threshold)
    run(main())
    # asyncio counts the end of the connection too.
    assert asyncio_log.messages.count("socket.send() raised exception.") == 10 - max(threshold - 1, 0)
