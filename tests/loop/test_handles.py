"""Handle and TimerHandle: what call_soon and its relatives return."""

import asyncio
import contextvars
import gc
import operator
import re
import sys
import weakref

import pytest

from tests.support.script import run_script


def function(*args):
    pass


class Callback:
    """A callable that can be weakly referenced."""

    def __call__(self, *args):
        pass


def test_handles_are_asyncios(loop):
    assert isinstance(loop.call_soon(function), asyncio.Handle)
    assert isinstance(loop.call_soon_threadsafe(function), asyncio.Handle)
    for handle in (loop.call_later(10, function), loop.call_later(0, function), loop.call_at(0, function)):
        assert isinstance(handle, asyncio.TimerHandle)
        handle.cancel()


def test_a_cancelled_handle_does_not_run(loop):
    seen = []
    handles = [loop.call_soon(seen.append, number) for number in range(4)]
    handles[1].cancel()
    handles[1].cancel()
    loop.call_soon(handles[2].cancel)
    last = loop.call_soon(seen.append, "last")
    loop.call_soon(loop.stop)
    handles[3].cancel()
    loop.run_forever()
    assert seen == [0, 2, "last"]
    assert [handle.cancelled() for handle in handles] == [False, True, True, True]
    assert last.cancelled() is False


def test_a_callback_can_cancel_one_that_is_ready_in_the_same_iteration(loop):
    seen = []
    loop.call_soon(lambda: victim.cancel())
    victim = loop.call_soon(seen.append, "cancelled too late")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == []


def test_a_callback_can_cancel_its_own_handle_while_it_runs(loop):
    seen = []

    def callback(argument):
        handle.cancel()
        gc.collect()
        seen.append(argument)

    handle = loop.call_soon(callback, "argument")
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert seen == ["argument"]


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_cancel_releases_the_callback_and_its_arguments(loop, schedule):
    callback, argument = Callback(), Callback()
    watched = [weakref.ref(callback), weakref.ref(argument)]
    delay = (100,) if schedule == "call_later" else ()
    handle = getattr(loop, schedule)(*delay, callback, argument)
    handle.cancel()
    del callback, argument
    assert [reference() for reference in watched] == [None, None]


def test_a_handle_that_ran_is_not_kept_by_the_loop(loop):
    callback = Callback()
    watched = weakref.ref(callback)
    loop.call_soon(callback)
    loop.call_soon(loop.stop)
    del callback
    loop.run_forever()
    assert watched() is None


def test_repr_names_the_callback_and_its_place(loop):
    line = function.__code__.co_firstlineno
    assert repr(loop.call_soon(function)) == f"<Handle function() at {__file__}:{line}>"
    for arguments in ((1,), ("text", b"bytes"), (1, 2, 3, 4, 5)):
        assert repr(loop.call_soon(function, *arguments)) == repr(asyncio.Handle(function, arguments, loop))
    timer = loop.call_at(loop.time() + 50, function)
    assert repr(timer) == f"<TimerHandle when={timer.when()} function() at {__file__}:{line}>"
    timer.cancel()
    assert repr(timer) == f"<TimerHandle cancelled when={timer.when()}>"
    handle = loop.call_soon(function)
    handle.cancel()
    assert repr(handle) == "<Handle cancelled>"


def test_repr_in_debug_mode_shows_where_it_was_created(loop):
    loop.set_debug(True)
    line = sys._getframe().f_lineno + 1
    handle = loop.call_soon(function)
    assert repr(handle).endswith(f" created at {__file__}:{line}>")
    handle.cancel()
    assert repr(handle).startswith("<Handle cancelled function() at ")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="get_context is new in 3.12")
def test_get_context_is_the_context_of_the_callback(loop):
    context = contextvars.copy_context()
    assert loop.call_soon(function, context=context).get_context() is context
    timer = loop.call_later(10, function, context=context)
    assert timer.get_context() is context
    timer.cancel()
    assert isinstance(loop.call_soon(function).get_context(), contextvars.Context)


def test_timer_handle_when_is_the_deadline(loop):
    when = loop.time() + 100
    at = loop.call_at(when, function)
    assert at.when() == when and isinstance(at.when(), float)
    before = loop.time()
    later = loop.call_later(5, function)
    assert before + 5 <= later.when() <= loop.time() + 5
    whole = loop.call_at(7, function)
    assert whole.when() == 7 and isinstance(whole.when(), int) and "when=7 " in repr(whole)
    for timer in (at, later):
        timer.cancel()


