"""The sock_* methods on plain sockets."""

import asyncio
import contextlib
import errno
import functools
import gc
import hashlib
import os
import socket
import sys
import weakref

import pytest

from tests.support.sockets import listener, socketpair, tcp_pair


def test_sock_recv_and_sock_sendall_complete_at_once_when_possible(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            await loop.sock_sendall(near, b"hello")
            assert await loop.sock_recv(far, 100) == b"hello"

    run(main())


@pytest.mark.parametrize("method", ["sock_recv", "sock_recv_into", "sock_recvfrom", "sock_accept", "sock_sendall"])
def test_remove_reader_takes_the_wait_of_a_socket_call_away(run, method):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far), listener() as accepting:
            accepting.setblocking(False)
            sock = accepting if method == "sock_accept" else near
            data = {"sock_recv": 10, "sock_recvfrom": 10, "sock_recv_into": bytearray(10), "sock_sendall": bytes(10**7)}
            arguments = [data[method]] if method in data else []
            call = asyncio.ensure_future(getattr(loop, method)(sock, *arguments))
            writes = method == "sock_sendall"
            remove, other = [loop.remove_reader, loop.remove_writer][:: -1 if writes else 1]
            await asyncio.sleep(0.01)
            assert (other(sock), remove(sock), remove(sock.fileno())) == (False, True, False)
            with socket.socket() as client:
                client.connect(accepting.getsockname())
                with contextlib.suppress(BlockingIOError):
                    far.send(b"unseen")
                    while writes:
                        far.recv(1 << 20)
                await asyncio.sleep(0.01)
                assert not call.done()
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
            if not writes and sock is near:
                assert await loop.sock_recv(near, 10) == b"unseen"

    run(main())


