"""Methods of asyncio's loop classes that a program has replaced: what is replaced before a run counts in that run.

Tracers, guards of test tools and test clocks do that. Each replacement here is tried as a wrapper, which calls the
original with the loop as `self`, and has to be called and to change nothing.
"""

import asyncio
import socket
import tempfile
import threading
import time
from unittest import mock

import pytest

from tests.support.exchange import exchange
from tests.support.script import run_script

BASE = asyncio.base_events.BaseEventLoop
SELECTOR = asyncio.selector_events.BaseSelectorEventLoop
UNIX = asyncio.SelectorEventLoop


def wrap(monkeypatch, kind, name):
    """Wraps a method that `kind` has or inherits. Returns the list of the arguments of its calls."""
    original, calls = getattr(kind, name), []

    def wrapper(self, *args, **options):
        calls.append(args)
        return original(self, *args, **options)

    monkeypatch.setattr(kind, name, wrapper)
    return calls


def connected():
    pair = socket.socketpair()
    for each in pair:
        each.setblocking(False)
    return pair


async def callbacks():
    loop, seen = asyncio.get_running_loop(), []
    done = loop.create_future()
    loop.call_soon(seen.append, "soon")
    loop.call_later(0.002, done.set_result, None)
    loop.call_at(loop.time() + 0.001, seen.append, "at")
    thread = threading.Thread(target=loop.call_soon_threadsafe, args=(seen.append, "threadsafe"))
    thread.start()
    await asyncio.sleep(0)
    await asyncio.wait_for(done, 10)
    thread.join()
    await asyncio.create_task(asyncio.sleep(0.001))
    loop.call_later(100, print).cancel()
    assert seen[0] == "soon" and sorted(seen) == ["at", "soon", "threadsafe"]
    assert loop.is_running() and not loop.is_closed() and loop.get_debug() is False


async def sockets():
    loop = asyncio.get_running_loop()
    near, far = connected()
    with near, far, socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        reading = asyncio.ensure_future(loop.sock_recv(near, 10))
        await asyncio.sleep(0)
        await loop.sock_sendall(far, b"one")
        assert await reading == b"one"
        await loop.sock_sendall(far, b"two")
        buffer = bytearray(10)
        assert await loop.sock_recv_into(near, buffer) == 3 and buffer[:3] == b"two"
        listener.setblocking(False)
        client.setblocking(False)
        accepting = asyncio.ensure_future(loop.sock_accept(listener))
        await asyncio.sleep(0)
        await loop.sock_connect(client, listener.getsockname())
        accepted, _ = await accepting
        accepted.close()


async def datagrams():
    loop = asyncio.get_running_loop()
    with socket.socket(type=socket.SOCK_DGRAM) as near, socket.socket(type=socket.SOCK_DGRAM) as far:
        for each in (near, far):
            each.bind(("127.0.0.1", 0))
            each.setblocking(False)
        receiving = asyncio.ensure_future(loop.sock_recvfrom(near, 10))
        await asyncio.sleep(0)
        await loop.sock_sendto(far, b"one", near.getsockname())
        assert await receiving == (b"one", far.getsockname())
        await loop.sock_sendto(far, b"two", near.getsockname())
        assert (await loop.sock_recvfrom_into(near, bytearray(10)))[0] == 3
    transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
    transport.close()
    await asyncio.sleep(0)


async def descriptors():
    loop, seen = asyncio.get_running_loop(), []
    near, far = connected()
    with near, far:
        done = loop.create_future()

        def read():
            seen.append(near.recv(10))
            loop.remove_reader(near)
            done.set_result(None)

        loop.add_reader(near, lambda: seen.append("never"))
        loop.add_reader(near, read)
        loop.add_writer(near, seen.append, "writable")
        await asyncio.sleep(0.001)
        assert loop.remove_writer(near) and not loop.remove_writer(near)
        far.send(b"x")
        await done
        assert set(seen) == {"writable", b"x"} and not loop.remove_reader(near)


async def connections():
    assert await exchange() == b"line\n"


