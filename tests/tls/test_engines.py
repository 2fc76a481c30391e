"""Which TLS engine is used, why, and the risks of the native engine."""

import asyncio
import importlib.util
import os
import ssl
import sys
import threading
from pathlib import Path

import pytest

from tests.support.protocol import Recording
from tests.support.script import run_script
from tests.support.tls_pair import Echo, finish, secure_pair, talk

pytestmark = pytest.mark.native

#: A server and a client that exchange a message, in a script: `tls` is the certificate, and `main()` returns the
#: engines.
EXCHANGE = """
import asyncio, ssl, sys

def contexts():
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain({certificate!r}, {key!r})
    client.load_verify_locations({certificate!r})
    return server, client

async def main(contexts=contexts):
    loop = asyncio.get_running_loop()
    engines = []

    async def handle(reader, writer):
        engines.append(getattr(writer.transport._ssl_protocol, "engine", "asyncio"))
        writer.write(await reader.readexactly(100_000))
        await writer.drain()
        writer.close()

    server_context, client_context = contexts()
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context)
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=client_context, server_hostname="localhost"
    )
    engines.append(getattr(writer.transport._ssl_protocol, "engine", "asyncio"))
    writer.write(b"x" * 100_000)
    assert await reader.readexactly(100_000) == b"x" * 100_000
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await asyncio.sleep(0.01)
    return loop.tls_engine, *engines

def run(main):
    with asyncio.Runner(loop_factory=new_loop) as runner:
        print(*runner.run(main))
"""


# For tests that measure memory.
RESIDENT = """
import gc, os

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""


def exchange(tls, body, before="", **options):
    text = EXCHANGE.format(certificate=tls.certificate, key=tls.key)
    return run_script("wakeloop", before + text + body, **options)


def native_here():
    import wakeloop._core

    return wakeloop._core.tls_problem() is None


needs_native = pytest.mark.skipif(not native_here(), reason="the native engine cannot be used with this Python")


# -- the choice --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [pytest.param("native", marks=needs_native), "sslobject", "asyncio"])
def test_the_environment_forces_an_engine(tls, monkeypatch, wanted):
    monkeypatch.setenv("WAKELOOP_TLS", wanted)
    done = exchange(tls, "run(main())")
    assert (done.code, done.out, done.err) == (0, f"{wanted} {wanted} {wanted}\n", "")


@needs_native
def test_the_native_engine_is_the_choice_where_it_works(tls, monkeypatch):
    monkeypatch.delenv("WAKELOOP_TLS", raising=False)
    done = exchange(tls, "run(main())")
    assert (done.code, done.out, done.err) == (0, "native native native\n", "")


def test_no_loop_is_made_with_an_unknown_engine(loop_factory, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "fast")
    with pytest.raises(ValueError, match="WAKELOOP_TLS is 'fast'; it can be native, sslobject, asyncio or auto"):
        loop_factory()


#: Makes `_ssl` seem to come from a shared object that links no OpenSSL, as if its symbols were hidden.
HIDDEN = "import _ssl, wakeloop._core; _ssl.__file__ = wakeloop._core.__file__\n"


def test_the_sslobject_engine_is_used_if_openssl_symbols_are_hidden(tls, monkeypatch):
    monkeypatch.delenv("WAKELOOP_TLS", raising=False)
    done = exchange(tls, "run(main())", before=HIDDEN)
    assert (done.code, done.out, done.err) == (0, "sslobject sslobject sslobject\n", "")


def test_an_engine_that_is_forced_and_cannot_be_used_is_an_error(tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")
    done = exchange(tls, "run(main())", before=HIDDEN)
    assert done.code == 1
    assert "RuntimeError: the native TLS engine cannot be used: SSL_read_ex is missing" in done.err


@needs_native
def test_other_threads_may_ask_the_ssl_object_while_the_loop_encrypts_and_decrypts(run, tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")
    answers, stop = [], threading.Event()

    def ask(ssl_object):
        while not stop.is_set():
            answers.append((ssl_object.version(), ssl_object.cipher()[0], ssl_object.pending()))

    async def main():
        near, far = await secure_pair(tls, far=Echo)
        objects = [protocol.transport.get_extra_info("ssl_object") for protocol in (near, far)]
        threads = [threading.Thread(target=ask, args=(it,)) for it in objects]
        for thread in threads:
            thread.start()
        sent = b""
        try:
            for size in range(1, 150):
                piece = bytes([size % 256]) * (size * 97 % 40_000)
                sent += piece
                near.transport.write(piece)
                await near.received(len(sent))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert await near.received(len(sent)) == sent
        await finish(near, far)

    run(main())
    assert answers and {answer[:2] for answer in answers} == {answers[0][:2]}


def test_the_sslobject_engine_is_used_if_libssl_is_not_loaded(tls, monkeypatch):
    monkeypatch.delenv("WAKELOOP_TLS", raising=False)
    done = exchange(tls, "run(main())", before="import _ssl; _ssl.__file__ = '/nowhere/_ssl.so'\n")
    assert (done.code, done.out, done.err) == (0, "sslobject sslobject sslobject\n", "")


def brings_openssl():
    """The wheels of psycopg2-binary bring an OpenSSL of their own. One that is built here uses that of the system."""
    spec = importlib.util.find_spec("psycopg2")
    return spec is not None and any(Path(spec.origin).parent.parent.glob("psycopg2*.libs"))


@needs_native
@pytest.mark.skipif(not brings_openssl(), reason="psycopg2-binary is not installed, or was built here")
@pytest.mark.parametrize("engine", ["native", "sslobject"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_foreign_openssl_in_the_process_is_not_confused_with_pythons(tls, monkeypatch, engine, when):
    load = """
flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_GLOBAL | os.RTLD_NOW)
import psycopg2
sys.setdlopenflags(flags)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libssl" in line}
"""
    body = "import os\n" + (f"{load}run(main())" if when == "before" else f"run(main())\n{load}run(main())")
    monkeypatch.setenv("WAKELOOP_TLS", engine)
    before = f"import os, sys\n{load}" if when == "before" else ""
    done = exchange(tls, body + "\nassert len(loaded) == 2, loaded", before=before)
    lines = [f"{engine} {engine} {engine}"] * (1 if when == "before" else 2)
    assert (done.code, done.out.splitlines(), done.err) == (0, lines, "")


class Counting(ssl.SSLObject):
    reads = 0

    def read(self, *args):
        type(self).reads += 1
        return super().read(*args)


class Watching(ssl.SSLObject):
    """Overrides something that is not part of the data path."""

    handshakes = 0

    def do_handshake(self):
        type(self).handshakes += 1
        return super().do_handshake()


def engines(*protocols):
    return [protocol.transport._ssl_protocol.engine for protocol in protocols]


@needs_native
def test_an_overridden_read_keeps_being_called(run, tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    async def main():
        client, server = tls.client(), tls.server()
        client.sslobject_class, server.sslobject_class = Counting, Watching
        near, far = await secure_pair(tls, client=client, server=server)
        assert engines(near, far) == ["sslobject", "native"]
        await talk(near, far)
        assert Counting.reads and Watching.handshakes
        assert type(near.transport.get_extra_info("ssl_object")) is Counting
        await finish(near, far)

    run(main())


@needs_native
def test_the_sslobject_engine_is_used_with_a_message_callback(run, tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    async def main():
        client = tls.client()
        client._msg_callback = lambda *args: None
        near, far = await secure_pair(tls, client=client)
        assert engines(near, far) == ["sslobject", "native"]
        await talk(near, far)
        await finish(near, far)

    run(main())


@needs_native
def test_the_sslobject_engine_is_used_if_the_context_makes_two_objects(run, tls, monkeypatch):
    """It is not known whose SSL object was created."""
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    class Doubling(ssl.SSLContext):
        def wrap_bio(self, *args, **kwargs):
            self.first = super().wrap_bio(*args, **kwargs)
            return super().wrap_bio(*args, **kwargs)

    async def main():
        client = Doubling(ssl.PROTOCOL_TLS_CLIENT)
        client.load_verify_locations(tls.certificate)
        near, far = await secure_pair(tls, client=client)
        assert engines(near, far) == ["sslobject", "native"]
        await talk(near, far)
        await finish(near, far)

    run(main())


@needs_native
def test_the_sslobject_engine_is_used_if_the_context_reuses_an_object(run, tls, monkeypatch):
    """One SSL object was created, but it is not the one of the object that was returned."""
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    class Swapping(ssl.SSLContext):
        ready = None

        def wrap_bio(self, incoming, outgoing, **kwargs):
            if self.ready is None:
                return super().wrap_bio(incoming, outgoing, **kwargs)
            made, self.ready = self.ready, None
            super().wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), **kwargs)
            return made

    async def main():
        loop = asyncio.get_running_loop()
        client = Swapping(ssl.PROTOCOL_TLS_CLIENT)
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        client.ready = client.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO())
        from wakeloop._net.tls import make_protocol

        protocol = make_protocol(loop, Recording(), client, None, False, "localhost")
        assert protocol.engine == "sslobject"
        protocol._app_transport._closed = True

    run(main())


# -- what users may do to the SSLObject --------------------------------------------------------------------------


@pytest.fixture(params=[pytest.param("native", marks=needs_native), "sslobject"])
def each_engine(request, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", request.param)
    return request.param


@needs_native
def test_data_written_by_the_ssl_object_itself_is_sent_at_once(run, tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    async def main():
        near, far = await secure_pair(tls)
        ssl_object = near.transport.get_extra_info("ssl_object")
        assert ssl_object.write(b"on the loop's thread") == 20
        assert await asyncio.wait_for(far.received(20), 5) == b"on the loop's thread"
        thread = threading.Thread(target=ssl_object.write, args=[b" and on another"])
        thread.start()
        assert await asyncio.wait_for(far.received(35), 5) == b"on the loop's thread and on another"
        thread.join()
        await finish(near, far)

    run(main())


@needs_native
def test_data_written_by_the_ssl_object_after_a_write_of_the_transport_is_sent_at_once(run, tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")

    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        near.transport.write(b", the transport")
        assert await far.received(30) == b"from the client, the transport"
        near.transport.get_extra_info("ssl_object").write(b" and the object")
        expected = b"from the client, the transport and the object"
        assert await asyncio.wait_for(far.received(len(expected)), 5) == expected
        await finish(near, far)

    run(main())


def test_data_written_by_the_ssl_object_is_sent_before_later_writes(run, tls, each_engine):
    async def main():
        near, far = await secure_pair(tls)
        near.transport.get_extra_info("ssl_object").write(b"first ")
        near.transport.write(b"second")
        assert await far.received(12) == b"first second"
        await finish(near, far)

    run(main())


def test_loops_in_threads_share_nothing(loop_factory, tls, each_engine):
    failures = []

    def work():
        async def main():
            for _ in range(5):
                near, far = await secure_pair(tls)
                for size in (1, 1000, 100_000):
                    message = os.urandom(size)
                    near.data.clear(), far.data.clear()
                    near.transport.write(message)
                    far.transport.write(message)
                    assert await far.received(size) == message and await near.received(size) == message
                near.transport.close()
                await asyncio.gather(near.lost, far.lost)

        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(main())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_connection_is_released_on_any_thread(run, tls, each_engine):
    async def main():
        near, far = await secure_pair(tls)
        await talk(near, far)
        kept = [near.transport._ssl_protocol, near.transport.get_extra_info("ssl_object")]
        await finish(near, far)
        return kept

    kept = run(main())
    thread = threading.Thread(target=kept.clear)
    thread.start()
    thread.join()
    assert kept == []


def test_a_forked_child_releases_its_parents_connections(tls, each_engine):
    body = """
