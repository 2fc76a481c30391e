"""The context of a connection's callbacks: one for each connection, as in asyncio since Python 3.15."""

import asyncio
import contextvars
import socket
import sys

import pytest

variable = contextvars.ContextVar("variable", default="nobody's")


@pytest.fixture(autouse=True)
def has_connection_contexts(loop_name):
    if loop_name == "asyncio" and sys.version_info < (3, 15):
        pytest.skip("one context per connection is new in 3.15")


class Noting(asyncio.Protocol):
    """Adds to the variable in each callback, and notes what it has become."""

    def __init__(self):
        self.made = variable.get()
        self.seen = []
        self.lost = asyncio.get_running_loop().create_future()

    def note(self, callback):
        variable.set(f"{variable.get()} {callback}")
        self.seen.append(variable.get())

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        self.note("data")

    def eof_received(self):
        self.note("eof")

    def connection_lost(self, exc):
        self.note("lost")
        self.lost.set_result(None)


STEPS = ["server's made", "server's made data", "server's made data eof", "server's made data eof lost"]


@pytest.fixture(params=["plain", "tls"])
def options(request):
    if request.param == "plain":
        return {}, {}
    tls = request.getfixturevalue("tls")
    return {"ssl": tls.server()}, {"ssl": tls.client(), "server_hostname": "localhost"}


def test_each_accepted_connection_has_a_copy_of_the_servers_context(run, options):
    for_server, for_client = options

    async def main():
        loop = asyncio.get_running_loop()
        accepted = []

        def factory():
            accepted.append(Noting())
            return accepted[-1]

        variable.set("server's")
        server = await loop.create_server(factory, "127.0.0.1", 0, **for_server)
        variable.set("client's")
        async with server:
            for _ in range(2):
                transport, client = await loop.create_connection(Noting, *server.sockets[0].getsockname(), **for_client)
                transport.write(b"data")
                while not any("data" in step for step in accepted[-1].seen):
                    await asyncio.sleep(0)
                transport.close()
                await asyncio.wait_for(asyncio.gather(client.lost, accepted[-1].lost), 10)
                assert client.seen[0] == "client's made"
                assert client.seen[-1].startswith("client's made") and client.seen[-1].endswith("lost")
        assert [protocol.made for protocol in accepted] == ["server's", "server's"]
        assert [protocol.seen for protocol in accepted] == [STEPS, STEPS]
        assert variable.get() == "client's"

    run(main())


def test_a_listener_that_starts_later_uses_the_context_of_create_server(run):
    async def main():
        loop = asyncio.get_running_loop()
        accepted = loop.create_future()

        class Accepted(Noting):
            def connection_made(self, transport):
                super().connection_made(transport)
                accepted.set_result(self)

        variable.set("server's")
        server = await loop.create_server(Accepted, "127.0.0.1", 0, start_serving=False)
        variable.set("later")
        await server.start_serving()
        async with server:
            transport, _ = await loop.create_connection(Noting, *server.sockets[0].getsockname())
            protocol = await accepted
            transport.close()
            await protocol.lost
            # Before 3.15 a server has no context: its listener starts in that of start_serving().
            expected = "server's made" if sys.version_info >= (3, 15) else "later made"
            assert protocol.seen[0] == expected

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 15), reason="the context argument is new in 3.15")
def test_a_context_given_to_the_transport_is_not_copied(run):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        context = contextvars.copy_context()
        context.run(variable.set, "given")
        protocol = Noting()
        with far:
            transport = loop._make_socket_transport(near, protocol, context=context)
            while not protocol.seen:
                await asyncio.sleep(0)
            assert context[variable] == "given made"
            transport.close()
            await protocol.lost
        assert context[variable] == "given made lost"

    run(main())


@pytest.mark.skipif(sys.version_info < (3, 15), reason="the context argument is new in 3.15")
def test_a_reader_and_a_writer_run_in_the_context_that_they_are_given(run):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        with near, far:
            for add, remove in (loop._add_reader, loop._remove_reader), (loop._add_writer, loop._remove_writer):
                context, ran = contextvars.copy_context(), loop.create_future()

                def callback(value, context=context, ran=ran, remove=remove):
                    variable.set(value)
                    remove(near.fileno())
                    ran.set_result(None)

                far.send(b"data")
                add(near.fileno(), callback, "set", context=context)
                await ran
                assert context[variable] == "set"
        assert variable.get() == "nobody's"

    run(main())


@pytest.mark.native  # asyncio 3.15 has this for TCP, and not for TLS
@pytest.mark.parametrize("buffered", [False, True], ids=["protocol", "buffered protocol"])
@pytest.mark.parametrize("action", ["resume", "resume and close", "close", "abort", "resume writing"])
def test_what_a_task_does_to_its_transport_does_not_bring_its_context_to_the_protocol(run, options, action, buffered):
    """The task pauses reading first, and data waits."""
    for_server, for_client = options

    async def main():
        loop = asyncio.get_running_loop()
        lost = loop.create_future()
        seen = []

        class Paused(asyncio.BaseProtocol):
            def connection_made(self, transport):
                self.note("made")
                self.transport, self.count = transport, 0

            def note(self, callback):
                # What an earlier callback has set is there.
                seen.append((callback, variable.get()))
                variable.set("the connection's")

            def received(self, count):
                self.note("data")
                self.count += count
                if self.count == 1:
                    self.transport.pause_reading()
                    self.task = asyncio.create_task(self.act())

            async def act(self):
                variable.set("the task's")
                client.write(b"2" * 1000)
                await asyncio.sleep(0.02)
                if action == "resume writing":
                    self.transport.set_write_buffer_limits(0)
                    self.transport.write(bytes(3_000_000))
                    self.transport.set_write_buffer_limits(10_000_000)
                if action.startswith("resume"):
                    self.transport.resume_reading()
                if action.endswith("close"):
                    self.transport.close()
                if action == "abort":
                    self.transport.abort()
                if not action.endswith(("close", "abort")):
                    await asyncio.sleep(0.02)
                    client.close()
                variable.set("the task's at its end")

            def pause_writing(self):
                # In the context of the code that writes, as with asyncio.
                pass

            def resume_writing(self):
                self.note("resume writing")

            def eof_received(self):
                self.note("eof")

            def connection_lost(self, exc):
                self.note("lost")
                lost.set_result(None)

        class Plain(Paused, asyncio.Protocol):
            def data_received(self, data):
                self.received(len(data))

        class Buffered(Paused, asyncio.BufferedProtocol):
            def get_buffer(self, hint):
                self.note("buffer")
                self.buffer = bytearray(64)
                return self.buffer

            def buffer_updated(self, count):
                self.received(count)

        variable.set("the server's")
        server = await loop.create_server(Buffered if buffered else Plain, "127.0.0.1", 0, **for_server)
        async with server:
            client, _ = await loop.create_connection(
                asyncio.Protocol, *server.sockets[0].getsockname(), **for_client
            )
            client.write(b"1")
            await asyncio.wait_for(lost, 10)
            client.abort()
        assert seen[0] == ("made", "the server's")
        assert {value for _, value in seen[1:]} == {"the connection's"}, seen

    run(main())