async def files():
    """A file over a connection, and a file over a socket."""
    loop = asyncio.get_running_loop()

    async def serve(reader, writer):
        with tempfile.TemporaryFile() as file:
            file.write(b"x" * 100_000)
            file.seek(0)
            assert await loop.sendfile(writer.transport, file) == 100_000
        writer.close()

    assert len(await exchange(serve, b"")) == 100_000
    near, far = connected()
    with near, far, tempfile.TemporaryFile() as file:
        file.write(b"x" * 100)
        file.seek(0)
        assert await loop.sock_sendfile(near, file) == 100


async def jobs():
    assert await asyncio.to_thread(int, "7") == 7
    loop = asyncio.get_running_loop()
    assert await loop.getaddrinfo("127.0.0.1", 1, type=socket.SOCK_STREAM)


METHODS = {
    callbacks: [
        *("call_soon", "call_later", "call_at", "call_soon_threadsafe", "create_future", "create_task", "time"),
        *("get_debug", "is_running", "is_closed", "run_forever", "_run_once", "_check_closed", "_timer_handle_cancelled"),
        *("_write_to_self", "_process_events"),
    ],
    sockets: ["sock_recv", "sock_recv_into", "sock_sendall", "sock_connect", "sock_accept", "_sock_recv", "_sock_accept"],
    datagrams: ["sock_recvfrom", "sock_recvfrom_into", "sock_sendto", "_make_datagram_transport"],
    descriptors: ["add_reader", "remove_reader", "_add_reader", "_remove_reader", "_add_writer", "_remove_writer"],
    connections: [
        *("_make_socket_transport", "_start_serving", "_accept_connection", "_accept_connection2", "_add_reader"),
        *("_remove_reader", "call_soon", "create_future", "create_connection", "_ensure_fd_no_transport"),
    ],
    files: ["sendfile", "sock_sendfile", "_sendfile_native", "_sock_sendfile_native", "_make_socket_transport"],
    jobs: ["run_in_executor", "getaddrinfo", "call_soon_threadsafe", "_write_to_self", "_check_default_executor"],
}

CASES = [pytest.param(use, name, id=f"{use.__name__}-{name}") for use, names in METHODS.items() for name in names]


@pytest.mark.parametrize("kind", [BASE, SELECTOR, UNIX])
@pytest.mark.parametrize(("use", "name"), CASES)
def test_a_wrapper_is_called_and_changes_nothing(run, monkeypatch, kind, use, name):
    if not hasattr(kind, name):
        pytest.skip(f"{kind.__name__} has no {name}")
    defined = next(each for each in UNIX.__mro__ if name in vars(each))
    calls = wrap(monkeypatch, kind, name)
    run(use())
    # What a class overrides further down is called there only.
    assert bool(calls) is issubclass(kind, defined)


@pytest.mark.parametrize(("use", "name"), CASES)
def test_after_the_wrapper_is_gone_nothing_is_called(run, monkeypatch, use, name):
    with monkeypatch.context() as patch:
        calls = wrap(patch, UNIX, name)
        run(use())
        assert calls
    calls.clear()
    run(use())
    assert calls == []


async def call_at_once(loop, name, near, far, listener):
    """Calls one method of the loop, and waits for what it returns."""
    unconnected = socket.socket()
    unconnected.setblocking(False)
    calls = {
        "call_later": lambda: loop.call_later(0, int),
        "call_at": lambda: loop.call_at(0, int),
        "sock_recv": lambda: loop.sock_recv(far, 1),
        "sock_recv_into": lambda: loop.sock_recv_into(far, bytearray(1)),
        "sock_recvfrom": lambda: loop.sock_recvfrom(far, 1),
        "sock_recvfrom_into": lambda: loop.sock_recvfrom_into(far, bytearray(1)),
        "sock_sendall": lambda: loop.sock_sendall(near, b"x"),
        "sock_sendto": lambda: loop.sock_sendto(near, b"x", None),
        "sock_accept": lambda: loop.sock_accept(listener),
        "sock_connect": lambda: loop.sock_connect(unconnected, listener.getsockname()),
        "getaddrinfo": lambda: loop.getaddrinfo("127.0.0.1", 80),
        "run_in_executor": lambda: loop.run_in_executor(None, int),
        "create_connection": lambda: loop.create_connection(asyncio.Protocol, *listener.getsockname()),
        "create_server": lambda: loop.create_server(asyncio.Protocol, "127.0.0.1", 0),
        "create_datagram_endpoint": lambda: loop.create_datagram_endpoint(asyncio.DatagramProtocol),
        "subprocess_exec": lambda: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
    }
    try:
        result = calls[name]()
        return await result if hasattr(result, "__await__") else result
    finally:
        unconnected.close()


