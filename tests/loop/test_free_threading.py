"""Loops in several threads, and calls from wrong threads. Without the GIL they run at once."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED

ROOT = Path(__file__).parents[2]


def python(code, **environment):
    """Runs Python code with wakeloop on the path; returns what it has printed, and what it has warned of."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("WAKELOOP_GIL", "PYTHON_GIL")}
    done = subprocess.run(
        [sys.executable, "-W", "default::RuntimeWarning", "-c", code],
        env=inherited | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


def in_thread(function, *arguments):
    """Calls a function in a new thread, and raises what it raises."""
    outcome = []

    def call():
        try:
            outcome.append((function(*arguments), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(20)
    ((result, error),) = outcome
    if error is not None:
        raise error
    return result


# -- the GIL ---------------------------------------------------------------------------------------------------------

IMPORT = "import sys; before = sys._is_gil_enabled(); import wakeloop; print(before, sys._is_gil_enabled())"

# Prints what both modules declare, which CPython 3.13 and 3.14 read from their definitions: the value of Py_mod_gil.
DECLARED = """
import ctypes, wakeloop
from wakeloop import _core, _gil

class Slot(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("value", ctypes.c_void_p)]

class Definition(ctypes.Structure):
    _fields_ = [("base", ctypes.c_char * (object.__basicsize__ + 3 * ctypes.sizeof(ctypes.c_void_p)))]
    _fields_ += [("name", ctypes.c_char_p), ("doc", ctypes.c_char_p), ("size", ctypes.c_ssize_t)]
    _fields_ += [("methods", ctypes.c_void_p), ("slots", ctypes.POINTER(Slot))]

def declared(module):
    find = ctypes.pythonapi.PyModule_GetDef
    find.argtypes, find.restype = [ctypes.py_object], ctypes.POINTER(Definition)
    slots = find(module).contents.slots
    count = next(count for count in range(100) if not slots[count].id)
    return [slot.value or 0 for slot in slots[:count] if slot.id == 4]

make, made = _gil.module_from_spec, []
_gil.module_from_spec = lambda spec: made.append(make(spec)) or made[0]
_gil._load()
print(*declared(_core), *declared(made[0]))
"""


@pytest.mark.native
@pytest.mark.skipif(not FREE_THREADED, reason="the GIL is always on here")
@pytest.mark.parametrize(
    ("environment", "after"),
    [
        ({}, "False"),
        ({"WAKELOOP_GIL": "0"}, "False"),
        ({"WAKELOOP_GIL": "1"}, "True"),
        ({"WAKELOOP_GIL": "1", "PYTHON_GIL": "0"}, "False"),
    ],
    ids=["neither", "0", "1", "1, but the interpreter is told not to"],
)
def test_the_import_leaves_the_gil_off_unless_the_environment_wants_it(environment, after):
    assert python(IMPORT, **environment) == (["False", after], "")


@pytest.mark.native
@pytest.mark.parametrize("value", ["0", "1", " 1 ", "", "2", "off"])
def test_the_import_with_any_wakeloop_gil_is_silent(value):
    assert python("import wakeloop; print(wakeloop.__name__)", WAKELOOP_GIL=value) == (["wakeloop"], "")


@pytest.mark.native
def test_nothing_looks_at_wakeloop_gil_where_it_is_not_set():
    assert python("import sys, wakeloop; print('wakeloop._gil' in sys.modules)") == (["False"], "")


@pytest.mark.native
def test_wakeloop_gil_loads_a_module_from_the_file_of_the_extension():
    code = (
        "import wakeloop; gil = wakeloop._gil; make, made = gil.module_from_spec, []\n"
        "gil.module_from_spec = lambda spec: made.append(make(spec)) or made[0]\n"
        "gil._load(); print(made[0].__name__, made[0].__file__ == wakeloop._core.__file__)"
    )
    assert python(code, WAKELOOP_GIL="1") == (["wakeloop._with_gil", "True"], "")


@pytest.mark.native
@pytest.mark.skipif(not (3, 13) <= sys.version_info < (3, 15), reason="modules have no definition with a Py_mod_gil")
def test_the_extension_declares_that_it_needs_no_gil_and_its_second_module_that_it_does():
    assert python(DECLARED, WAKELOOP_GIL="0") == (["1", "0"], "")


# -- what nobody counts ----------------------------------------------------------------------------------------------

# Classes of which each callback, task or await makes an instance, and methods that are looked up for each call. An object
# that several threads count costs them more than all else that they do.
SHARED = """
import asyncio, sys, wakeloop
async def main():
    loop = asyncio.get_running_loop()
    handle, future = loop.call_soon(print), loop.create_future()
    handle.cancel()
    reader, writer = await wakeloop.open_connection(*server.sockets[0].getsockname())
    kinds = [wakeloop._core.EventLoop, type(handle), type(loop.call_later(0, int)), type(future), asyncio.Task]
    kinds += [type(future.__await__()), type(writer.transport), *type(reader).__mro__[1:2], type(wakeloop.sleep(0))]
    methods = [type(loop).call_soon, type(loop).call_later, type(loop).time, type(writer.transport).write]
    print(*(sys._is_immortal(it) for it in [*kinds, *methods]))
    writer.close()
async def around():
    global server
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    await main()
    server.close()
wakeloop.run(around())
"""


@pytest.mark.native
@pytest.mark.skipif(not FREE_THREADED, reason="one thread at a time counts there")
def test_what_every_loop_uses_for_each_callback_is_counted_by_none():
    words, errors = python(SHARED, PYTHONWARNINGS="ignore")
    assert words == ["True"] * 13, (words, errors)


# -- what clippy refuses ---------------------------------------------------------------------------------------------

REFUSED = [entry["path"] for entry in tomllib.loads((ROOT / "clippy.toml").read_text())["disallowed-methods"]]


def stub(paths):
    """The source of a crate with a function at each path, which begins with the crate's name."""
    modules = {}
    for path in paths:
        _, module, *rest = path.split("::")
        modules.setdefault(module, []).append(rest)
    lines = []
    for module, members in modules.items():
        lines += [f"pub mod {module} {{"]
        lines += [f"pub struct {kind};" for kind in sorted({member[0] for member in members if len(member) == 2})]
        for *kind, function in members:
            line = f"pub unsafe fn {function}() {{}}"
            lines += [f"impl {kind[0]} {{ {line} }}" if kind else line]
        lines += ["}"]
    return "#![allow(nonstandard_style)]\n" + "\n".join(lines)


@pytest.fixture(scope="module")
def clippy(tmp_path_factory):
    """Runs clippy as `make check-free-threaded` does on a source that uses pyo3; returns what it says."""
    if shutil.which("clippy-driver") is None:
        pytest.skip("clippy is not installed")
    folder = tmp_path_factory.mktemp("clippy")
    environment = os.environ | {"CLIPPY_CONF_DIR": str(ROOT)}

    def check(name, source, *options):
        (folder / f"{name}.rs").write_text(source)
        command = ["clippy-driver", f"{name}.rs", "--crate-type", "lib", "--edition", "2024", "--emit", "metadata"]
        return subprocess.run(
            [*command, "-L", ".", *options], cwd=folder, env=environment, capture_output=True, text=True, timeout=25
        )

    if "error: unknown" in (found := check("empty", "")).stderr or "is not installed" in found.stderr:
        pytest.skip("clippy is not installed")
    made = check("pyo3", stub([*REFUSED, "pyo3::ffi::PyDict_GetItemRef"]), "-A", "clippy::all")
    assert made.returncode == 0, made.stderr
    return lambda source: check("planted", source, "--extern", "pyo3=libpyo3.rmeta", "-D", "warnings")


@pytest.mark.native
def test_clippy_refuses_functions_of_the_c_api_that_only_a_gil_makes_right(clippy):
    def source(path):
        return f"/// # Safety\n/// Planted.\npub unsafe fn planted() {{ unsafe {{ {path}() }} }}"

    right = clippy(source("pyo3::ffi::PyDict_GetItemRef"))
    assert right.returncode == 0, right.stderr
    wrong = clippy(source("pyo3::ffi::PyDict_GetItem"))
    assert wrong.returncode == 1 and "use of a disallowed method `pyo3::ffi::PyDict_GetItem`" in wrong.stderr
    borrowed = [path for path in REFUSED if path.startswith("pyo3::ffi::")]
    assert {"pyo3::ffi::PyList_GetItem", "pyo3::ffi::PyWeakref_GetObject"} <= set(borrowed)
    calls = "".join(f"{path}();" for path in borrowed)
    every = clippy(f"/// # Safety\n/// Planted.\npub unsafe fn planted() {{ unsafe {{ {calls} }} }}")
    assert [path for path in borrowed if f"use of a disallowed method `{path}`" not in every.stderr] == []


# -- calls from wrong threads ----------------------------------------------------------------------------------------


def test_a_handle_that_another_thread_cancels_does_not_run(run):
    async def main():
        loop, ran = asyncio.get_running_loop(), []
        handles = [loop.call_soon(ran.append, 1), loop.call_later(0.01, ran.append, 2)]
        handles.append(in_thread(loop.call_soon_threadsafe, ran.append, 3))
        for handle in handles:
            in_thread(handle.cancel)
        await asyncio.sleep(0.05)
        assert ran == [] and all(in_thread(handle.cancelled) for handle in handles)

    run(main())


def test_a_loop_that_runs_can_be_asked_from_another_thread(run):
    async def main():
        loop = asyncio.get_running_loop()
        assert in_thread(loop.is_running) and not in_thread(loop.is_closed)
        assert in_thread(loop.time) > 0 and in_thread(loop.create_future).get_loop() is loop

    run(main())


def test_in_debug_mode_a_call_from_another_thread_raises(run):
    async def main():
        loop = asyncio.get_running_loop()
        # On a busy machine the threads take long, which debug mode would log.
        loop.slow_callback_duration = 60
        for call in (lambda: loop.call_soon(int), lambda: loop.call_later(1, int), lambda: loop.call_at(1, int)):
            with pytest.raises(RuntimeError, match="Non-thread-safe operation"):
                in_thread(call)

    run(main(), debug=True)


def test_a_transport_is_written_and_closed_by_another_thread(run):
    async def main():
        loop, lost = asyncio.get_running_loop(), asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_lost(self, error):
                assert error is None
                lost.set()

        ours, theirs = socket.socketpair()
        with theirs:
            theirs.setblocking(False)
            transport, _ = await loop.create_connection(Protocol, sock=ours)
            in_thread(transport.write, b"from a thread")
            assert await loop.sock_recv(theirs, 64) == b"from a thread"
            assert in_thread(transport.get_extra_info, "socket").fileno() == transport.get_extra_info("socket").fileno()
            in_thread(transport.close)
            assert in_thread(transport.is_closing) and in_thread(transport.get_write_buffer_size) == 0
            await asyncio.wait_for(lost.wait(), 10)

    run(main())


def test_a_result_that_another_thread_sets_wakes_the_task(run):
    async def main():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(future.set_result, 7))
        thread.start()
        assert await asyncio.wait_for(future, 10) == 7
        thread.join()

    run(main())


@pytest.mark.native
@pytest.mark.skipif(not FREE_THREADED, reason="with a GIL, the other thread has to wait for it")
def test_python_code_that_a_transport_calls_through_a_reader_leaves_the_loop_to_other_threads(run):
    """The transport is in a section of the loop, and within that in one of the reader. Both end for such a call."""
    answers, in_time = [], []

    class Waiter(asyncio.Future):
        def set_result(self, result):
            asks = threading.Thread(target=lambda: answers.append(transport.get_write_buffer_size()))
            asks.start()
            end = time.monotonic() + 5
            while not answers and time.monotonic() < end:
                pass  # a wait would let the other thread in
            in_time.extend(answers)
            asks.join()
            super().set_result(result)

    async def main():
        nonlocal transport
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await wakeloop.open_connection(sock=ours)
            transport = writer.transport
            reader._waiter = woken = Waiter(loop=asyncio.get_running_loop())
            theirs.send(b"x")
            await asyncio.wait_for(woken, 20)
            writer.close()
            await writer.wait_closed()

    transport = None
    run(main())
    assert in_time == answers == [0]


def test_calls_from_several_threads_each_keep_their_order(run):
    async def main():
        loop, seen, done = asyncio.get_running_loop(), [], asyncio.Event()

        def schedule(number):
            for count in range(500):
                loop.call_soon_threadsafe(seen.append, (number, count))

        def schedule_all():
            threads = [threading.Thread(target=schedule, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            loop.call_soon_threadsafe(done.set)

        last = threading.Thread(target=schedule_all)
        last.start()
        await asyncio.wait_for(done.wait(), 20)
        last.join()
        for number in range(4):
            assert [count for owner, count in seen if owner == number] == list(range(500))

    run(main())


# -- many loops ------------------------------------------------------------------------------------------------------


async def ring(number, loops, ready, rounds):
    """Counts to `rounds` with streams, timers and futures, and wakes the next loop in each round."""
    loop, woken, echoed = asyncio.get_running_loop(), 0, 0
    loops[number] = loop
    await loop.run_in_executor(None, ready.wait)

    def wake():
        nonlocal woken
        woken += 1

    async def echo(reader, writer):
        while data := await reader.readline():
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for _ in range(rounds):
        writer.write(b"line\n")
        echoed += await reader.readline() == b"line\n"
        loops[(number + 1) % len(loops)].call_soon_threadsafe(wake)
        handle = loop.call_later(10, wake)
        await asyncio.sleep(0)
        handle.cancel()
    writer.close()
    await writer.wait_closed()
    server.close()
    await server.wait_closed()
    while woken < rounds:
        await asyncio.sleep(0.001)
    # No loop closes before the others have stopped waking it.
    await loop.run_in_executor(None, ready.wait)
    return echoed, woken


def test_loops_in_several_threads_work_at_once_and_wake_each_other(run):
    count, rounds = 8, 60
    loops, ready = [None] * count, threading.Barrier(count)
    results = [None] * count

    def work(number):
        results[number] = run(ring(number, loops, ready, rounds))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(25)
    assert results == [(rounds, rounds)] * count


@pytest.mark.native  # asyncio's __del__ wakes nobody before 3.13, and calls Server._detach in the wrong thread since then
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
def test_wait_closed_ends_when_another_thread_collects_the_last_transport(loop, debug):
    class Forgotten(asyncio.Protocol):
        def connection_made(self, transport):
            transport.pause_reading()
            transports.append(transport)

    transports = []

    async def main():
        server = await loop.create_server(Forgotten, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as far:
            while not transports:
                await asyncio.sleep(0)
            server.close()
            waits = asyncio.create_task(server.wait_closed())
            await asyncio.sleep(0)
            assert waits.done() == (sys.version_info < (3, 12, 1)), "since 3.12.1 it waits for the connections"
            # In a while, when the loop is parked.
            collects = threading.Timer(0.05, transports.clear)
            collects.start()
            await asyncio.wait([waits], timeout=5)
            assert waits.done()
            await loop.run_in_executor(None, collects.join)
            assert far.recv(1) == b""

    loop.set_debug(debug)
    loop.slow_callback_duration = 10  # a busy machine may take long to start a thread
    loop.run_until_complete(main())


# -- floods ----------------------------------------------------------------------------------------------------------


@pytest.mark.native
@pytest.mark.skipif(not FREE_THREADED, reason="with a GIL, call_soon_threadsafe yields it")
def test_threads_that_flood_a_loop_are_held_back(loop):
    ended, lengths = threading.Event(), []

    def flood():
        while not ended.is_set():
            loop.call_soon_threadsafe(int)

    def look():
        lengths.append(len(loop._ready))
        loop.call_soon(look) if len(lengths) < 50 else loop.stop()

    threads = [threading.Thread(target=flood) for _ in range(2)]
    loop.call_soon(look)
    loop.call_soon(lambda: [thread.start() for thread in threads])
    try:
        loop.run_forever()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert max(lengths) < 200_000
