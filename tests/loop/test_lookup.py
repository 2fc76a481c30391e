"""loop.getaddrinfo and loop.getnameinfo: the results of socket's functions, without blocking the loop."""

import asyncio
import concurrent.futures
import gc
import itertools
import logging
import socket
import sys
import time
import weakref

import pytest

from tests.support.builds import FREE_THREADED
from tests.support.script import run_script

HOSTS = [
    "127.0.0.1", "0.0.0.0", "255.255.255.255", "::1", "::", "fe80::1", "fe80::1%lo", "fe80::1%nosuchzone", "::1.2.3.4",
    "::ffff:1.2.3.4", "1:0:0:2::3", "127.1", "0x7f.1", "01.2.3.4", "", None, b"127.0.0.1", b"::1", "localhost",
    b"localhost", "127.0.0.1%lo", "a..b", "x" * 64, "a\0b", "\ud800", 5, "b\u00fccher..example",
]  # fmt: skip
PORTS = [80, 0, 65535, 65536, -1, 10**30, "80", "00080", "99999", "", "http", b"80", None, True, 3.5, "8\0"]
FAMILIES = [0, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 99]
KINDS = [0, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET, 77]
PROTOCOLS = [0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP, 999]
FLAGS = [
    0, socket.AI_PASSIVE, socket.AI_NUMERICHOST, socket.AI_NUMERICSERV, socket.AI_CANONNAME, socket.AI_V4MAPPED,
    socket.AI_V4MAPPED | socket.AI_ALL, socket.AI_PASSIVE | socket.AI_NUMERICHOST, 1 << 20,
]  # fmt: skip


async def outcome(awaitable):
    """Returns a result in full, enums included, or what was raised."""
    try:
        return repr(await awaitable)
    except Exception as error:
        return type(error), error.args


async def called(function, *args, **kwargs):
    return function(*args, **kwargs)


@pytest.mark.parametrize("host", HOSTS, ids=ascii)
def test_getaddrinfo_accepts_hosts_and_ports_as_socket_does(run, host):
    # A lookup with AI_NUMERICHOST never leaves the machine.
    flags = 0 if host in (None, "localhost", b"localhost") else socket.AI_NUMERICHOST

    async def main():
        loop = asyncio.get_running_loop()
        for port, kind in itertools.product(PORTS, [0, socket.SOCK_STREAM]):
            wanted = await outcome(called(socket.getaddrinfo, host, port, type=kind, flags=flags))
            assert await outcome(loop.getaddrinfo(host, port, type=kind, flags=flags)) == wanted, (port, kind)

    run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None])
def test_every_family_type_protocol_and_flag_gives_the_same_list_in_the_same_order(run, host):
    async def main():
        loop = asyncio.get_running_loop()
        for family, kind, proto, flags in itertools.product(FAMILIES, KINDS, PROTOCOLS, FLAGS):
            options = {"family": family, "type": kind, "proto": proto, "flags": flags}
            wanted = await outcome(called(socket.getaddrinfo, host, 80, **options))
            assert await outcome(loop.getaddrinfo(host, 80, **options)) == wanted, options

    run(main())


def test_a_result_has_members_of_socket_s_enums(run):
    async def main():
        loop = asyncio.get_running_loop()
        for host in ("127.0.0.1", "localhost"):
            for family, kind, *_ in await loop.getaddrinfo(host, 80):
                assert isinstance(family, socket.AddressFamily) and isinstance(kind, socket.SocketKind)

    run(main())


def test_it_is_a_coroutine_function_with_asyncio_s_arguments(loop):
    for name in ("getaddrinfo", "getnameinfo"):
        ours, theirs = getattr(type(loop), name), getattr(asyncio.BaseEventLoop, name)
        assert asyncio.iscoroutinefunction(ours)
        assert ours.__code__.co_varnames[: ours.__code__.co_argcount + ours.__code__.co_kwonlyargcount] == (
            theirs.__code__.co_varnames[: theirs.__code__.co_argcount + theirs.__code__.co_kwonlyargcount]
        )


def test_getnameinfo_returns_what_socket_returns(run):
    addresses = [
        ("127.0.0.1", 80), ("::1", 80), ("::1", 80, 0, 0), ("fe80::1", 1, 0, 1), ("127.0.0.1", 80, 0), ("::1", 1, 1 << 22, 0),
        ("127.0.0.1", 99999), ("127.0.0.1", -1), ("127.0.0.1", "x"), ["127.0.0.1", 80], ("fe80::1%lo", 1), (), None,
    ]  # fmt: skip
    # Without NI_NUMERICHOST only names in the hosts file: any other would be sent to a name server.
    numeric = [socket.NI_NUMERICHOST, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV, socket.NI_NUMERICHOST | 1 << 25]

    async def main():
        loop = asyncio.get_running_loop()
        for address in addresses:
            flags = [0, socket.NI_DGRAM, *numeric] if address == ("127.0.0.1", 80) else numeric
            for flag in flags:
                wanted = await outcome(called(socket.getnameinfo, address, flag))
                assert await outcome(loop.getnameinfo(address, flag)) == wanted, (address, flag)

    run(main())