IN_A_RUN = [
    *("call_later", "call_at", "sock_recv", "sock_recv_into", "sock_recvfrom", "sock_recvfrom_into", "sock_sendall"),
    *("sock_sendto", "sock_accept", "sock_connect", "getaddrinfo", "run_in_executor", "create_connection"),
    *("create_server", "create_datagram_endpoint", "subprocess_exec"),
]


@pytest.mark.parametrize("name", IN_A_RUN)
@pytest.mark.parametrize("kind", [BASE, SELECTOR, UNIX])
def test_a_patch_that_is_made_in_a_coroutine_counts_at_once(run, kind, name):
    """Tests with pytest-asyncio do that: `with mock.patch("asyncio.base_events.BaseEventLoop.getaddrinfo"): ...`"""
    if not hasattr(kind, name) or (kind is BASE and name.startswith("sock_")):
        pytest.skip(f"{kind.__name__} has no {name}")

    class Called(Exception):
        pass

    async def main():
        loop = asyncio.get_running_loop()
        near, far = connected()
        with near, far, socket.create_server(("127.0.0.1", 0)) as listener:
            for _ in range(2):
                with mock.patch.object(kind, name, side_effect=Called) as patched:
                    with pytest.raises(Called):
                        await call_at_once(loop, name, near, far, listener)
                    patched.assert_called_once()
                if name in ("call_later", "call_at"):
                    (await call_at_once(loop, name, near, far, listener)).cancel()

    run(main())


@pytest.mark.native
@pytest.mark.parametrize(("use", "name"), CASES)
def test_the_class_has_its_own_methods_again_afterwards(run, loop_factory, monkeypatch, use, name):
    loop = loop_factory()
    loop.close()
    kind = type(loop)
    before = dict(vars(kind))
    with monkeypatch.context() as patch:
        wrap(patch, UNIX, name)
        run(use())
    run(use())
    assert dict(vars(kind)) == before


def test_a_callback_scheduled_before_the_run_goes_through_a_patch_that_is_younger_than_the_loop(loop, monkeypatch):
    calls = wrap(monkeypatch, BASE, "call_soon")
    loop.call_soon(loop.stop)
    assert [args[0] for args in calls] == [loop.stop]
    loop.run_forever()

    calls.clear()
    tasks = wrap(monkeypatch, BASE, "create_task")
    loop.run_until_complete(asyncio.sleep(0))
    assert len(tasks) == 1 and len(calls) >= 2


@pytest.mark.parametrize("name", ["call_at", "call_later", "call_soon_threadsafe"])
def test_so_does_one_of_another_method(loop, monkeypatch, name):
    calls = wrap(monkeypatch, BASE, name)
    first = {"call_at": (0,), "call_later": (0,)}.get(name, ())
    getattr(loop, name)(*first, loop.stop)
    assert len(calls) == 1
    loop.run_forever()


def test_a_patch_counts_where_the_class_has_no_versions_left(loop_name):
    """Since 3.13, CPython gives a class no more than a thousand versions."""
    body = """
        Base = asyncio.base_events.BaseEventLoop
        loop = new_loop()
        for number in range(1100):
            Base.number = number
            loop.time()
        for name in ("call_soon", "call_soon_threadsafe", "call_later", "call_at"):
            calls, original = [], getattr(Base, name)
            setattr(Base, name, lambda self, *args, **options: calls.append(args) or original(self, *args, **options))
            getattr(loop, name)(*(0,) * (name in ("call_later", "call_at")), loop.stop)
            print(name, len(calls))
            setattr(Base, name, original)
            loop.run_forever()
        loop.close()
    """
    outcome = run_script(loop_name, body)
    expected = "call_soon 1\ncall_soon_threadsafe 1\ncall_later 1\ncall_at 1\n"
    assert (outcome.code, outcome.out) == (0, expected), outcome