import gc, os

async def forking():
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts()
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=server_context)
    reader, writer = await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=client_context, server_hostname="localhost"
    )
    ssl_object = writer.get_extra_info("ssl_object")
    child = os.fork()
    if child == 0:
        # Nothing of the child's reaches the parent's peer, and nothing of the parent's breaks here.
        assert ssl_object.version() == "TLSv1.3"
        try:
            writer.write(b"from the child")
        except RuntimeError:
            pass
        del reader, writer, ssl_object
        gc.collect()
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7, status
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    server.close()
    await asyncio.sleep(0.01)
    return "parent and child",

run(forking())
"""
    done = exchange(tls, body)
    assert (done.code, done.out) == (0, "parent and child\n"), done


def test_the_interpreter_exits_cleanly_with_an_open_tls_connection(tls, each_engine):
    body = """
async def leaving():
    loop = asyncio.get_running_loop()
    server_context, client_context = contexts()
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0, ssl=server_context)
    global kept
    kept = server, await asyncio.open_connection(
        *server.sockets[0].getsockname(), ssl=client_context, server_hostname="localhost"
    )
    kept[1][1].write(b"not the end")
    print("leaving", flush=True)
    sys.exit(3)

run(leaving())
"""
    done = exchange(tls, body)
    assert (done.code, done.out) == (3, "leaving\n"), done


def test_data_written_in_an_openssl_callback_is_sent_afterwards(run, tls, each_engine):
    """The SNI callback may write to a connection on which OpenSSL is busy."""

    async def main():
        ready = []

        def choose(ssl_object, name, context):
            for protocol in ready:
                protocol.transport.write(b"x" * 100_000)

        server = tls.server()
        server.sni_callback = choose
        near, far = await secure_pair(tls, server=server)
        ready.append(far)
        other = await secure_pair(tls, server=server)
        assert await near.received(100_000) == b"x" * 100_000
        await finish(near, far, *other)

    run(main())


def test_shared_tls_attributes_accept_only_valid_values(run, tls, each_engine):
    async def main():
        near, far = await secure_pair(tls)
        protocol = near.transport._ssl_protocol
        for name, value in [
            ("_state", "WRAPPED"), ("_transport", object()), ("_loop", None), ("_loop", asyncio.SelectorEventLoop),
            ("_outgoing_high_water", "high"), ("_app_reading_paused", None),
        ]:  # fmt: skip
            with pytest.raises((TypeError, ValueError)):
                setattr(protocol, name, value)
        with pytest.raises(RuntimeError, match="has an engine already"):
            protocol.__init__(True, asyncio.get_running_loop(), near, tls.client(), None)
        near.transport._connection = 1
        with pytest.raises(TypeError, match="_connection is not a TLS connection"):
            near.transport.write(b"x")
        near.transport._connection = protocol
        await talk(near, far)
        await finish(near, far)

    run(main())


def test_tls_objects_that_were_never_connected_do_not_crash():
    import wakeloop._core

    connection = wakeloop._core.TlsConnection()
    for method in ("_do_read", "_do_write", "_process_outgoing", "_do_write_now", "_send_last", "_drop_pending"):
        getattr(connection, method)()
    assert connection._get_write_buffer_size() == connection._get_read_buffer_size() == 0
    assert connection._transport is None and connection._loop is None and connection.engine is None
    with pytest.raises(RuntimeError, match="needs its event loop first"):
        connection._begin(True, print)
    transport = wakeloop._core.SSLTransport.__new__(wakeloop._core.SSLTransport)
    assert transport.write(b"x") is None
    transport._closed = True


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_closed_tls_connections_free_their_memory(tls, each_engine):
    body = """