def test_a_replaced_getaddrinfo_is_called_even_for_a_literal(run, monkeypatch):
    calls = []

    def replacement(*args):
        calls.append(args)
        return [("one",)]

    monkeypatch.setattr(socket, "getaddrinfo", replacement)
    monkeypatch.setattr(socket, "getnameinfo", lambda *args: ("name", "service"))

    async def main():
        loop = asyncio.get_running_loop()
        assert await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM) == [("one",)]
        assert await loop.getaddrinfo("localhost", 80) == [("one",)]
        assert await loop.getnameinfo(("127.0.0.1", 80)) == ("name", "service")

    run(main())
    assert calls == [("127.0.0.1", 80, 0, socket.SOCK_STREAM, 0, 0), ("localhost", 80, 0, 0, 0, 0)]


def test_lookups_go_to_the_executor_that_the_user_has_set(run):
    class Counting(concurrent.futures.ThreadPoolExecutor):
        submitted = 0

        def submit(self, *args, **kwargs):
            self.submitted += 1
            return super().submit(*args, **kwargs)

    async def main():
        loop = asyncio.get_running_loop()
        executor = Counting(1)
        loop.set_default_executor(executor)
        await loop.getaddrinfo("localhost", 80)
        await loop.getnameinfo(("127.0.0.1", 80))
        assert executor.submitted == 2

    run(main())


def test_lookups_go_to_a_replaced_class_of_executors(run, monkeypatch):
    submitted = []

    class Noticing(concurrent.futures.ThreadPoolExecutor):
        def submit(self, function, *args):
            submitted.append(function)
            return super().submit(function, *args)

    async def main():
        await asyncio.get_running_loop().getaddrinfo("localhost", 80)

    monkeypatch.setattr(concurrent.futures, "ThreadPoolExecutor", Noticing)
    run(main())
    assert submitted


@pytest.mark.parametrize("home", ["class", "instance"])
def test_lookups_go_through_a_replaced_submit(run, monkeypatch, home):
    original, submitted = concurrent.futures.ThreadPoolExecutor.submit, []

    def submit(*args):
        submitted.append(args)
        return original(*args)

    async def main():
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, int)
        if home == "class":
            monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", submit)
        else:
            executor = loop._default_executor
            monkeypatch.setattr(executor, "submit", lambda *args: submit(executor, *args))
        await loop.getaddrinfo("localhost", 80)

    run(main())
    assert len(submitted) == 1


def test_after_the_default_executor_was_shut_down_there_are_no_lookups(run):
    async def main():
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
            await loop.getaddrinfo("localhost", 80)

    run(main())


def test_debug_mode_logs_the_lookup(run, caplog):
    async def main():
        await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)

    with caplog.at_level(logging.DEBUG, logger="asyncio"):
        run(main(), debug=True)
    texts = [record.getMessage() for record in caplog.records]
    assert "Get address info 127.0.0.1:80, type=<SocketKind.SOCK_STREAM: 1>" in texts
    assert any(text.startswith("Getting address info 127.0.0.1:80, type=") and " took " in text for text in texts)


def test_a_cancelled_lookup_ends_at_once_and_does_not_affect_others(run):
    async def main():
        loop = asyncio.get_running_loop()
        errors = []
        loop.set_exception_handler(lambda loop, context: errors.append(context))
        for _ in range(20):
            tasks = [asyncio.create_task(loop.getaddrinfo("localhost", 80)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            # Without a GIL a lookup may have ended before it is cancelled.
            ended = (asyncio.CancelledError, list) if FREE_THREADED else asyncio.CancelledError
            assert all(isinstance(result, ended) for result in results[::2])
            assert all(isinstance(result, list) and result for result in results[1::2])
        assert not errors

    run(main())


def test_many_lookups_at_once_all_come_back(run):
    async def main():
        loop = asyncio.get_running_loop()
        wanted = socket.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM)
        found = await asyncio.gather(
            *[loop.getaddrinfo("localhost", 80, type=socket.SOCK_STREAM) for _ in range(500)]
        )
        assert all(one == wanted for one in found)

    run(main())


@pytest.mark.native
def test_late_lookup_results_do_not_keep_the_loop_alive(loop_factory):
    loops = []
    for _ in range(20):
        loop = loop_factory()
        lookups = [loop.create_task(loop.getaddrinfo("localhost", 80)) for _ in range(10)]
        loop.call_soon(loop.stop)
        loop.run_forever()
        for lookup in lookups:
            lookup.cancel()
        loop.run_until_complete(asyncio.wait(lookups))
        loop.close()
        loops.append(weakref.ref(loop))
        del loop, lookups, lookup
    deadline = time.monotonic() + 10
    while any(loop() is not None for loop in loops) and time.monotonic() < deadline:
        # References that a thread without the GIL has dropped are freed at the next call of native code.
        loop_factory().close()
        gc.collect()
        time.sleep(0.01)
    assert [loop() for loop in loops] == [None] * 20


@pytest.mark.native
def test_no_thread_is_started_for_a_literal(loop_name):
    script = """
import os
async def main():
    loop = asyncio.get_running_loop()
    for host in ("127.0.0.1", "::1", "fe80::1%lo", None):
        await loop.getaddrinfo(host, 80)
    server = await loop.create_server(asyncio.Protocol, None, 0)
    server.close()
    print(len(os.listdir("/proc/self/task")))

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""
    outcome = run_script(loop_name, script)
    assert (outcome.out, outcome.code) == ("1\n", 0), outcome


EXITS = {
    "while the loop runs": "sys.exit(7)",
    "with the loop closed": "raise KeyboardInterrupt",
    "without a word": "os._exit(7)",
}


@pytest.mark.native
@pytest.mark.parametrize("how", EXITS)
def test_the_interpreter_exits_silently_during_lookups(loop_name, how):
    script = f"""
import os, sys
async def main():
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(loop.getaddrinfo("localhost", 80)) for _ in range(300)]
    await asyncio.sleep(0)
    {EXITS[how]}