def test_a_patch_that_is_older_than_the_second_run_counts_there(loop, monkeypatch):
    loop.run_until_complete(callbacks())
    calls = wrap(monkeypatch, BASE, "call_soon")
    runs = wrap(monkeypatch, BASE, "run_forever")
    loop.run_until_complete(callbacks())
    assert calls and len(runs) == 1


@pytest.mark.parametrize("name", ["call_later", "create_future", "call_soon_threadsafe"])
def test_other_code_in_the_function_counts_as_a_patch(run, monkeypatch, name):
    """Tracers that rewrite bytecode put other code into asyncio's functions."""
    function = getattr(UNIX, name)

    def refuse(*args, **options):
        raise LookupError("patched")

    async def use():
        getattr(asyncio.get_running_loop(), name)()

    with monkeypatch.context() as patch:
        patch.setattr(function, "__code__", refuse.__code__)
        coroutine = use()
        with pytest.raises(LookupError, match="patched"):
            run(coroutine)
        coroutine.close()
    run(callbacks())


def test_a_mock_in_the_place_of_a_method_is_called(run):
    with mock.patch.object(BASE, "call_later", return_value=mock.Mock()) as later:

        async def main():
            return asyncio.get_running_loop().call_later(5, print, "x")

        assert run(main()) is later.return_value
    later.assert_called_once_with(5, print, "x")


def test_call_soon_threadsafe_replaced_as_a_whole_is_used_for_jobs(run, monkeypatch):
    def soon(self, callback, *args, context=None):
        seen.append(callback)
        handle = self.call_soon(callback, *args, context=context)
        self._write_to_self()
        return handle

    seen = []
    monkeypatch.setattr(BASE, "call_soon_threadsafe", soon)

    async def main():
        return await asyncio.get_running_loop().run_in_executor(None, int, "7")

    assert run(main()) == 7 and seen


def test_the_transports_of_a_patched_loop_schedule_their_callbacks_by_it(run, monkeypatch):
    calls = wrap(monkeypatch, BASE, "call_soon")
    made = []

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            made.append(self)
            transport.close()

    async def main():
        server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        await reader.read()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    run(main())
    assert made[0].connection_made in [callback for callback, *_ in calls]


@pytest.mark.parametrize("name", ["call_soon", "_make_socket_transport", "_make_ssl_transport", "create_future"])
def test_tls_works_on_a_patched_loop(run, monkeypatch, tls, name):
    calls = wrap(monkeypatch, UNIX, name)

    async def main():
        async def serve(reader, writer):
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls.server())
        address = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*address, ssl=tls.client(), server_hostname="localhost")
        writer.write(b"line\n")
        assert await reader.read() == b"line\n"
        writer.close()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(0.01)

    run(main())
    assert bool(calls) is (name != "_make_socket_transport")


# -- handles --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["cancel", "cancelled", "get_context"])
def test_a_patched_method_of_handles_is_called(run, monkeypatch, name):
    if not hasattr(asyncio.Handle, name):
        pytest.skip(f"this Python has no Handle.{name}")
    calls = wrap(monkeypatch, asyncio.Handle, name)

    async def main():
        loop = asyncio.get_running_loop()
        near, far = connected()
        with near, far:
            for handle in (loop.call_soon(print, "x"), loop.call_soon_threadsafe(print, "x"), loop.call_later(1, print)):
                getattr(handle, name)()
                handle.cancel()
            await loop.sock_sendall(near, b"x")
            loop.add_reader(far, print)
            loop.remove_reader(far)
        await asyncio.sleep(0.001)

    run(main())
    assert len(calls) >= 3


def test_a_replaced_class_of_handles_is_used(run, monkeypatch):
    class Handle(asyncio.Handle):
        pass

    monkeypatch.setattr(asyncio.events, "Handle", Handle)

    async def main():
        handle = asyncio.get_running_loop().call_soon(int)
        await asyncio.sleep(0)
        return type(handle)

    assert run(main()) is Handle


# -- timers ---------------------------------------------------------------------------------------------------------


