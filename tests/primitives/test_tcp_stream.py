"""`wakeloop.TcpStream`: the runtime reads, frames and sends; wakeloop's loop or asyncio's awaits."""

import asyncio
import errno
import gc
import os
import socket
import threading

import pytest

from tests.support import script
from tests.support.tcp_stream import connected

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_write_eof_comes_after_the_writes_under_way(run):
    async def main():
        async with connected() as (stream, peer):
            data = os.urandom(20_000_000)
            writing = asyncio.ensure_future(stream.write_all(data))
            await asyncio.sleep(0.01)
            assert not writing.done()
            stream.write_eof()
            stream.write_eof()
            with pytest.raises(RuntimeError, match="after write_eof"):
                await stream.write_all(b"more")
            received = bytearray()

            def receive():
                while part := peer.recv(1_000_000):
                    received.extend(part)

            await wakeloop.spawn_blocking(receive)
            await writing
            assert received == data
            peer.sendall(b"answer")
            assert await stream.readexactly(6) == b"answer"

    run(main())


def test_close_is_a_plain_call_and_wait_closed_waits_for_it(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        stream = await wakeloop.TcpStream.connect("127.0.0.1", listener.port)
        server = await wakeloop.start_echo_server("127.0.0.1", 0)
        for closing in (stream, listener, server, await wakeloop.UdpSocket.bind("127.0.0.1", 0)):
            waiting = asyncio.ensure_future(closing.wait_closed())
            await asyncio.sleep(0.001)
            assert not waiting.done()
            assert closing.close() is None and closing.close() is None
            assert await waiting is None and await closing.wait_closed() is None
        async with await wakeloop.start_echo_server("127.0.0.1", 0) as server:
            assert server.is_serving()
            async with await wakeloop.TcpStream.connect("127.0.0.1", server.port) as stream:
                assert not stream.is_closing()
            assert stream.is_closing()
        assert not server.is_serving() and server.stats()["open"] == 0

    run(main())


def test_everything_bytes_like_can_be_sent(run):
    async def main():
        async with connected() as (stream, peer):
            await stream.write_all(b"bytes")
            await stream.write_all(bytearray(b"bytearray"))
            await stream.write_all(memoryview(b"memoryview"))
            await stream.write_all(b"")
            await stream.write_all(b"one", bytearray(b"two"), memoryview(b"three"))
            await stream.write_all()
            stream.write_eof()
            received = b""
            while data := peer.recv(1000):
                received += data
            assert received == b"bytesbytearraymemoryviewonetwothree"
            for bad in ("text", 1, None, ["text"]):
                with pytest.raises(TypeError):
                    stream.write_all(bad)
                with pytest.raises(TypeError):
                    stream.write_all(b"bytes", bad)
            with pytest.raises(TypeError):
                stream.write_all(data=b"bytes")

    run(main())


def test_concurrent_writes_are_not_interleaved(run):
    async def main():
        async with connected() as (stream, peer):
            parts = [bytes([number]) * 700_000 for number in range(10)]
            received = bytearray()

            def receive():
                while data := peer.recv(1_000_000):
                    received.extend(data)

            thread = threading.Thread(target=receive)
            thread.start()
            await asyncio.gather(*(stream.write_all(part) for part in parts))
            stream.write_eof()
            await asyncio.to_thread(thread.join)
            assert received == b"".join(parts)

    run(main())


def test_the_next_write_proceeds_after_a_cancelled_one(run):
    async def main():
        async with connected() as (stream, peer):
            blocked = asyncio.ensure_future(stream.write_all(bytes(50_000_000)))
            queued = asyncio.ensure_future(stream.write_all(b"queued"))
            await asyncio.sleep(0.01)
            assert not blocked.done() and not queued.done()
            blocked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await blocked
            received = bytearray()

            def receive():
                while not received.endswith(b"queued"):
                    received.extend(peer.recv(1_000_000))

            receiving = asyncio.ensure_future(wakeloop.spawn_blocking(receive))
            await queued
            await receiving

    run(main())


def test_a_peer_that_resets_the_connection_is_an_error_after_what_it_had_sent(run):
    async def main():
        async with connected() as (stream, peer):
            peer.sendall(b"last words\n")
            assert await stream.readline() == b"last words\n"
            waiting = asyncio.ensure_future(stream.read(1))
            await asyncio.sleep(0.001)
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            for read in (waiting, stream.read(1), stream.readline()):
                with pytest.raises(ConnectionResetError) as raised:
                    await read
                assert raised.value.errno == errno.ECONNRESET
            with pytest.raises((BrokenPipeError, ConnectionResetError)):
                for _ in range(100):
                    await stream.write_all(bytes(100_000))

    run(main())


def test_a_refused_connection_raises_what_asyncio_raises(run):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))

        async def main():
            with pytest.raises(ConnectionRefusedError) as raised:
                await wakeloop.TcpStream.connect("127.0.0.1", sock.getsockname()[1])
            assert raised.value.errno == errno.ECONNREFUSED

        run(main())


