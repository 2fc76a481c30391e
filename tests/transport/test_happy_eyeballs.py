"""create_connection to a name with several addresses: in sequence or racing, and the errors."""

import asyncio
import errno
import socket
import sys

import pytest

from tests.support.protocol import Recording, close

#: Addresses of the loopback network. Nobody listens on the second.
ALIVE, DEAD = "127.0.0.1", "127.0.0.2"


def entry(address, port):
    return (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, port))


def resolve_to(monkeypatch, loop, *addresses):
    """Make `several.test` resolve to these (host, port) pairs."""

    async def getaddrinfo(host, port, **options):
        return [entry(*address) for address in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo, raising=False)


class Listening:
    """A server on the working address. It counts its connections."""

    async def __aenter__(self):
        self.accepted = []

        def accept():
            self.accepted.append(Recording())
            return self.accepted[-1]

        self.server = await asyncio.get_running_loop().create_server(accept, ALIVE, 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error):
        self.server.close()
        for protocol in self.accepted:
            await protocol.connected
            await close(protocol)


def full_listener():
    """Returns a listening socket that takes no further connection: attempts hang."""
    listener = socket.create_server((ALIVE, 0), backlog=0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return listener, fillers


@pytest.mark.parametrize("options", [{}, {"happy_eyeballs_delay": 0.2}, {"interleave": 1}])
def test_the_next_address_is_tried_when_one_refuses(run, monkeypatch, options):
    async def main():
        loop = asyncio.get_running_loop()
        async with Listening() as listening:
            resolve_to(monkeypatch, loop, (DEAD, listening.port), (ALIVE, listening.port))
            _, protocol = await loop.create_connection(Recording, "several.test", 1, **options)
            assert protocol.transport.get_extra_info("peername") == (ALIVE, listening.port)
            await close(protocol)

    run(main())


def test_a_silent_address_delays_the_next_attempt_only_by_happy_eyeballs_delay(run, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        listener, fillers = full_listener()
        async with Listening() as listening:
            try:
                resolve_to(monkeypatch, loop, listener.getsockname(), (ALIVE, listening.port))
                racing = loop.create_connection(Recording, "several.test", 1, happy_eyeballs_delay=0.02)
                _, protocol = await asyncio.wait_for(racing, 10)
                assert protocol.transport.get_extra_info("peername") == (ALIVE, listening.port)
                await close(protocol)
            finally:
                for sock in (listener, *fillers):
                    sock.close()

    run(main())


def test_a_race_that_is_cancelled_leaves_no_socket(run, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        listener, fillers = full_listener()
        try:
            resolve_to(monkeypatch, loop, listener.getsockname(), listener.getsockname())
            racing = loop.create_connection(Recording, "several.test", 1, happy_eyeballs_delay=0.01)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(racing, 0.1)
        finally:
            for sock in (listener, *fillers):
                sock.close()

    run(main())


def test_if_all_addresses_fail_alike_that_error_is_raised(run, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        resolve_to(monkeypatch, loop, (DEAD, 1))
        for options in ({}, {"happy_eyeballs_delay": 0.01}):
            with pytest.raises(ConnectionRefusedError) as caught:
                await loop.create_connection(Recording, "several.test", 1, **options)
            assert caught.value.errno == errno.ECONNREFUSED
            assert "Connect call failed ('127.0.0.2', 1)" in str(caught.value)

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all_errors is new in 3.12")
@pytest.mark.parametrize("options", [{}, {"happy_eyeballs_delay": 0.01}])
def test_all_errors_raises_every_error_in_a_group(run, monkeypatch, options):
    async def main():
        loop = asyncio.get_running_loop()
        resolve_to(monkeypatch, loop, (DEAD, 1), (DEAD, 2))
        with pytest.raises(ExceptionGroup) as caught:
            await loop.create_connection(Recording, "several.test", 1, all_errors=True, **options)
        texts = [str(error) for error in caught.value.exceptions]
        assert len(texts) == 2 and "('127.0.0.2', 1)" in texts[0] and "('127.0.0.2', 2)" in texts[1]

    run(main())


def test_different_errors_are_combined_into_one_oserror(run, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        resolve_to(monkeypatch, loop, (DEAD, 1), (DEAD, 2))
        with pytest.raises(OSError, match="Multiple exceptions: .*Connect call failed.*Connect call failed"):
            await loop.create_connection(Recording, "several.test", 1)

    run(main())


def test_the_local_address_is_the_one_asked_for(run):
    async def main():
        loop = asyncio.get_running_loop()
        async with Listening() as listening:
            _, protocol = await loop.create_connection(Recording, ALIVE, listening.port, local_addr=("127.0.0.3", 0))
            assert protocol.transport.get_extra_info("sockname")[0] == "127.0.0.3"
            await close(protocol)

    run(main())
