"""The interpreter runs out of memory: the program gets a MemoryError, and the process is not aborted.

There is no comparison with asyncio here: it may lose the step that had no memory, and hang.
"""

import textwrap

import pytest

from tests.support import no_memory
from tests.support.script import run_script

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(not no_memory.POSSIBLE, reason="no _testcapi that takes the memory away, or a debug build"),
]

PRELUDE = """
    import contextvars, math, socket
    from tests.support import no_memory

    loop = new_loop()
    errors = []
    loop.set_exception_handler(lambda loop, context: errors.append(context))

    def nothing(*args):
        pass

    def each(*calls):
        "All of the calls, and the last of their errors."
        def body(given):
            problem = None
            for call in calls:
                try:
                    call(given)
                except Exception as error:
                    problem = error
            if problem is not None:
                raise problem
        return body

    def stream():
        near, far = socket.socketpair()
        near.setblocking(False)
        transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
        return transport, far

    def datagrams():
        made = loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        return loop.run_until_complete(made)[0]

    def stopping():
        "One turn, whose end is certain before the memory is gone."
        loop.call_soon(loop.stop)
        return loop
"""


def check(loop_name, body, most=40):
    program = textwrap.dedent(PRELUDE) + textwrap.dedent(body) + f"\nno_memory.main(PIECES, {most})\n"
    outcome = run_script(loop_name, program, timeout=25)
    assert outcome.code == 0, outcome


def test_a_loop_without_memory_raises(loop_name):
    body = """
        def broken():
            raise ZeroDivisionError

        def failing():
            loop.call_soon(broken)
            loop.call_later(0, broken)
            return stopping()

        PIECES = {
            "calls": (lambda: loop, each(
                lambda loop: loop.call_soon(nothing, 1, 2, 3, 4),
                lambda loop: loop.call_later(5, nothing, 1),
                lambda loop: loop.call_at(5, nothing),
                lambda loop: loop.call_soon_threadsafe(nothing),
                lambda loop: loop.create_future(),
                lambda loop: repr(loop),
            )),
            "handles": (lambda: [loop.call_soon(nothing, "x"), loop.call_later(5, nothing)], each(
                lambda handles: [repr(handle) for handle in handles],
                lambda handles: handles[1].when(),
                lambda handles: [handle.cancel() for handle in handles],
            )),
            "readers and writers": (lambda: socket.socketpair(), each(
                lambda pair: loop.add_reader(pair[0], nothing, 1, 2, 3),
                lambda pair: loop.add_writer(pair[0].fileno(), nothing, 1),
                lambda pair: loop._add_writer(pair[1], nothing, context=contextvars.copy_context()),
                lambda pair: loop.remove_reader(pair[0]),
                lambda pair: loop.remove_writer(pair[0].fileno()),
            )),
            "errors": (lambda: loop, each(
                lambda loop: loop._add_reader(0),
                lambda loop: loop._add_writer(0, nothing, other=1),
                lambda loop: loop.call_soon(),
                lambda loop: loop.call_later(None, nothing),
                lambda loop: loop.call_soon(nothing, context=5),
                lambda loop: loop.add_reader(-1, nothing),
                lambda loop: loop.add_reader(object(), nothing),
                lambda loop: loop.remove_reader("x"),
                lambda loop: loop.run_until_complete(5),
            )),
            "callbacks that fail": (failing, lambda loop: loop.run_forever()),
        }
    """
    check(loop_name, body)


def test_a_transport_without_memory_raises(loop_name):
    body = """
        PIECES = {
            "streams": (stream, each(
                lambda pair: repr(pair[0]),
                lambda pair: pair[0].get_extra_info("peername"),
                lambda pair: pair[0].get_extra_info("sockname"),
                lambda pair: pair[0].get_write_buffer_limits(),
                lambda pair: pair[0].write(b"x"),
                lambda pair: pair[0].write(bytearray(70_000)),
                lambda pair: pair[0].writelines([b"a", bytearray(5)]),
                lambda pair: pair[0].write("x"),
                lambda pair: pair[0].writelines(5),
                lambda pair: pair[0].set_write_buffer_limits(-1),
                lambda pair: pair[0].close(),
            )),
            "datagrams": (datagrams, each(
                lambda transport: repr(transport),
                lambda transport: transport.get_extra_info("sockname"),
                lambda transport: transport.get_write_buffer_limits(),
                lambda transport: transport.sendto(b"x", ("127.0.0.1", 9)),
                lambda transport: transport.sendto("x"),
                lambda transport: transport.sendto(b"x", ("127.0.0.1", "x")),
                lambda transport: transport.abort(),
            )),
        }
    """
    check(loop_name, body)


def test_a_protocol_that_fails_without_memory_does_not_panic(loop_name):
    body = """
        class Broken(asyncio.Protocol):
            def data_received(self, data):
                raise ZeroDivisionError

        def sent():
            near, far = socket.socketpair()
            near.setblocking(False)
            far.send(b"x")
            transport, _ = loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))
            transport.set_protocol(Broken())
            far.send(b"x")
            return stopping(), transport, far

        PIECES = {"a turn": (sent, lambda given: given[0].run_forever())}
    """
    check(loop_name, body, most=40)


def test_a_primitive_without_memory_raises(loop_name):
    body = """
        import wakeloop

        async def made():
            listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
            stream = await wakeloop.TcpStream.connect(listener.host, listener.port)
            return listener, stream, await wakeloop.UdpSocket.bind("127.0.0.1", 0)

        # Closed, as the warning of one that was never awaited is a call that CPython itself does not survive here.
        def used(operation, use):
            try:
                use(operation)
            finally:
                operation.close()

        PIECES = {
            "sockets": (lambda: loop.run_until_complete(made()), each(
                lambda all: [repr(each) for each in all],
                lambda all: [each.get_extra_info("sockname") for each in all],
                lambda all: [each.get_extra_info(5) for each in all],
                lambda all: (all[0].host, all[0].port, all[2].host, all[2].port),
                lambda all: all[1].readexactly(-1),
                lambda all: all[1].write_all("x"),
                lambda all: all[2].send("x"),
                lambda all: all[2].send_to(b"x", 5),
                lambda all: [each.close() for each in all],
            )),
            "functions": (lambda: wakeloop, each(
                lambda module: module.runtime_metrics(),
                lambda module: loop.metrics(),
                lambda module: module.sleep(math.nan),
                lambda module: module.configure(workers=0),
                lambda module: module.spawn_blocking(5),
                lambda module: repr(module.StreamReader(loop=loop)),
                lambda module: module.StreamReader(limit=-1, loop=loop),
                lambda module: used(module.sleep(1), repr),
                lambda module: used(module.sleep(1), lambda operation: operation.__qualname__),
                lambda module: used(module.sleep(1), lambda operation: operation.send(None)),
            )),
        }
    """
    check(loop_name, body)