def test_a_connect_that_takes_too_long_times_out(run):
    async def main():
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            sock.listen(0)
            port = sock.getsockname()[1]
            waiting = []
            with pytest.raises(TimeoutError):
                for _ in range(10):  # the queue of the listener is full after a few
                    waiting.append(await wakeloop.TcpStream.connect("127.0.0.1", port, timeout=0.05))
            for stream in waiting:
                stream.close()

    run(main())


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": -1}, {"limit": None}, {"timeout": "1"}, {"port": -1}, {"x": 1}])
def test_wrong_arguments_are_refused_at_once(run, bad):
    async def main():
        with pytest.raises((TypeError, ValueError, OverflowError)):
            wakeloop.TcpStream.connect(**{"host": "127.0.0.1", "port": 1} | bad)
        async with connected() as (stream, _):
            for call in [
                lambda: stream.read("1"),
                lambda: stream.readexactly(-1),
                lambda: stream.readexactly(),
                lambda: stream.readuntil(b""),
                lambda: stream.readuntil("text"),
                lambda: stream.read_frame(-1),
                lambda: stream.readline(1),
                lambda: stream.read(n=1, m=2),
            ]:
                with pytest.raises((TypeError, ValueError)):
                    call()

    run(main())


@pytest.mark.parametrize("port", [-1, 65_536, 99_999, 10**30])
def test_a_port_out_of_range_raises_what_asyncio_raises(run, port):
    async def main():
        with pytest.raises(OverflowError) as theirs:
            with socket.socket() as sock:
                sock.connect(("127.0.0.1", 65_536))
        with pytest.raises(OverflowError) as ours:
            wakeloop.TcpStream.connect("127.0.0.1", port)
        assert str(ours.value) == str(theirs.value) == "connect(): port must be 0-65535."

    run(main())


@pytest.mark.parametrize("limit", [0, -1, -(10**30)])
def test_a_limit_below_one_raises_what_asyncio_raises(run, limit):
    async def main():
        with pytest.raises(ValueError) as theirs:
            asyncio.StreamReader(limit)
        with pytest.raises(ValueError) as ours:
            wakeloop.TcpStream.connect("127.0.0.1", 1, limit=limit)
        assert str(ours.value) == str(theirs.value)

    run(main())


def test_a_closed_stream_refuses_everything_but_close(run):
    async def main():
        async with connected() as (stream, peer):
            waiting = asyncio.ensure_future(stream.readline())
            await asyncio.sleep(0.001)
            assert not stream.is_closing() and stream.fileno() >= 0 and "closed" not in repr(stream)
            stream.close()
            stream.close()
            with pytest.raises(ConnectionAbortedError, match="the stream was closed meanwhile"):
                await waiting
            assert stream.is_closing() and stream.fileno() == -1 and "closed" in repr(stream)
            for call in (stream.read(1), stream.readline(), stream.write_all(b"x")):
                with pytest.raises(OSError, match="the stream is closed") as raised:
                    await call
                assert raised.value.errno == errno.EBADF
            stream.write_eof()
            with pytest.raises(OSError):
                async for _ in stream:
                    pass
            assert stream.get_extra_info("peername") == peer.getsockname()
            assert peer.recv(1) == b""

    run(main())


@pytest.mark.parametrize("ended", [False, True])
def test_writes_that_wait_when_the_stream_is_closed_say_so(run, ended):
    async def main():
        async with connected() as (stream, _peer):
            data = bytes(20_000_000)
            writes = [asyncio.ensure_future(write(data)) for write in (stream.write_all, stream.write_frame) * 2]
            await asyncio.sleep(0.001)
            if ended:
                stream.write_eof()
            stream.close()
            for write in writes:
                with pytest.raises(ConnectionAbortedError, match="the stream was closed meanwhile") as raised:
                    await write
                assert raised.value.__context__ is None

    run(main())


@pytest.mark.parametrize(
    "call",
    [
        lambda host: wakeloop.TcpStream.connect(host, 80),
        lambda host: wakeloop.TcpListener.bind(host, 0),
        lambda host: wakeloop.UdpSocket.bind(host, 0),
        lambda host: wakeloop.UdpSocket.connect(host, 80),
        lambda host: wakeloop.start_echo_server(host, 0),
    ],
    ids=["TcpStream", "TcpListener", "UdpSocket.bind", "UdpSocket.connect", "echo"],
)
def test_a_name_that_cannot_be_found_raises_what_asyncio_raises(run, call):
    async def main():
        for host in ("no-such-host.invalid", "bücher.invalid"):
            with pytest.raises(socket.gaierror) as expected:
                await asyncio.get_running_loop().getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            with pytest.raises(socket.gaierror) as raised:
                await call(host)
            assert raised.value.args == expected.value.args
        for host in ("a" * 64, "two..dots"):
            with pytest.raises(ValueError) as expected:
                await asyncio.get_running_loop().getaddrinfo(host, 80, type=socket.SOCK_STREAM)
            with pytest.raises(type(expected.value)):
                await call(host)
        with pytest.raises(ValueError):  # asyncio looks up what stands before it
            await call("zero\0byte")

    run(main())


