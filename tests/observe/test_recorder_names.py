"""The names of callbacks, tasks and threads in the flight recorder's traces."""

import asyncio
import collections
import functools
import itertools
import threading

import pytest
import wakeloop

from tests.support.recorder import Truth, record, recorded, recorder_stops, trace_path  # noqa: F401

pytestmark = pytest.mark.native

HOSTILE = [
    'quote " backslash \\',
    "line\nfeed\ttab\0nul",
    "\x1b[31mred\x1b[0m\x07\x9b",
    "\udc80lone\ud800",
    "é ü 漢 \U0001f600",
    "</script>{}[],:",
    "\u2028\u2029\x85\x7f",
    " ",
]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_no_name_can_break_the_trace(run, path, name):
    def callback():
        pass

    async def coroutine():
        pass

    callback.__qualname__ = callback.__module__ = coroutine.__qualname__ = name

    async def main():
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.create_task(coroutine(), name=name)

    thread = threading.current_thread()
    before, thread.name = thread.name, name
    try:
        trace = record(path, run, main())
    finally:
        thread.name = before
    shown = name.encode("utf-8", "backslashreplace").decode()
    assert trace.find(shown)[0]["args"] == {"module": shown}
    assert trace.find(f"{shown}: {shown}")[0]["args"] == {"task": shown, "coroutine": shown}
    assert f"event loop {shown}".rstrip() in trace.threads.values()


def test_an_empty_and_a_very_long_name_are_recorded(run, path):
    def callback():
        pass

    async def main():
        for name in ("", "x" * 100_000):
            callback.__qualname__ = name
            asyncio.get_running_loop().call_soon(callback)
            await asyncio.sleep(0)

    with wakeloop.record(path):
        run(main())
    text = path.read_text()
    assert '"name":""' in text and "x" * 200 + "…" in text and "x" * 201 not in text


def test_every_kind_of_callable_has_a_name_and_none_is_asked(run, path):
    """No attribute is looked up that the program could define."""

    class Callable:
        def __call__(self, *_):
            pass

        def __getattribute__(self, name):
            raise AssertionError(f"{name} was looked up")

        def method(self):
            pass

    class Text(str):
        def __hash__(self):
            raise AssertionError("it was hashed")

        __eq__ = __str__ = __repr__ = __len__ = __hash__

    class Task(asyncio.Task):
        def get_name(self):
            raise AssertionError("its name was asked for")

        get_coro = get_name

    async def coroutine():
        await asyncio.sleep(0)

    def function():
        pass

    function.__qualname__ = Text("Text.function")
    method = functools.partial(Callable.method, Callable())
    # More than are looked into.
    nested = functools.reduce(lambda inner, _: functools.partial(functools.partial(inner)), range(10), Callable())
    future = None

    async def main():
        nonlocal future
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        for callback in (Callable(), function, functools.partial(function), method, nested, collections.deque().clear):
            loop.call_soon(callback)
        loop.call_soon(future.set_result, None)
        await future
        await Task(coroutine(), loop=loop, name="its name")

    names = record(path, run, main()).names()
    prefix = f"{test_every_kind_of_callable_has_a_name_and_none_is_asked.__name__}.<locals>."
    assert f"<{Callable.__name__}>" in names and names.count("Text.function") == 2
    assert f"{prefix}Callable.method" in names
    assert "collections.deque.clear" in names and "_asyncio.Future.set_result" in names
    assert names.count(f"its name: {prefix}coroutine") >= 2


def test_tasks_that_reuse_an_address_have_their_own_names(run, path):
    async def one():
        await asyncio.sleep(0)

    async def other():
        await asyncio.sleep(0)

    one.__qualname__, other.__qualname__ = "one", "other"
    addresses, expected = [], []

    async def main():
        for index in range(300):
            # Default names, names of their own, and one name for all; with two coroutines in turn.
            coroutine = (one if index % 2 else other)()
            kind = coroutine.__qualname__
            name = [None, f"task {index}", "task"][index % 3]
            task = asyncio.create_task(coroutine, name=name)
            addresses.append(id(task))
            expected.append(f"{task.get_name()}: {kind}")
            await task
            del task, coroutine

    names = record(path, run, main()).names(category="task")
    assert len(set(addresses)) < len(addresses) / 2
    steps = [name for name, _ in itertools.groupby(name for name in names if name.endswith((": one", ": other")))]
    assert steps == expected


def test_a_task_that_is_renamed_has_its_new_name_from_then_on(run, path):
    async def main():
        task = asyncio.current_task()
        for name in ("first", "second"):
            task.set_name(name)
            await asyncio.sleep(0)

    main.__qualname__ = "main"
    names = record(path, run, main()).names(category="task")
    assert [name for name, _ in itertools.groupby(names) if name.endswith("main")][-2:] == ["first: main", "second: main"]


def test_functions_that_reuse_an_address_have_their_own_names(loop, path):
    expected = [f"function {index}" for index in range(100)]
    with recorded(path) as found:
        for name in expected:
            code = compile("def made(): pass", "<made>", "exec")
            namespace = {}
            exec(code, namespace)
            namespace["made"].__qualname__ = name
            loop.call_soon(namespace.pop("made"))
            loop.run_until_complete(asyncio.sleep(0))
    assert [name for name in found[0].names(category="callback") if name.startswith("function ")] == expected


def test_more_names_than_are_kept_do_not_grow_without_bound(loop, path):
    with recorded(path, size=1 << 14) as found:
        for index in range(20_000):
            loop.call_soon(Truth().callback(f"name {index}", 0))
            if index % 50 == 49:
                loop.run_until_complete(asyncio.sleep(0))
    names = [name for name in found[0].names(category="callback") if name.startswith("name ")]
    assert names and names == [f"name {index}" for index in range(20_000 - len(names), 20_000)]
