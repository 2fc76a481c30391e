"""The context of a callback, with the scratch context and with a real copy.

Every test runs on asyncio as well: what holds there must hold here.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import gc
import threading
import weakref

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED
from wakeloop import _core

variable: contextvars.ContextVar[object] = contextvars.ContextVar("variable", default="default")


@pytest.fixture(params=["asyncio", "copies", "scratch"])
def loop(request):
    if request.param == "asyncio":
        loop = asyncio.SelectorEventLoop()
    else:
        on = _core._context_scratch(request.param == "scratch")
        if request.param == "scratch" and not on:
            pytest.skip("this interpreter's contexts are laid out otherwise")
        loop = wakeloop.new_event_loop()
    yield loop
    loop.close()
    _core._context_scratch(True)


def run(loop, *callbacks):
    for callback in callbacks:
        loop.call_soon(callback)
    loop.call_soon(loop.call_soon, loop.stop)
    loop.run_forever()


@pytest.mark.skipif(FREE_THREADED, reason="contexts are copied on free-threaded builds of Python")
def test_the_scratch_context_is_in_use_on_every_version_that_we_know():
    assert _core._context_scratch(True)


def test_a_callback_sees_the_variables_of_the_moment_it_was_scheduled(loop):
    seen = []

    def schedule(value):
        variable.set(value)
        loop.call_soon(lambda: seen.append(variable.get()))
        loop.call_later(0, lambda: seen.append(variable.get()))
        loop.call_soon_threadsafe(lambda: seen.append(variable.get()))
        variable.set("later")

    contextvars.copy_context().run(schedule, "first")
    contextvars.copy_context().run(schedule, "second")
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    assert sorted(seen) == ["first"] * 3 + ["second"] * 3


def test_a_context_variable_set_in_a_callback_is_not_visible_elsewhere(loop):
    seen = []
    run(loop, lambda: variable.set("mine"), lambda: seen.append(variable.get()), lambda: variable.set("other"))
    assert seen == ["default"]
    assert variable.get() == "default"


def test_a_context_variable_set_in_a_callback_is_visible_in_callbacks_it_schedules(loop):
    seen = []

    def first():
        variable.set("set")
        loop.call_soon(lambda: seen.append(variable.get()))

    run(loop, first)
    assert seen == ["set"]


def test_a_context_variable_token_is_refused_in_another_callback(loop):
    tokens, errors = [], []

    def reset():
        try:
            variable.reset(tokens[0])
        except ValueError as error:
            errors.append(error)

    run(loop, lambda: tokens.append(variable.set("a")), reset)
    assert len(errors) == 1 and "different Context" in str(errors[0])


def test_a_context_variable_token_works_in_its_own_callback(loop):
    seen = []

    def both():
        token = variable.set("a")
        variable.reset(token)
        seen.append(variable.get())

    run(loop, both, both)
    assert seen == ["default", "default"]


def test_a_copy_of_the_current_context_outlives_the_callback(loop):
    copies = []

    def keep():
        variable.set("kept")
        copies.append(contextvars.copy_context())

    run(loop, keep, lambda: variable.set("other"))
    assert copies[0][variable] == "kept"


def test_a_callback_can_run_another_context_and_schedule_from_it(loop):
    seen = []
    other = contextvars.copy_context()
    other.run(variable.set, "other")

    def callback():
        variable.set("mine")
        other.run(loop.call_soon, lambda: seen.append(variable.get()))
        loop.call_soon(lambda: seen.append(variable.get()))

    run(loop, callback)
    assert seen == ["other", "mine"]


@pytest.mark.skipif(not hasattr(asyncio.Handle, "get_context"), reason="get_context is new in 3.12")
def test_a_handle_shows_one_context_and_runs_in_it(loop):
    seen = []
    handle = loop.call_soon(lambda: seen.append(variable.get()))
    context = handle.get_context()
    assert type(context) is contextvars.Context
    assert handle.get_context() is context
    context.run(variable.set, "put there")
    run(loop)
    assert seen == ["put there"]


def test_a_given_context_keeps_what_the_callback_sets(loop):
    context = contextvars.copy_context()
    loop.call_soon(variable.set, "kept", context=context)
    run(loop)
    assert context[variable] == "kept"


@pytest.mark.skipif(not hasattr(asyncio.Handle, "get_context"), reason="get_context is new in 3.12")
def test_the_exception_handler_runs_in_the_context_of_the_failed_callback(loop):
    seen = []
    loop.set_exception_handler(lambda loop, context: seen.append((variable.get(), type(context["handle"]._context))))

    def fail():
        variable.set("failed")
        raise ValueError

    run(loop, fail, fail)
    assert seen == [("failed", contextvars.Context)] * 2


@pytest.mark.skipif(not hasattr(asyncio.Handle, "get_context"), reason="get_context is new in 3.12")
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize("way", ["call_soon", "call_later", "call_soon_threadsafe", "add_reader"])
def test_the_exception_handler_runs_in_the_context_of_a_callback_that_cancelled_itself_and_failed(loop, way, debug):
    seen = []
    loop.set_debug(debug)
    loop.set_exception_handler(lambda loop, context: seen.append((variable.get(), context["handle"].cancelled())))
    one, other = socket.socketpair()

    def fail():
        variable.set("failed")
        if way == "add_reader":
            loop.remove_reader(one)
        else:
            handle.cancel()
        raise ValueError

    with one, other:
        if way == "add_reader":
            loop.add_reader(one, fail)
            other.send(b"data")
        else:
            handle = getattr(loop, way)(*[0] * (way == "call_later"), fail)
        loop.run_until_complete(asyncio.sleep(0.01))
    assert seen == [("failed", True)]


def test_a_loop_inside_a_callback_of_another_keeps_the_contexts_apart(loop):
    seen = []

    def outer():
        variable.set("outer")
        inner = type(loop)()

        def work():
            inner.call_soon(lambda: (seen.append(variable.get()), variable.set("inner"), inner.stop()))
            inner.run_forever()
            inner.close()

        thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
        thread.start()
        thread.join()
        seen.append(variable.get())

    run(loop, outer)
    assert seen == ["outer", "outer"]


def test_loops_in_two_threads_do_not_share_a_context(loop):
    wrong = []
    start = threading.Barrier(2)

    def work(name):
        mine = type(loop)()
        left = 300

        def step():
            nonlocal left
            variable.set(name)
            # Lets the other thread run in the middle of the callback.
            threading.Event().wait(0)
            if variable.get() is not name:
                wrong.append(variable.get())
            left -= 1
            mine.call_soon(step) if left else mine.stop()

        start.wait()
        mine.call_soon(step)
        mine.run_forever()
        mine.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_context_value_is_freed_after_the_last_callback_that_uses_it(loop):
    class Value:
        pass

    def schedule():
        value = Value()
        variable.set(value)
        loop.call_soon(lambda: None)
        loop.call_later(0, lambda: None)
        return weakref.ref(value)

    value = contextvars.Context().run(schedule)
    loop.call_later(0.01, loop.stop)
    loop.run_forever()
    gc.collect()
    assert value() is None


def test_a_cancelled_callback_releases_its_context_values(loop):
    class Value:
        pass

    def schedule():
        value = Value()
        variable.set(value)
        return weakref.ref(value), loop.call_later(60, print)

    value, handle = contextvars.Context().run(schedule)
    handle.cancel()
    run(loop)
    gc.collect()
    # asyncio's handles keep the context as long as the handle is referenced.
    del handle
    gc.collect()
    assert value() is None


def test_a_cycle_through_a_context_variable_is_collected_with_its_loop():
    _core._context_scratch(True)
    loop = wakeloop.new_event_loop()
    holder = type("Holder", (), {})()
    holder.loop = loop

    def schedule():
        variable.set(holder)
        loop.call_later(60, print)

    contextvars.Context().run(schedule)
    gone = weakref.ref(holder)
    loop.close()
    del holder, loop
    gc.collect()
    assert gone() is None


def test_a_context_argument_that_is_not_a_context_is_a_type_error(loop):
    errors = []
    loop.set_exception_handler(lambda loop, context: errors.append(context["exception"]))
    loop.call_soon(print, context=object())
    run(loop)
    assert len(errors) == 1


class Recording:
    """Runs callbacks as a context does, without being one."""

    def __init__(self):
        self.ran = []

    def run(self, callback, *arguments):
        self.ran.append((callback, arguments))
        return callback(*arguments)


@pytest.mark.parametrize("count", [0, 1, 3, 5])
@pytest.mark.parametrize("method", ["call_soon", "call_soon_threadsafe", "call_later", "call_at"])
def test_a_callback_runs_by_the_run_of_an_object_in_place_of_a_context(loop, method, count):
    context, seen = Recording(), []
    arguments = tuple(range(count))

    def callback(*given):
        seen.append(given)
        loop.call_soon(loop.stop)

    leading = {"call_later": (0,), "call_at": (loop.time(),)}.get(method, ())
    getattr(loop, method)(*leading, callback, *arguments, context=context)
    loop.run_forever()
    assert seen == [arguments] and context.ran == [(callback, arguments)]


def test_a_task_steps_by_the_run_of_an_object_in_place_of_a_context(loop):
    async def main():
        await asyncio.sleep(0)
        return 5

    context = Recording()
    assert loop.run_until_complete(loop.create_task(main(), context=context)) == 5
    assert len(context.ran) == 2


@pytest.mark.parametrize("context", [3, "text", object()])
def test_an_object_without_run_in_place_of_a_context_is_reported(loop, context):
    reported = []
    loop.set_exception_handler(lambda loop, context: reported.append(context["exception"]))
    loop.call_soon(print, context=context)
    loop.call_soon(loop.stop)
    loop.run_forever()
    (error,) = reported
    assert type(error) is AttributeError and "has no attribute 'run'" in str(error)