def test_sock_recv_waits_for_data(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            loop.call_later(0.01, far.send, b"later")
            assert await loop.sock_recv(near, 100) == b"later"
            buffer = bytearray(10)
            loop.call_later(0.01, far.send, b"into")
            assert await loop.sock_recv_into(near, memoryview(buffer)[2:]) == 4
            assert buffer == b"\0\0into\0\0\0\0"
            loop.call_later(0.01, far.close)
            assert await loop.sock_recv(near, 100) == b""

    run(main())


def test_sock_accept_and_sock_connect_work_together(run):
    async def main():
        loop = asyncio.get_running_loop()
        with listener() as server, socket.socket() as client:
            client.setblocking(False)
            accepting = asyncio.create_task(loop.sock_accept(server))
            await asyncio.sleep(0.01)
            assert await loop.sock_connect(client, server.getsockname()) is None
            accepted, address = await accepting
            with accepted:
                assert isinstance(accepted, socket.socket) and accepted.gettimeout() == 0
                assert address == client.getsockname()
                await loop.sock_sendall(accepted, b"welcome")
                assert await loop.sock_recv(client, 100) == b"welcome"

    run(main())


def test_a_refused_connection_is_an_error(run):
    async def main():
        loop = asyncio.get_running_loop()
        with listener() as server:
            address = server.getsockname()
        with socket.socket() as client:
            client.setblocking(False)
            with pytest.raises(ConnectionRefusedError):
                await loop.sock_connect(client, address)

    run(main())


@pytest.mark.parametrize("pairs", [socketpair, tcp_pair])
def test_a_large_transfer_arrives_whole(run, pairs):
    payload = os.urandom(1 << 20) * 16

    async def main():
        loop = asyncio.get_running_loop()
        with pairs() as (near, far):

            async def receive():
                digest, size = hashlib.sha256(), 0
                while size < len(payload):
                    data = await loop.sock_recv(far, 100_000)
                    digest.update(data)
                    size += len(data)
                return digest.digest()

            _, digest = await asyncio.gather(loop.sock_sendall(near, payload), receive())
            assert digest == hashlib.sha256(payload).digest()

    run(main())


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_buffer_can_be_sent(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            await loop.sock_sendall(near, kind(b"data"))
            assert await loop.sock_recv(far, 10) == b"data"
            await loop.sock_sendall(near, kind(b""))

    run(main())


def test_one_socket_receives_and_sends_at_the_same_time(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):

            async def echo():
                while data := await loop.sock_recv(far, 65536):
                    await loop.sock_sendall(far, data)

            async def receive():
                received = bytearray()
                while len(received) < 4_000_000:
                    received += await loop.sock_recv(near, 65536)
                return received

            echoing = asyncio.create_task(echo())
            payload = os.urandom(4_000_000)
            _, received = await asyncio.gather(loop.sock_sendall(near, payload), receive())
            assert received == payload
            near.shutdown(socket.SHUT_WR)
            await echoing

    run(main())


def test_a_cancelled_receive_takes_no_data(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            for _ in range(20):
                receiving = asyncio.create_task(loop.sock_recv(near, 100))
                await asyncio.sleep(0)
                receiving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await receiving
                far.send(b"kept")
                assert await loop.sock_recv(near, 100) == b"kept"
            assert loop.remove_reader(near) is False

    run(main())


def test_cancelling_send_connect_and_accept_leaves_nothing_registered(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far), listener() as server:
            for operation, sock in ((loop.sock_sendall(near, bytes(1 << 24)), near), (loop.sock_accept(server), server)):
                task = asyncio.create_task(operation)
                await asyncio.sleep(0.001)
                assert not task.done()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert loop.remove_reader(sock) is False and loop.remove_writer(sock) is False

    run(main())


@pytest.mark.native
@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_cancelled_accept_loses_no_connection(run, turns):
    """asyncio accepts when the listener is ready. Some versions lose the connection if the task is cancelled at that
    moment.
    """

    async def main():
        loop = asyncio.get_running_loop()
        with listener() as listening:
            accepting = asyncio.create_task(loop.sock_accept(listening))
            await asyncio.sleep(0.005)
            with socket.create_connection(listening.getsockname()) as client:
                cancel = accepting.cancel
                for _ in range(turns):
                    cancel = functools.partial(loop.call_soon, cancel)
                cancel()
                try:
                    accepted, _ = await accepting
                except asyncio.CancelledError:
                    accepted, _ = await asyncio.wait_for(loop.sock_accept(listening), 5)
                with accepted:
                    assert accepted.getpeername() == client.getsockname()

    run(main())


def test_a_socket_that_reuses_a_closed_ones_number_works(run):
    """A pending receive on a closed socket must not take data of the next socket with the same descriptor."""

    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(30):
            near, far = socket.socketpair()
            near.setblocking(False)
            receiving = asyncio.create_task(loop.sock_recv(near, 100))
            await asyncio.sleep(0)
            receiving.cancel()
            number = near.fileno()
            near.close()
            far.close()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            with socketpair() as (one, other):
                assert number in (one.fileno(), other.fileno())
                mine, its = (one, other) if one.fileno() == number else (other, one)
                loop.call_later(0.0001, its.send, b"fresh")
                async with asyncio.timeout(5):
                    assert await loop.sock_recv(mine, 100) == b"fresh"

    run(main())


def test_a_receive_whose_socket_was_closed_takes_no_data_of_the_next_one(run):
    """It is not cancelled, and the loop watches another connection with the same descriptor."""

    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        receiving = asyncio.create_task(loop.sock_recv(near, 100))
        await asyncio.sleep(0.001)
        number = near.fileno()
        near.close()
        far.close()
        with socketpair() as (one, other):
            assert number in (one.fileno(), other.fileno())
            mine, its = (one, other) if one.fileno() == number else (other, one)
            sending = asyncio.create_task(loop.sock_sendall(mine, bytes(1 << 20)))
            await asyncio.sleep(0.001)
            its.send(b"secret")
            await asyncio.sleep(0.01)
            receiving.cancel()
            sending.cancel()
            outcome, _ = await asyncio.gather(receiving, sending, return_exceptions=True)
            assert isinstance(outcome, (asyncio.CancelledError, OSError))
            assert mine.recv(100) == b"secret"

    run(main())


def test_a_receive_that_waits_when_its_loop_closes_is_collected(loop_factory):
    watched = []
    for _ in range(5):
        loop = loop_factory()
        near, far = socket.socketpair()
        near.setblocking(False)

        async def receive(loop=loop, near=near):
            await loop.sock_recv(near, 10)

        task = loop.create_task(receive())
        task._log_destroy_pending = False
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        near.close()
        far.close()
        watched += [weakref.ref(loop), weakref.ref(near), weakref.ref(task)]
        del loop, near, far, task, receive
    gc.collect()
    gc.collect()
    assert [reference() for reference in watched] == [None] * 15


def test_datagrams_are_received_from_and_sent_to(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as other:
            for sock in (one, other):
                sock.setblocking(False)
                sock.bind(("127.0.0.1", 0))
            receiving = asyncio.create_task(loop.sock_recvfrom(other, 100))
            await asyncio.sleep(0)
            assert await loop.sock_sendto(one, b"datagram", other.getsockname()) == 8
            assert await receiving == (b"datagram", one.getsockname())
            buffer = bytearray(20)
            await loop.sock_sendto(one, b"into", other.getsockname())
            assert await loop.sock_recvfrom_into(other, buffer) == (4, one.getsockname())
            assert buffer[:4] == b"into"

    run(main())


@pytest.mark.parametrize("connected", [True, False], ids=["connected", "unconnected"])
def test_sock_sendto_waits_until_a_full_receiver_has_room(run, tmp_path, connected):
    async def main():
        loop, address = asyncio.get_running_loop(), str(tmp_path / "socket")
        unix = functools.partial(socket.socket, socket.AF_UNIX, socket.SOCK_DGRAM)
        with unix() as sender, unix() as receiver:
            receiver.bind(address)
            for sock in (sender, receiver):
                sock.setblocking(False)
            if connected:
                sender.connect(address)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sender.sendto(b"%d" % sent, address)
                    sent += 1
            sending = asyncio.create_task(loop.sock_sendto(sender, b"last", address))
            for _ in range(10):
                await asyncio.sleep(0)
            assert not sending.done()
            assert [receiver.recv(10) for _ in range(sent)] == [b"%d" % number for number in range(sent)]
            assert await sending == 4
            assert receiver.recv(10) == b"last"

    run(main())


@pytest.mark.parametrize("size", [0, None, False, ()], ids=repr)
def test_a_false_size_means_all_of_the_buffer(run, size):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair(socket.SOCK_DGRAM) as (near, far):
            far.send(b"datagram")
            assert (await loop.sock_recvfrom_into(near, bytearray(5), size))[0] == 5

    run(main())


def test_debug_mode_refuses_a_blocking_socket(run):
    async def main():
        loop = asyncio.get_running_loop()
        one, other = socket.socketpair()
        with one, other:
            one.setblocking(True)
            for operation in (
                loop.sock_recv(one, 1),
                loop.sock_recv_into(one, bytearray(1)),
                loop.sock_sendall(one, b"x"),
                loop.sock_accept(one),
                loop.sock_connect(one, "address"),
            ):
                with pytest.raises(ValueError, match="the socket must be non-blocking"):
                    await operation

    run(main(), debug=True)


def test_errors_of_the_socket_are_raised_where_it_is_awaited(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            far.close()
            with pytest.raises(BrokenPipeError):
                await loop.sock_sendall(near, b"x")
        with pytest.raises(OSError):
            await loop.sock_recv(near, 1)
        with socket.socket() as unconnected:
            unconnected.setblocking(False)
            with pytest.raises(OSError, match="not connected"):
                await loop.sock_recv(unconnected, 1)

    run(main())


def test_sock_recv_of_zero_bytes_returns_at_once(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            assert await asyncio.wait_for(loop.sock_recv(near, 0), 5) == b""
            assert await asyncio.wait_for(loop.sock_recv_into(near, bytearray()), 5) == 0
            far.send(b"all of it")
            assert await loop.sock_recv(near, 0) == b"" and await loop.sock_recv_into(near, bytearray()) == 0
            assert await loop.sock_recv(near, 100) == b"all of it"

    run(main())


def test_an_empty_datagram_is_sent(run):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair(type=socket.SOCK_DGRAM)
        with near, far:
            near.setblocking(False)
            far.setblocking(False)
            await loop.sock_sendall(near, b"")
            assert far.recv(10) == b""

    run(main())


def test_sending_nothing_finds_the_error_of_the_socket(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket() as unconnected:
            unconnected.setblocking(False)
            with pytest.raises(BrokenPipeError):
                await loop.sock_sendall(unconnected, b"")

    run(main())


def test_sock_sendall_of_nothing_returns_at_once_on_a_full_socket(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            with pytest.raises(BlockingIOError):
                while near.send(bytes(65536)):
                    pass
            await asyncio.wait_for(loop.sock_sendall(near, b""), 5)

    run(main())


@pytest.mark.parametrize(("method", "rest"), [("recv_into", ()), ("recvfrom_into", (5,))])
@pytest.mark.parametrize("target", [b"bytes", None, 3, memoryview(bytearray(10))[::2]])
def test_sock_recv_into_refuses_a_read_only_buffer_with_the_sockets_message(run, method, rest, target):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, _):
            with pytest.raises(TypeError) as expected:
                getattr(near, method)(target, *rest)
            with pytest.raises(TypeError) as refused:
                await getattr(loop, f"sock_{method}")(near, target, *rest)
            assert str(refused.value) == str(expected.value)

    run(main())


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("recv", [1 << 70]), ("recvfrom", [1 << 70]), ("recvfrom_into", [bytearray(1), 1 << 70]), ("recvfrom_into", [1, 1.5])],
)
def test_a_wrong_size_is_refused_with_the_sockets_message(run, method, arguments):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, _):
            with pytest.raises((OverflowError, TypeError)) as expected:
                getattr(near, method)(*arguments)
            with pytest.raises(expected.type) as refused:
                await getattr(loop, f"sock_{method}")(near, *arguments)
            assert str(refused.value) == str(expected.value)

    run(main())


@pytest.mark.parametrize(
    ("method", "arguments", "outcome"),
    [
        ("sock_recv", [0], b""),
        ("sock_recv", [1], OSError),
        ("sock_recv_into", [bytearray()], 0),
        ("sock_recv_into", [b"x"], TypeError),
        ("sock_recvfrom_into", [b"x"], TypeError),
        ("sock_sendall", [b""], OSError),
        ("sock_sendto", [b"", ()], TypeError),
        ("sock_accept", [], OSError),
    ],
)
def test_the_arguments_for_a_closed_socket_are_checked_first(run, method, arguments, outcome):
    async def main():
        closed = socket.socket(socket.AF_UNIX)
        closed.close()
        awaitable = getattr(asyncio.get_running_loop(), method)(closed, *arguments)
        if isinstance(outcome, type):
            with pytest.raises(outcome) as refused:
                await awaitable
            assert outcome is not OSError or refused.value.errno == errno.EBADF
        else:
            assert await awaitable == outcome

    run(main())


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_socket_that_does_not_listen_is_not_waited_for_in_accept(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        pair = socket.socketpair(type=kind)
        with pair[0] as connected, pair[1], socket.socket(type=kind) as fresh:
            for sock in (connected, fresh):
                sock.setblocking(False)
                with pytest.raises(OSError) as wrong:
                    await asyncio.wait_for(loop.sock_accept(sock), 5)
                assert wrong.value.errno in (errno.EINVAL, errno.EOPNOTSUPP)

    run(main())


def test_a_reset_is_raised_in_a_waiting_receive(run):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            receiving = asyncio.create_task(loop.sock_recv(near, 10))
            await asyncio.sleep(0)
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            far.close()
            with pytest.raises(ConnectionResetError):
                await receiving

    run(main())


def test_tls_sockets_are_refused(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with far, near:
            wrapped = tls.client().wrap_socket(near, do_handshake_on_connect=False, server_hostname="localhost")
            with wrapped, pytest.raises(TypeError, match="Socket cannot be of type SSLSocket"):
                await loop.sock_recv(wrapped, 10)

    run(main())


def test_a_transports_socket_is_refused(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, _):
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            with pytest.raises(RuntimeError, match="is used by transport"):
                await loop.sock_recv(near, 10)
            transport.abort()
            await asyncio.sleep(0)

    run(main())


def test_connect_accepted_socket_makes_a_transport(run):
    async def main():
        loop = asyncio.get_running_loop()
        with tcp_pair() as (near, far):
            transport, protocol = await loop.connect_accepted_socket(asyncio.Protocol, near)
            assert transport.get_extra_info("peername") == far.getsockname()
            transport.write(b"hello")
            assert await loop.sock_recv(far, 10) == b"hello"
            transport.close()
            await asyncio.sleep(0)

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors under /proc")
def test_a_thousand_short_connections_leave_no_descriptor(run):
    async def main():
        loop = asyncio.get_running_loop()
        with listener() as server:

            async def serve():
                for _ in range(1000):
                    accepted, _ = await loop.sock_accept(server)
                    with accepted:
                        await loop.sock_sendall(accepted, await loop.sock_recv(accepted, 10))

            serving = asyncio.create_task(serve())
            for number in range(1000):
                with socket.socket() as client:
                    client.setblocking(False)
                    await loop.sock_connect(client, server.getsockname())
                    await loop.sock_sendall(client, str(number).encode())
                    assert await loop.sock_recv(client, 10) == str(number).encode()
            await serving

    run(main())


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("call", "arguments", "missing"),
    [
        ("sock_recv", (10,), "recv"),
        ("sock_recv_into", (bytearray(10),), "recv_into"),
        ("sock_recvfrom", (10,), "recvfrom"),
        ("sock_sendall", (b"data",), "send"),
        ("sock_sendall", (b"",), "send"),
        ("sock_sendto", (b"data", ("127.0.0.1", 9)), "sendto"),
        ("sock_accept", (), "accept"),
        ("sock_connect", (("127.0.0.1", 9),), "connect"),
    ],
)
def test_the_socket_that_a_transport_shows_cannot_be_used(run, call, arguments, missing, debug):
    async def main():
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
            shown = transport.get_extra_info("socket")
            with pytest.raises(AttributeError, match=f"^'TransportSocket' object has no attribute '{missing}'$"):
                await getattr(loop, call)(shown, *arguments)
            with pytest.raises(RuntimeError, match="^File descriptor .* is used by transport <"):
                loop.add_reader(shown, print)
            transport.close()
            await asyncio.sleep(0)

    run(main(), debug=debug)


def test_a_call_that_is_never_awaited_does_nothing_and_warns(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            far.send(b"data")
            calls = {
                "sock_recv": (near, 10),
                "sock_recv_into": (near, bytearray(10)),
                "sock_sendall": (near, b"not sent"),
                "sock_accept": (near,),
                "sock_recvfrom": (near, 10),
                "sock_recvfrom_into": (near, bytearray(10)),
                "sock_sendto": (near, b"not sent", ""),
            }
            for name, arguments in calls.items():
                with pytest.warns(RuntimeWarning, match=rf"^coroutine '\w+\.{name}' was never awaited$"):
                    getattr(loop, name)(*arguments)
                # This does not hold for a call that was closed, awaited or given to a task.
                getattr(loop, name)(*arguments).close()
            task = asyncio.ensure_future(loop.sock_recv(near, 10))
            assert ".sock_recv()" in repr(task)
            assert await task == b"data"
            with pytest.raises(BlockingIOError):
                far.recv(1)

    run(main())


@pytest.mark.filterwarnings("ignore:.*signature of throw:DeprecationWarning")
def test_throw_keeps_the_traceback_that_it_is_given(loop):
    try:
        raise LookupError
    except LookupError as error:
        given = error.__traceback__
    with socketpair() as (near, _):
        call = loop.sock_recv(near, 10)
        with pytest.raises(ValueError, match="thrown") as raised:
            call.throw(ValueError, "thrown", given)
    chain = [raised.value.__traceback__]
    while chain[-1] is not None:
        chain.append(chain[-1].tb_next)
    assert given in chain