def test_many_timers_of_a_patched_call_at_fire_in_order_and_cancelled_ones_do_not(run, monkeypatch):
    wrap(monkeypatch, BASE, "call_at")

    async def main():
        loop, fired = asyncio.get_running_loop(), []
        start = loop.time()
        handles = [loop.call_at(start + number / 10_000, fired.append, number) for number in range(300, 0, -1)]
        for handle in handles[::2]:
            handle.cancel()
        far = [loop.call_later(1000, fired.append, "far") for _ in range(300)]
        await asyncio.sleep(0.05)
        assert fired == [number for number in range(1, 300, 2)]
        assert all(handle.when() > start + 900 for handle in far)
        for handle in far:
            handle.cancel()
        await asyncio.sleep(0.001)
        assert sum(not handle.cancelled() for handle in loop._scheduled) == 0

    run(main())


def test_a_timer_that_is_pushed_into_scheduled_by_hand_fires(run):
    import heapq

    async def main():
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        timer = asyncio.TimerHandle(loop.time() + 0.001, done.set_result, (7,), loop)
        heapq.heappush(loop._scheduled, timer)
        timer._scheduled = True
        assert timer in loop._scheduled
        assert await asyncio.wait_for(done, 10) == 7
        assert timer not in loop._scheduled

    run(main())


