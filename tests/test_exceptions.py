"""What happens to an exception nobody awaits: the exception handler and its default."""

import asyncio
import gc

import pytest

from tests.test_scheduling import run_once


def fail(*args):
    raise ZeroDivisionError("failed")


def test_the_loop_lives_and_the_rest_of_the_turn_runs(loop):
    problems, seen = [], []
    loop.set_exception_handler(lambda loop, context: problems.append(context["exception"]))
    for number in range(5):
        loop.call_soon(fail)
        loop.call_soon(seen.append, number)
    run_once(loop)
    assert seen == list(range(5)) and len(problems) == 5


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe", "call_at"])
def test_the_context_names_message_exception_and_handle(loop, schedule):
    contexts = []
    loop.set_exception_handler(lambda loop, context: contexts.append((loop, context)))
    delay = (0,) if schedule in ("call_later", "call_at") else ()
    handle = getattr(loop, schedule)(*delay, fail, 1)
    run_once(loop)
    (reported_by, context), = contexts
    assert reported_by is loop
    assert context["message"].startswith("Exception in callback fail(") and __file__ in context["message"]
    assert isinstance(context["exception"], ZeroDivisionError)
    assert context["handle"] is handle


@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_the_default_handler_logs_as_asyncio_does(loop, asyncio_log, schedule):
    delay = (0,) if schedule == "call_later" else ()
    getattr(loop, schedule)(*delay, fail)
    asyncio_log.clear()
    run_once(loop)
    (record,) = asyncio_log.records
    assert record.name == "asyncio" and record.levelname == "ERROR"
    first, second = record.getMessage().splitlines()
    line = fail.__code__.co_firstlineno
    assert first == f"Exception in callback fail() at {__file__}:{line}"
    assert second.startswith("handle: <TimerHandle when=" if delay else "handle: <Handle fail() at ")
    assert record.exc_info[0] is ZeroDivisionError
    assert record.exc_info[2].tb_next is not None or record.exc_info[2] is not None


def test_the_default_handler_can_be_called_and_restored(loop, asyncio_log):
    assert loop.get_exception_handler() is None
    loop.set_exception_handler(lambda loop, context: loop.default_exception_handler(context))
    asyncio_log.clear()
    loop.call_soon(fail)
    run_once(loop)
    assert "Exception in callback fail()" in asyncio_log.text
    loop.set_exception_handler(None)
    assert loop.get_exception_handler() is None
    with pytest.raises(TypeError, match="A callable object or None is expected"):
        loop.set_exception_handler("handler")


def test_a_handler_that_fails_is_logged_and_the_loop_lives(loop, asyncio_log):
    seen = []

    def handler(loop, context):
        raise KeyError("in the handler")

    loop.set_exception_handler(handler)
    loop.call_soon(fail)
    loop.call_soon(seen.append, "alive")
    run_once(loop)
    assert seen == ["alive"]
    assert "Unhandled error in exception handler" in asyncio_log.text and "in the handler" in asyncio_log.text


@pytest.mark.parametrize("exception", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_leaves_the_loop(loop, exception):
    def end():
        raise exception

    seen = []
    loop.call_soon(end)
    loop.call_soon(seen.append, "next run")
    with pytest.raises(exception):
        loop.run_forever()
    assert not loop.is_running()
    run_once(loop)
    assert seen == ["next run"]


def test_any_other_base_exception_goes_to_the_handler(loop):
    class Odd(BaseException):
        pass

    def raise_odd():
        raise Odd

    problems = []
    loop.set_exception_handler(lambda loop, context: problems.append(type(context["exception"])))
    loop.call_soon(raise_odd)
    run_once(loop)
    assert problems == [Odd]


def test_a_future_whose_exception_nobody_saw_is_reported(run, asyncio_log):
    async def main():
        asyncio.get_running_loop().create_future().set_exception(KeyError("never seen"))
        gc.collect()
        await asyncio.sleep(0)

    run(main())
    assert "Future exception was never retrieved" in asyncio_log.text


def test_a_task_whose_exception_nobody_saw_is_reported(run, asyncio_log):
    async def failing():
        raise KeyError("never seen")

    async def main():
        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        del task
        gc.collect()

    run(main())
    assert "Task exception was never retrieved" in asyncio_log.text


def test_a_failing_watcher_is_reported_with_its_handle(loop):
    from tests.support.sockets import socketpair

    contexts = []
    loop.set_exception_handler(lambda loop, context: (contexts.append(context), loop.stop()))
    with socketpair() as (near, far):
        loop.add_reader(near, fail)
        far.send(b"x")
        loop.run_forever()
        loop.remove_reader(near)
    assert contexts[0]["message"].startswith("Exception in callback fail()")
    assert isinstance(contexts[0]["handle"], asyncio.Handle)


def test_exceptions_do_not_keep_the_callbacks_arguments(loop):
    import weakref

    class Thing:
        pass

    thing = Thing()
    watched = weakref.ref(thing)
    loop.set_exception_handler(lambda loop, context: None)
    loop.call_soon(fail, thing)
    run_once(loop)
    del thing
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("debug", [False, True])
def test_the_arguments_of_a_failed_callback_are_named_as_asyncio_names_them(loop, loop_name, debug):
    """Since 3.13 in debug mode only, because they may be secret."""
    messages = []

    def told(loop, context):
        messages.append(context["message"])

    def fail(secret):
        raise ValueError

    reference = asyncio.SelectorEventLoop()
    try:
        for each in (loop, reference):
            each.set_debug(debug)
            each.set_exception_handler(told)
            each.call_soon(fail, "the password")
            each.call_soon(each.stop)
            each.run_forever()
    finally:
        reference.close()
    assert messages[0] == messages[1]
