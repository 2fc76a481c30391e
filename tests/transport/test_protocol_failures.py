"""Protocols that raise: what is reported, what is still sent, and whether the loop runs on."""

import asyncio
import socket

import pytest

from tests.support.protocol import Buffered, Recording
from tests.support.sockets import tcp_pair
from tests.support.tls_pair import Viewed, finish, secure_pair


FAILING = ["connection_made", "data_received", "eof_received", "connection_lost", "get_buffer", "buffer_updated"]


@pytest.mark.parametrize("method", FAILING)
def test_an_exception_in_a_protocol_reaches_the_exception_handler_and_the_loop_runs_on(run, method):
    def explode(self, *args):
        raise ZeroDivisionError(method)

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        base = Buffered if method in ("get_buffer", "buffer_updated") else Recording
        failing = type("Failing", (base,), {method: explode})
        with tcp_pair() as (sock, peer):
            transport, protocol = await loop.create_connection(failing, sock=sock)
            peer.send(b"data")
            await asyncio.sleep(0.02)
            peer.close()
            while not problems:
                await asyncio.sleep(0.001)
            transport.close()
            await asyncio.sleep(0.01)
            exceptions = [context["exception"] for context in problems]
            assert [str(exception) for exception in exceptions] == [method]
            if method not in ("connection_made", "connection_lost"):
                assert problems[0]["transport"] is transport and problems[0]["protocol"] is protocol
                assert await protocol.lost is exceptions[0]
            assert transport.is_closing()

    run(main())


def test_an_object_that_is_not_a_protocol_is_reported_at_the_end_of_the_connection(run):
    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context))
        with tcp_pair() as (sock, _):
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
            transport.set_protocol(None)
            transport.close()
            await asyncio.sleep(0.01)
        assert len(problems) == 1
        assert problems[0]["message"].startswith("Exception in callback ")
        assert "connection_lost" in str(problems[0]["exception"])

    run(main())


def test_data_written_before_an_exception_is_sent(run):
    class Failing(Recording):
        def data_received(self, data):
            self.transport.write(b"answer")
            raise ZeroDivisionError

    async def main():
        loop, problems = asyncio.get_running_loop(), []
        loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
        with tcp_pair() as (sock, peer):
            _, protocol = await loop.create_connection(Failing, sock=sock)
            peer.send(b"question")
            assert problems == [await protocol.lost] and isinstance(problems[0], ZeroDivisionError)
            async with asyncio.timeout(5):
                assert await loop.sock_recv(peer, 100) == b"answer"
                assert await loop.sock_recv(peer, 100) == b""

    run(main())


def answering(method, error, base=None):
    """Returns a protocol that answers in one of its methods, and then raises."""

    def answer(self, *args):
        result = getattr(super(Answering, self), method)(*args)
        if not self.answered:
            self.answered = True
            self.transport.writelines([b"b", b"y"])
            self.transport.write(bytearray(b"e"))
            raise error
        return result

    base = base or (Buffered if method in ("get_buffer", "buffer_updated") else Recording)
    Answering = type("Answering", (base,), {method: answer, "answered": False})
    return Answering


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ZeroDivisionError])
@pytest.mark.parametrize("method", ["connection_made", "data_received", "eof_received", "get_buffer", "buffer_updated"])
def test_data_written_before_any_base_exception_is_sent(loop, method, error):
    loop.set_exception_handler(lambda loop, context: loop.stop())
    with tcp_pair() as (sock, peer):
        connecting = loop.create_task(loop.create_connection(answering(method, error), sock=sock))
        peer.send(b"question")
        if method == "eof_received":
            peer.shutdown(socket.SHUT_WR)
        try:
            loop.run_forever()
        except (KeyboardInterrupt, SystemExit) as left:
            assert type(left) is error
        assert peer.recv(100) == b"bye"
        # An end of file that was not handled is reported again.
        loop.set_exception_handler(lambda loop, context: None)
        transport, protocol = loop.run_until_complete(asyncio.wait_for(connecting, 5))
        transport.abort()
        loop.run_until_complete(asyncio.wait_for(protocol.lost, 5))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, ZeroDivisionError])
