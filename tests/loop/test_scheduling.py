"""call_soon: order, iterations, contexts. Handles are in test_handles."""

import asyncio
import contextvars
import threading

import pytest

variable = contextvars.ContextVar("variable", default="unset")


def run_once(loop):
    """Runs one iteration, in the way of code that steps a loop."""
    loop.call_soon(loop.stop)
    loop.run_forever()


def test_callbacks_run_in_the_order_they_were_scheduled(loop):
    seen = []
    for number in range(1000):
        loop.call_soon(seen.append, number)
    run_once(loop)
    assert seen == list(range(1000))


@pytest.mark.parametrize("count", range(6))
def test_a_callback_gets_all_its_arguments(loop, count):
    seen = []
    loop.call_soon(lambda *args: seen.append(args), *range(count))
    run_once(loop)
    assert seen == [tuple(range(count))]


def test_a_callback_scheduled_by_a_callback_runs_in_the_next_iteration(loop):
    seen = []

    def first():
        seen.append("first")
        loop.call_soon(seen.append, "second")

    loop.call_soon(first)
    run_once(loop)
    assert seen == ["first"]
    run_once(loop)
    assert seen == ["first", "second"]


def test_stop_before_run_forever_runs_exactly_one_iteration(loop):
    seen = []

    def again():
        seen.append(1)
        loop.call_soon(again)

    loop.call_soon(again)
    loop.stop()
    loop.run_forever()
    assert seen == [1]
    loop.stop()
    loop.run_forever()
    assert seen == [1, 1]


def test_stop_lets_the_rest_of_the_iteration_run(loop):
    seen = []
    loop.call_soon(loop.stop)
    loop.call_soon(seen.append, "same turn")
    loop.run_forever()
    assert seen == ["same turn"]


def test_due_timers_run_after_the_callbacks_that_were_ready(loop):
    seen = []
    loop.call_later(0, seen.append, "timer")
    loop.call_soon(seen.append, "soon")
    run_once(loop)
    assert seen == ["soon", "timer"]


def test_a_thread_that_schedules_first_runs_first(loop):
    for _ in range(200):
        seen = []
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=(seen.append, "thread"))

        def schedule():
            thread.start()
            thread.join()
            loop.call_soon(seen.append, "loop")
            loop.call_soon(loop.stop)

        loop.call_soon(schedule)
        loop.run_forever()
        assert seen == ["thread", "loop"]


def test_an_endless_chain_of_callbacks_starves_neither_timers_nor_sockets(run):
    async def main():
        loop = asyncio.get_running_loop()
        ended = False

        def chain():
            if not ended:
                loop.call_soon(chain)

        async def echo(reader, writer):
            writer.write(await reader.readexactly(5))
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        chain()
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello")
            assert await reader.read() == b"hello"
            await asyncio.sleep(0.01)
        ended = True
        writer.close()
        server.close()
        await server.wait_closed()

    run(main())


def test_a_callback_runs_in_the_context_it_was_scheduled_in(loop):
    seen = []
    for value in ("one", "two"):
        variable.set(value)
        loop.call_soon(lambda: seen.append(variable.get()))
    variable.set("three")
    run_once(loop)
    assert seen == ["one", "two"]


def test_the_context_argument_is_the_context_of_the_callback(loop):
    context = contextvars.copy_context()
    loop.call_soon(variable.set, "inside", context=context)
    loop.call_later(0, variable.set, "timer", context=(later := contextvars.copy_context()))
    loop.call_soon_threadsafe(variable.set, "threadsafe", context=(safe := contextvars.copy_context()))
    run_once(loop)
    run_once(loop)
    assert [c[variable] for c in (context, later, safe)] == ["inside", "timer", "threadsafe"]


def test_a_context_of_none_is_the_context_of_the_caller(loop):
    """A future passes on the None of its add_done_callback."""
    seen, future = [], loop.create_future()

    def schedule():
        variable.set("caller")
        loop.call_soon(lambda: seen.append(("soon", variable.get())), context=None)
        loop.call_later(0, lambda: seen.append(("later", variable.get())), context=None)
        loop.call_at(0, lambda: seen.append(("at", variable.get())), context=None)
        loop.call_soon_threadsafe(lambda: seen.append(("threadsafe", variable.get())), context=None)
        future.add_done_callback(lambda done: seen.append((done.result(), variable.get())), context=None)
        future.set_result("future")

    contextvars.copy_context().run(schedule)
    loop.run_until_complete(asyncio.sleep(0.001))
    assert sorted(seen) == [(name, "caller") for name in ("at", "future", "later", "soon", "threadsafe")]


def test_a_context_variable_set_in_a_callback_stays_in_its_context(loop):
    before = variable.get()
    seen = []
    loop.call_soon(variable.set, "leaked?", context=contextvars.copy_context())
    loop.call_soon(lambda: seen.append(variable.get()), context=contextvars.copy_context())
    run_once(loop)
    assert seen == [before] and variable.get() == before


def test_callbacks_that_share_a_copy_of_the_context_do_not_see_each_other(loop):
    """call_soon copies the current context for every call: a value set in one callback is not visible in the next."""
    seen = []
    loop.call_soon(variable.set, "from the first")
    loop.call_soon(lambda: seen.append(variable.get()))
    before = variable.get()
    run_once(loop)
    assert seen == [before]


def test_an_already_entered_context_is_reported_and_the_loop_runs_on(loop, asyncio_log):
    context = contextvars.copy_context()
    seen = []

    def inside():
        loop.call_soon(seen.append, "not run", context=context)
        loop.call_soon(seen.append, "run")
        run_once(loop)

    context.run(inside)
    assert seen == ["run"]
    assert "already entered" in asyncio_log.text


def test_a_task_keeps_its_context_across_awaits(run):
    async def child(value):
        variable.set(value)
        for _ in range(3):
            await asyncio.sleep(0)
            assert variable.get() == value
        return value

    async def main():
        variable.set("parent")
        assert await asyncio.gather(*(child(n) for n in range(50))) == list(range(50))
        assert variable.get() == "parent"

    run(main())


def test_future_callbacks_run_in_order_and_in_a_later_iteration(run):
    async def main():
        loop = asyncio.get_running_loop()
        future, seen = loop.create_future(), []
        for number in range(5):
            future.add_done_callback(lambda future, number=number: seen.append((number, future.result())))
        future.set_result("result")
        assert seen == []
        await asyncio.sleep(0)
        assert seen == [(number, "result") for number in range(5)]

    run(main())


def test_create_future_and_create_task_make_asyncios_own(run):
    async def main():
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        assert type(future) is asyncio.Future and future.get_loop() is loop
        task = loop.create_task(asyncio.sleep(0, "slept"), name="named")
        assert type(task) is asyncio.Task and task.get_name() == "named" and task in asyncio.all_tasks()
        context = contextvars.copy_context()
        in_context = loop.create_task(set_variable("in the task"), context=context)
        assert await task == "slept"
        await in_context
        assert context[variable] == "in the task"

    async def set_variable(value):
        variable.set(value)

    run(main())


def test_many_tasks_that_yield_take_turns(run):
    async def main():
        seen = []

        async def worker(name):
            for step in range(3):
                seen.append((step, name))
                await asyncio.sleep(0)

        await asyncio.gather(*(worker(name) for name in range(100)))
        assert seen == [(step, name) for step in range(3) for name in range(100)]

    run(main())