def test_timer_handles_are_ordered_by_deadline(loop):
    early, late = loop.call_at(loop.time() + 100, function), loop.call_at(loop.time() + 200, function)
    assert early < late and early <= late and late > early and late >= early
    assert early != late and early == early and hash(early) != hash(late)
    assert sorted([late, early]) == [early, late]
    same = loop.call_at(early.when(), function)
    assert same <= early and same >= early and not same < early
    assert same == early and hash(same) == hash(early)
    with pytest.raises(TypeError):
        early < 1  # noqa: B015
    assert early != 1
    for timer in (early, late, same):
        timer.cancel()


def test_a_cancelled_timer_can_be_asked_and_cancelled_again(loop):
    timer = loop.call_later(0.001, function)
    when = timer.when()
    loop.run_until_complete(asyncio.sleep(0.01))
    timer.cancel()
    timer.cancel()
    assert timer.cancelled() and timer.when() == when


def test_handles_outlive_their_loop(loop_factory):
    loop = loop_factory()
    soon, timer = loop.call_soon(function), loop.call_later(100, function)
    loop.close()
    del loop
    gc.collect()
    soon.cancel()
    timer.cancel()
    assert soon.cancelled() and timer.cancelled()
    repr(soon), repr(timer), timer.when()


@pytest.mark.parametrize("schedule", ["call_soon(", "call_later(100, "])
def test_a_long_chain_of_handles_is_freed_without_recursion(loop_name, schedule):
    """Each handle is an argument of the next one. Freeing them recursively would overflow the stack."""
    body = f"""
        loop, handle = new_loop(), None
        for _ in range(300_000):
            handle = loop.{schedule}print, handle)
        handle = None
        loop.close()
        print("closed")
    """
    outcome = run_script(loop_name, body)
    assert (outcome.out, outcome.err, outcome.code) == ("closed\n", "", 0), outcome


def test_a_timer_kept_by_what_it_calls_is_collected_with_its_loop(loop_factory):
    watched = []
    for _ in range(10):
        loop, callback = loop_factory(), Callback()
        callback.handle = loop.call_later(100, callback)
        watched.append(weakref.ref(callback))
        loop.close()
        del loop, callback
    gc.collect()
    assert [reference() for reference in watched] == [None] * 10


@pytest.mark.parametrize("end", ["cancelled", "ran"])
def test_a_handle_in_a_cycle_through_its_context_is_collected(run, end):
    variable, watched = contextvars.ContextVar("variable"), []

    async def request():
        thing = Callback()
        variable.set(thing)
        watched.append(weakref.ref(thing))
        thing.handle = asyncio.get_running_loop().call_later(0.001 if end == "ran" else 100, function)
        await asyncio.sleep(0.005)
        if end == "cancelled":
            thing.handle.cancel()

    async def main():
        await asyncio.gather(*(request() for _ in range(10)))
        await asyncio.sleep(0)
        gc.collect()
        assert [reference() for reference in watched] == [None] * 10, "while the loop runs"

    run(main())


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_a_handle_that_ran_in_debug_mode_is_collected_with_its_callback(loop, schedule):
    """In debug mode a handle keeps its callback to the end."""
    loop.set_debug(True)
    delay = (0,) if schedule == "call_later" else ()
    watched = []
    for _ in range(10):
        callback = Callback()
        callback.handle = getattr(loop, schedule)(*delay, callback)
        watched.append(weakref.ref(callback))
        del callback
    loop.run_until_complete(asyncio.sleep(0.005))
    gc.collect()
    assert [reference() for reference in watched] == [None] * 10


@pytest.mark.parametrize("other", [5, None, "text", object()], ids=lambda other: type(other).__name__)
@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
def test_a_comparison_of_a_timer_with_something_else_names_its_class_as_asyncio_does(loop, compare, other):
    timer = loop.call_later(10, function)
    sign = {operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">="}[compare]
    text = f"'{sign}' not supported between instances of 'TimerHandle' and '{type(other).__name__}'"
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        compare(timer, other)
    timer.cancel()