# -- the clock ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [BASE, SELECTOR, UNIX])
def test_a_time_patched_while_the_loop_runs_counts_at_once(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        before = loop.time()
        with mock.patch.object(kind, "time", lambda self: 1e6):
            assert loop.time() == 1e6
            assert loop.call_later(1, print).when() == 1e6 + 1
        assert before <= loop.time() < before + 100

    run(main())


def test_a_patched_time_that_counts_real_time_lets_sleeps_end_although_monotonic_is_frozen(run, monkeypatch):
    """freezegun does this for `real_asyncio=True`."""
    monotonic = time.monotonic

    async def main():
        with mock.patch.object(time, "monotonic", lambda: 1.0), mock.patch.object(UNIX, "time", lambda self: monotonic()):
            await asyncio.wait_for(asyncio.sleep(0.001), 30)
            assert time.monotonic() == 1.0

    run(main())


def test_the_module_time_replaced_in_asyncios_own_module_counts(run):
    async def main():
        loop = asyncio.get_running_loop()
        with mock.patch("asyncio.base_events.time") as module:
            module.monotonic.return_value = 5.0
            assert loop.time() == 5.0
        assert loop.time() != 5.0

    run(main())


# -- our class, its subclasses and its instances ------------------------------------------------------------------------


@pytest.mark.parametrize(("use", "name"), CASES)
def test_a_wrapper_on_the_class_of_the_loop_is_called(run, loop_factory, monkeypatch, use, name):
    loop = loop_factory()
    loop.close()
    calls = wrap(monkeypatch, type(loop), name)
    run(use())
    assert calls


@pytest.mark.parametrize("name", ["call_soon", "call_soon_threadsafe", "_write_to_self", "create_future", "_check_closed"])
def test_an_override_in_a_subclass_is_called(loop_factory, name):
    loop = loop_factory()
    loop.close()
    calls = []

    def override(self, *args, **options):
        calls.append(args)
        return getattr(super(Loop, self), name)(*args, **options)

    class Loop(type(loop)):
        pass

    setattr(Loop, name, override)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(callbacks())
        runner.run(jobs())
    assert calls


def test_a_patch_of_asyncios_class_reaches_super_calls_of_a_subclass(loop_factory, monkeypatch):
    loop = loop_factory()
    loop.close()
    calls = wrap(monkeypatch, BASE, "call_soon")

    class Loop(type(loop)):
        def call_soon(self, *args, **options):
            return super().call_soon(*args, **options)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(callbacks())
    assert calls


def test_patches_that_are_undone_in_order_leave_the_class_as_it_was(run, loop_factory, monkeypatch):
    loop = loop_factory()
    loop.close()
    kind = type(loop)
    before = kind.call_soon
    with monkeypatch.context() as outer:
        asyncios = wrap(outer, BASE, "call_soon")
        run(callbacks())
        with monkeypatch.context() as inner:
            own = wrap(inner, kind, "call_soon")
            run(callbacks())
            assert own and asyncios
    own.clear()
    asyncios.clear()
    run(callbacks())
    assert not own and not asyncios and kind.call_soon is before


def test_a_patched_handle_run_sees_how_connections_are_made(run, monkeypatch):
    original, seen = asyncio.Handle._run, []

    def patched(handle):
        seen.append(getattr(handle._callback, "__name__", None))
        return original(handle)

    monkeypatch.setattr(asyncio.Handle, "_run", patched)
    run(connections())
    assert "connection_made" in seen


def test_a_handle_that_was_replaced_before_the_import_is_made(loop_name):
    before = """
        import asyncio
        made = []
        class Mine(asyncio.Handle):
            __slots__ = ()
            def __init__(self, *args, **kwargs):
                made.append(1)
                super().__init__(*args, **kwargs)
        asyncio.events.Handle = Mine
    """
    body = """
        loop = new_loop()
        loop.call_soon(int)
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        print(bool(made))
    """
    outcome = run_script(loop_name, body, before=before)
    assert (outcome.code, outcome.out, outcome.err) == (0, "True\n", ""), outcome


def test_a_transport_that_was_replaced_by_a_function_before_the_import_is_made(loop_name):
    before = """
        import asyncio.selector_events, socket
        made, original = [], asyncio.selector_events._SelectorSocketTransport
        def replacement(*args, **options):
            made.append(1)
            return original(*args, **options)
        asyncio.selector_events._SelectorSocketTransport = replacement
    """
    body = """
        async def main():
            near, far = socket.socketpair()
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
            transport.close()
            far.close()
        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
        print(made)
    """
    outcome = run_script(loop_name, body, before=before)
    assert (outcome.code, outcome.out, outcome.err) == (0, "[1]\n", ""), outcome


def test_the_import_makes_no_task_of_a_replaced_class(loop_name):
    before = """
        import asyncio
        names = []
        class Mine(asyncio.Task):
            def __init__(self, *args, **options):
                super().__init__(*args, **options)
                names.append(self.get_name())
        asyncio.Task = asyncio.tasks.Task = Mine
    """
    body = """
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        print(names)
    """
    outcome = run_script(loop_name, body, before=before)
    assert (outcome.code, outcome.out, outcome.err) == (0, "['Task-1']\n", ""), outcome


#: Classes of asyncio, each with the number of calls in the program below that has to be seen at least.
NAMES = {
    "base_events.BaseEventLoop": 0,
    "base_events.Server": 1,
    "events.Handle": 1,
    "selector_events._SelectorSocketTransport": 1,
    "sslproto.SSLProtocol": 0,
    "sslproto._SSLProtocolTransport": 0,
    "transports.DatagramTransport": 0,
    "transports.ReadTransport": 0,
    "transports.WriteTransport": 0,
    "transports._FlowControlMixin": 0,
    "trsock.TransportSocket": 1,
}


@pytest.mark.parametrize("by", ["function", "subclass"])
@pytest.mark.parametrize("name", NAMES)
def test_a_class_of_asyncio_can_be_replaced_before_the_import_of_the_loops_package(loop_name, name, by):
    before = f"""
    import asyncio, asyncio.{name.split(".")[0]}
    module, name = asyncio.{name.split(".")[0]}, "{name.split(".")[1]}"
    original, calls = getattr(module, name), []

    def replacement(*args, **options):
        calls.append(args)
        return original(*args, **options)

    if "{by}" == "subclass":
        class replacement(original):
            def __init__(self, *args, **options):
                calls.append(args)
                super().__init__(*args, **options)

    setattr(module, name, replacement)
    """
    body = """
    from tests.support.exchange import exchange

    async def main():
        print(await exchange())
        asyncio.get_running_loop().call_soon(print, "called")
        await asyncio.sleep(0.001)

    loop = new_loop()
    loop.run_until_complete(main())
    loop.close()
    print(len(calls))
    """
    outcome = run_script(loop_name, body, before=before)
    lines = outcome.out.split("\n")
    assert outcome.code == 0 and not outcome.err and lines[:2] == ["b'line\\n'", "called"], outcome
    assert int(lines[2]) >= NAMES[name], outcome