@pytest.mark.parametrize("method", ["data_received", "buffer_updated"])
def test_data_written_over_tls_before_an_exception_is_sent(loop, tls, tls_engine, method, error):
    answers = answering(method, error, Recording if method == "data_received" else Viewed)
    loop.set_exception_handler(lambda loop, context: None)
    near, far = loop.run_until_complete(secure_pair(tls, far=answers))
    near.transport.write(b"question")

    async def answered():
        while near.data != b"bye":
            await asyncio.sleep(0.001)

    waiting = loop.create_task(asyncio.wait_for(answered(), 5))
    left = None
    try:
        loop.run_until_complete(waiting)
    except (KeyboardInterrupt, SystemExit) as raised:
        left = type(raised)
        loop.run_until_complete(waiting)
    assert left == (error if error in (KeyboardInterrupt, SystemExit) else None)
    loop.run_until_complete(finish(near, far))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_datagram_sent_before_an_exception_leaves(loop, error):
    class Answering(asyncio.DatagramProtocol):
        def connection_made(self, transport):
            self.transport = transport

        def datagram_received(self, data, address):
            for part in (b"one", b"two", b"three"):
                self.transport.sendto(part, address)
            raise error

    with socket.socket(type=socket.SOCK_DGRAM) as peer:
        peer.settimeout(5)
        here = ("127.0.0.1", 0)
        transport, _ = loop.run_until_complete(loop.create_datagram_endpoint(Answering, local_addr=here))
        peer.sendto(b"question", transport.get_extra_info("sockname"))
        with pytest.raises(error):
            loop.run_forever()
        assert [peer.recv(100) for _ in range(3)] == [b"one", b"two", b"three"]
        transport.close()
        loop.run_until_complete(asyncio.sleep(0.01))


def test_data_written_around_a_nested_run_in_data_received_is_sent(loop, loop_factory):
    class Nesting(Recording):
        def data_received(self, data):
            self.transport.write(b"before")
            asyncio._set_running_loop(None)
            inner = loop_factory()
            inner.run_until_complete(asyncio.sleep(0.001))
            inner.close()
            asyncio._set_running_loop(loop)
            self.transport.write(b" after")
            raise SystemExit

    with tcp_pair() as (sock, peer):
        transport, protocol = loop.run_until_complete(loop.create_connection(Nesting, sock=sock))
        peer.send(b"x")
        with pytest.raises(SystemExit):
            loop.run_forever()
        assert peer.recv(100) == b"before after"
        transport.abort()
        loop.run_until_complete(asyncio.wait_for(protocol.lost, 5))


def test_keyboard_interrupt_in_a_protocol_leaves_the_loop(loop):
    class Interrupting(asyncio.Protocol):
        def data_received(self, data):
            raise KeyboardInterrupt

    with tcp_pair() as (sock, peer):
        transport, _ = loop.run_until_complete(loop.create_connection(Interrupting, sock=sock))
        peer.send(b"x")
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(asyncio.sleep(5))
        assert not loop.is_running() and not loop.is_closed()
        transport.abort()
        loop.run_until_complete(asyncio.sleep(0))


def test_a_connection_interrupted_in_connection_made_is_made_in_the_next_run(loop):
    class Interrupted(Recording):
        def connection_made(self, transport):
            super().connection_made(transport)
            raise KeyboardInterrupt

    with tcp_pair() as (sock, peer):
        peer.send(b"hello")
        connecting = loop.create_task(loop.create_connection(Interrupted, sock=sock))
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(connecting)
        transport, protocol = loop.run_until_complete(asyncio.wait_for(connecting, 5))
        assert protocol.transport is transport
        peer.close()
        assert loop.run_until_complete(asyncio.wait_for(protocol.lost, 5)) is None
        assert protocol.data == b"hello" and protocol.calls[-2:] == ["eof_received", "connection_lost"]


@pytest.mark.parametrize("end", ["with the data", "later"])
def test_a_connection_interrupted_in_data_received_goes_on_in_the_next_run(loop, end):
    class Interrupted(Recording):
        def data_received(self, data):
            super().data_received(data)
            if self.data == b"one":
                raise KeyboardInterrupt

    with tcp_pair() as (sock, peer):
        _, protocol = loop.run_until_complete(loop.create_connection(Interrupted, sock=sock))
        peer.send(b"one")
        if end == "with the data":
            peer.close()
        with pytest.raises(KeyboardInterrupt):
            loop.run_forever()
        assert protocol.calls == ["connection_made", "data_received"]
        if end == "later":
            peer.send(b"two")
            loop.run_until_complete(asyncio.sleep(0.01))
            assert protocol.data == b"onetwo"
            peer.close()
        assert loop.run_until_complete(asyncio.wait_for(protocol.lost, 5)) is None
        assert protocol.calls == ["connection_made", "data_received", "eof_received", "connection_lost"]
