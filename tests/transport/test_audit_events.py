"""Audit hooks see the events of Python's socket module that asyncio's loop causes, in the same order, and can deny them."""

from tests.support.script import run_script
from tests.support.socket_program import OPERATIONS

#: Prints the events of each operation. A socket is shown by its class, and a port by the order of its first use.
RECORDER = """
import sys

def shown(value, ports={}):
    if isinstance(value, socket.socket):
        return type(value).__name__
    if isinstance(value, tuple):
        return tuple(map(shown, value))
    if isinstance(value, int) and value > 1000:
        return "port %d" % ports.setdefault(value, len(ports))
    if isinstance(value, (str, bytes)) and value[:1] in ("\\0", b"\\0"):
        return "a name"
    return int(value) if isinstance(value, int) else value

async def main(events=[]):
    def hook(event, args):
        if event.startswith("socket."):
            events.append((event, *map(shown, args)))

    def report(operation):
        print(operation, *events, sep="\\n    ")
        events.clear()

    sys.addaudithook(hook)
    asyncio.new_event_loop().close()
    report("a new loop")
    await operations(report)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


def test_a_hook_sees_the_events_that_asyncio_causes_in_the_same_order(loop_name):
    program = OPERATIONS + RECORDER.replace("asyncio.new_event_loop()", "new_loop()")
    found, expected = (run_script(name, program) for name in (loop_name, "asyncio"))
    assert (found.out, found.err, found.code) == (expected.out, expected.err, 0), (found, expected)


DENIED = """
import logging, socket, sys

denied = {}

def hook(event, args):
    if event in denied:
        raise denied[event]

sys.addaudithook(hook)

class Client(asyncio.Protocol, asyncio.DatagramProtocol):
    def error_received(self, exc):
        print("error_received:", repr(exc))

    def connection_lost(self, exc):
        print("connection_lost:", repr(exc))

async def attempt(event, exception, operation, *args, **options):
    denied[event] = exception
    try:
        print(event, await operation(*args, **options))
    except Exception as error:
        print(event, repr(error))
    finally:
        denied.clear()

async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    for error in PermissionError("denied"), ValueError("denied"):
        await attempt("socket.__new__", error, loop.create_connection, Client, host, port)
        await attempt("socket.connect", error, loop.create_connection, Client, host, port)
        await attempt("socket.connect", error, loop.create_connection, Client, "localhost", port, family=socket.AF_INET)

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setblocking(False)
            await attempt("socket.sendto", error, loop.sock_sendto, sock, b"x", (host, port))

        async def send():
            transport.sendto(b"x", (host, port))

        loop.set_exception_handler(lambda loop, context: print(context["message"], repr(context["exception"])))
        transport, _ = await loop.create_datagram_endpoint(Client, local_addr=(host, 0))
        await attempt("socket.sendto", error, send)
        transport.close()
        await asyncio.sleep(0.001)

        async def write():
            transport.writelines([b"one", b"two"])

        transport, _ = await loop.create_connection(Client, host, port)
        await attempt("socket.sendmsg", error, write)
        transport.close()
        await asyncio.sleep(0.001)

    with socket.socket() as client:
        client.connect((host, port))
        reported = loop.create_future()
        loop.set_exception_handler(lambda loop, context: reported.set_result(context))
        denied["socket.__new__"] = PermissionError("denied")
        context = await reported
        denied.clear()
        print(context["message"].partition("(")[0], repr(context["exception"]))
    transport, _ = await loop.create_connection(Client, host, port)
    transport.abort()
    server.close()

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""


def test_a_hook_can_deny_what_it_can_deny_on_asyncio(loop_name):
    found, expected = (run_script(name, DENIED) for name in (loop_name, "asyncio"))
    assert (found.out, found.err, found.code) == (expected.out, expected.err, 0), (found, expected)