def test_options_of_the_socket_are_reached_through_a_view_as_in_asyncio(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        stream = await wakeloop.TcpStream.connect("127.0.0.1", listener.port)
        accepted = await listener.accept()
        udp = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        for owner in (listener, stream, accepted, udp):
            sock = owner.get_extra_info("socket")
            assert isinstance(sock, asyncio.trsock.TransportSocket)
            assert sock.fileno() == owner.fileno() and sock.getsockname() == owner.get_extra_info("sockname")
            assert sock.family == socket.AF_INET and sock.gettimeout() == 0
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            assert owner.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            owner.close()
            assert sock.fileno() == -1 and owner.get_extra_info("socket").fileno() == -1
        assert stream.get_extra_info("peername") == listener.get_extra_info("sockname")
        unasked = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        unasked.close()
        assert unasked.get_extra_info("socket").type == socket.SOCK_DGRAM

    run(main())


def test_a_view_that_outlives_its_stream_closes_nothing(run):
    async def main():
        async with connected() as (stream, peer):
            view = stream.get_extra_info("socket")
            stream.close()
            async with connected() as (other, _):
                del view, stream
                gc.collect()
                peer.sendall(b"")
                assert other.get_extra_info("socket").getpeername() == other.get_extra_info("peername")

    run(main())


def test_native_types_have_names_of_their_own():
    names = {}
    todo = [object]
    while todo:
        for kind in type.__subclasses__(todo.pop()):
            todo.append(kind)
            # A class of somebody else's may have a descriptor of this name, or none.
            if str(getattr(kind, "__module__", "")).startswith("wakeloop"):
                names.setdefault(f"{kind.__module__}.{kind.__qualname__}", set()).add(kind)
    assert {name: kinds for name, kinds in names.items() if len(kinds) > 1} == {}


def test_get_extra_info_knows_both_addresses(run):
    async def main():
        async with connected() as (stream, peer):
            assert stream.get_extra_info("peername") == peer.getsockname()
            assert stream.get_extra_info("sockname") == peer.getpeername()
            assert stream.get_extra_info("nothing") is None and stream.get_extra_info("nothing", 1) == 1

    run(main())


def test_a_call_is_awaited_once(run):
    async def main():
        async with connected() as (stream, peer):
            peer.sendall(b"x\n")
            call = stream.readline()
            assert await call == b"x\n"
            with pytest.raises(RuntimeError, match="already awaited"):
                await call
            with pytest.warns(RuntimeWarning, match="never awaited"):
                stream.readline()
            peer.sendall(b"y\n")
            assert await asyncio.wait_for(stream.readline(), 5) == b"y\n"
            assert await asyncio.create_task(wait(stream.read(0))) == b""

    async def wait(awaitable):
        return await awaitable

    run(main())


def test_hundreds_of_streams_at_once(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)

        async def serve():
            async with asyncio.TaskGroup() as group:
                async for stream in listener:
                    group.create_task(shout(stream))

        async def shout(stream):
            async with stream:
                async for line in stream:
                    await stream.write_all(line.upper())

        async def client(number):
            async with await wakeloop.TcpStream.connect("127.0.0.1", listener.port) as stream:
                for turn in range(10):
                    await stream.write_all(b"client %d turn %d\n" % (number, turn))
                    assert await stream.readline() == b"CLIENT %d TURN %d\n" % (number, turn)

        serving = asyncio.create_task(serve())
        await asyncio.gather(*map(client, range(300)))
        listener.close()
        await serving

    run(main())


@pytest.mark.parametrize("cpus", [1, 2])
def test_readers_writers_and_cancels_under_few_cpus(loop_name, cpus):
    done = script.run_script(
        loop_name,
        f"""
        import os, random
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:{cpus}])
        import wakeloop
        async def shout(stream):
            async with stream:
                async for line in stream:
                    await stream.write_all(line.upper())
        async def serve(listener, group):
            async for stream in listener:
                group.create_task(shout(stream))
        async def client(port):
            async with await wakeloop.TcpStream.connect("127.0.0.1", port) as stream:
                for turn in range(100):
                    size = random.choice([1, 100, 5000])
                    await stream.write_all(b"x" * size + b"\\n")
                    waiting = asyncio.ensure_future(stream.readline())
                    if random.random() < 0.3:
                        await asyncio.sleep(0)
                        waiting.cancel()
                        try:
                            line = await waiting
                        except asyncio.CancelledError:
                            line = await stream.readline()
                    else:
                        line = await waiting
                    assert line == b"X" * size + b"\\n", line
        async def main():
            listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
            async with asyncio.TaskGroup() as group:
                group.create_task(serve(listener, group))
                await asyncio.gather(*(client(listener.port) for _ in range(30)))
                listener.close()
            print("done")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
    )
    assert (done.code, done.out, done.err) == (0, "done\n", "")