async def many():
    server_context, client_context = contexts()
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context)
    sizes = []
    for _ in range(3):
        for _ in range(40):
            reader, writer = await asyncio.open_connection(
                *server.sockets[0].getsockname(), ssl=client_context, server_hostname="localhost"
            )
            writer.write(b"x" * 100_000)
            await reader.readexactly(100_000)
            writer.close()
            await writer.wait_closed()
            del reader, writer
        await asyncio.sleep(0.02)
        gc.collect()
        sizes.append(resident())
    server.close()
    await asyncio.sleep(0.01)
    assert sizes[2] - sizes[1] < 1 << 20, sizes
    return "little",

async def handle(reader, writer):
    writer.write(await reader.readexactly(100_000))
    await writer.drain()
    await reader.read()
    writer.close()

run(many())
"""
    done = exchange(tls, RESIDENT + body)
    assert (done.code, done.out) == (0, "little\n"), done


@needs_native
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_idle_tls_connections_hold_no_record_buffers(tls, monkeypatch):
    monkeypatch.setenv("WAKELOOP_TLS", "native")
    body = """
async def many():
    server_context, client_context = contexts()
    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=server_context)
    clients, sizes = [], []
    for _ in range(2):
        for _ in range(100):
            reader, writer = await asyncio.open_connection(
                *server.sockets[0].getsockname(), ssl=client_context, server_hostname="localhost"
            )
            clients.append((reader, writer))
            writer.write(b"x" * 16_000)
            await reader.readexactly(16_000)
        await asyncio.sleep(0.02)
        gc.collect()
        sizes.append(resident())
    for _, writer in clients:
        writer.close()
        await writer.wait_closed()
    server.close()
    await asyncio.sleep(0.01)
    each = (sizes[1] - sizes[0]) // 100
    # Server and client together: 64 KiB, and 132 with the buffers of both.
    assert each < 96 << 10, each
    return "little",

async def handle(reader, writer):
    writer.write(await reader.readexactly(16_000))
    await writer.drain()
    await reader.read()
    writer.close()

run(many())
"""
    done = exchange(tls, RESIDENT + body)
    assert (done.code, done.out) == (0, "little\n"), done