try:
    loop = new_loop()
    loop.run_until_complete(main())
except KeyboardInterrupt:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.wait(tasks))
    loop.close()
    sys.exit(7)
"""
    for _ in range(3):
        outcome = run_script(loop_name, script)
        assert outcome.code == 7 and "panic" not in outcome.err and "Fatal" not in outcome.err, outcome


@pytest.mark.native
def test_a_forked_child_can_look_up_names(loop_name):
    script = """
import os
async def look_up():
    return len(await asyncio.get_running_loop().getaddrinfo("localhost", 80)) > 0

loop = new_loop()
print(loop.run_until_complete(look_up()), flush=True)
child = os.fork()
if child == 0:
    print(asyncio.Runner(loop_factory=new_loop).run(look_up()), flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print(loop.run_until_complete(look_up()))
loop.close()
"""
    outcome = run_script(loop_name, script, options=["-W", "ignore::DeprecationWarning"])
    assert (outcome.out, outcome.code) == ("True\nTrue\nTrue\n", 0), outcome


def test_audit_hooks_see_every_lookup(loop_name):
    script = """
import sys
seen = []
sys.addaudithook(lambda event, args: seen.append((event, args)) if event.startswith("socket.get") else None)

async def main():
    loop = asyncio.get_running_loop()
    await loop.getaddrinfo("127.0.0.1", 80, type=1)
    await loop.getaddrinfo("localhost", 80)
    await loop.getnameinfo(("127.0.0.1", 80))

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
print([event for event in seen if event[0] != "socket.gethostname"])
"""
    wanted = [
        ("socket.getaddrinfo", ("127.0.0.1", 80, 0, 1, 0)),
        ("socket.getaddrinfo", ("localhost", 80, 0, 0, 0)),
        ("socket.getnameinfo", (("127.0.0.1", 80),)),
    ]
    outcome = run_script(loop_name, script)
    assert outcome.out.strip() == str(wanted), outcome


def test_an_audit_hook_can_forbid_a_lookup(loop_name):
    script = """
import sys
def hook(event, args):
    if event == "socket.getaddrinfo":
        raise PermissionError("no lookups")

sys.addaudithook(hook)

async def main():
    for host in ("127.0.0.1", "localhost"):
        try:
            await asyncio.get_running_loop().getaddrinfo(host, 80)
        except PermissionError as error:
            print(error)

with asyncio.Runner(loop_factory=new_loop) as runner:
    runner.run(main())
"""
    outcome = run_script(loop_name, script)
    assert outcome.out == "no lookups\n" * 2, outcome


@pytest.mark.skipif(sys.platform != "linux", reason="the threads of the process are counted in /proc")
def test_no_thread_of_a_lookup_is_left_when_the_loop_is_closed(loop_name):
    """So that a fork afterwards, as by multiprocessing, does not warn of threads."""
    body = """
        import os, time

        async def main():
            loop = asyncio.get_running_loop()
            assert await loop.getaddrinfo("localhost", 80)
            assert len(os.listdir("/proc/self/task")) > 1

        for _ in range(2):
            with asyncio.Runner(loop_factory=new_loop) as runner:
                runner.run(main())
        # The system counts a thread for a moment longer. A thread that is only idle stays for ten seconds.
        deadline = time.monotonic() + 5
        while len(os.listdir("/proc/self/task")) > 1:
            assert time.monotonic() < deadline
    """
    outcome = run_script(loop_name, body)
    assert (outcome.code, outcome.err) == (0, ""), outcome


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", None])
def test_a_lookup_needs_a_loop_that_is_open_and_an_executor(loop_factory, host):
    async def after_shutdown():
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        with pytest.raises(RuntimeError, match="Executor shutdown has been called"):
            await loop.getaddrinfo(host, 80)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(after_shutdown())
        loop = runner.get_loop()
    with asyncio.Runner(loop_factory=loop_factory) as runner, pytest.raises(RuntimeError, match="Event loop is closed"):
        runner.run(loop.getaddrinfo(host, 80))
