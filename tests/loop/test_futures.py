"""Each wait has its own future: what a program keeps of it, or sets on it, does not affect the next one."""

import asyncio
import contextlib
import gc
import socket
import weakref

import pytest

import wakeloop


@contextlib.contextmanager
def no_collection():
    """Without garbage collection: objects are freed by their reference count, or after the end of the block."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def turns(count=3):
    for _ in range(count):
        await asyncio.sleep(0)


class Reads:
    """A sequence of reads that wait. `waiting` shows the future of each."""

    def __init__(self, open_connection=None):
        self.open_connection = open_connection

    async def __aenter__(self):
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.writer = None
        if self.open_connection:
            self.reader, self.writer = await self.open_connection(sock=self.near)
        return self

    async def __aexit__(self, *exception):
        if self.writer:
            self.writer.close()
            with contextlib.suppress(ConnectionError):
                await self.writer.wait_closed()
        self.near.close()
        self.far.close()

    async def read(self):
        if self.open_connection:
            return await self.reader.readexactly(1)
        return await asyncio.get_running_loop().sock_recv(self.near, 1)

    async def one(self, look=lambda future: None):
        """Makes one read. `look` gets the future that it waits for."""
        task = asyncio.ensure_future(self.read())
        await turns()
        look(task._fut_waiter)
        self.far.send(b"x")
        assert await asyncio.wait_for(task, 10) == b"x"


KINDS = {"asyncio": asyncio.open_connection, "native": wakeloop.open_connection, "sock": None}


@pytest.fixture(params=KINDS)
def reads(request):
    return Reads(KINDS[request.param])


def test_each_wait_gets_a_fresh_future(run, reads):
    async def main():
        def look(future):
            seen.append((type(future), future.done(), future.get_loop() is asyncio.get_running_loop()))
            # asyncio's own sock_recv adds a callback of its own, before the task's.
            assert repr(future).startswith("<Future pending cb=[") and repr(future).endswith("Task.task_wakeup()]>")
            seen.append((future._result, future._exception, future._source_traceback))

        seen = []
        async with reads:
            for _ in range(5):
                await reads.one(look)
        assert seen[:2] == [
            (asyncio.Future, False, True),
            (None, None, None),
        ]
        assert seen == 5 * seen[:2]

    run(main())


def test_a_future_that_is_still_referenced_does_not_change(run, reads):
    async def main():
        held = []
        async with reads:
            for _ in range(300):
                await reads.one(held.append)
        # asyncio's own sock_recv passes the data in it.
        assert all(future.done() and future.result() in (None, b"x") for future in held)
        assert len(set(map(id, held))) == len(held)

    run(main())


def test_a_future_that_is_kept_forever_does_not_affect_others(run, reads):
    async def main():
        held = []
        async with reads:
            await reads.one(held.append)
            for _ in range(300):
                await reads.one(lambda future: held.append(id(future)))
        assert held[0].done() and id(held[0]) not in held[1:]

    run(main())


def test_attributes_set_on_a_future_do_not_appear_on_the_next(run, reads):
    async def main():
        async with reads:
            for number in range(5):

                def look(future, number=number):
                    assert not hasattr(future, "mark")
                    future.mark = number

                await reads.one(look)

    run(main())


def test_a_weak_reference_to_a_future_dies_with_its_last_reference(run, reads):
    async def main():
        references = []
        async with reads:
            with no_collection():
                for _ in range(5):
                    await reads.one(lambda future: references.append(weakref.ref(future)))
                await turns()
                assert [reference() for reference in references] == 5 * [None]

    run(main())


def test_the_callbacks_and_the_context_of_one_wait_do_not_come_back_in_the_next(run, reads):
    async def main():
        called = []
        async with reads:
            await reads.one(lambda future: future.add_done_callback(called.append))
            for _ in range(5):
                await reads.one()
        await turns()
        assert len(called) == 1 and called[0].done()

    run(main())


def test_a_wait_that_is_cancelled_leaves_nothing_to_the_next(run, reads):
    async def main():
        async with reads:
            for _ in range(3):
                await reads.one()
                waiting = asyncio.ensure_future(reads.read())
                await turns()
                waiting.cancel("no more")
                with pytest.raises(asyncio.CancelledError, match="no more"):
                    await waiting
                await reads.one()

    run(main())


def test_many_waits_at_once_are_each_woken(run):
    async def main():
        async with contextlib.AsyncExitStack() as stack:
            everyone = [await stack.enter_async_context(Reads(kind)) for kind in 100 * list(KINDS.values())]
            for _ in range(3):
                tasks = [asyncio.ensure_future(reads.read()) for reads in everyone]
                await turns()
                assert len({id(task._fut_waiter) for task in tasks}) == len(tasks)
                for reads in everyone:
                    reads.far.send(b"x")
                assert await asyncio.wait_for(asyncio.gather(*tasks), 20) == len(tasks) * [b"x"]

    run(main())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("closed", [True, False])
def test_a_loop_without_references_is_freed_after_it_has_woken_a_task(loop_factory, kind, closed):
    async def main():
        async with Reads(kind) as reads:
            for _ in range(5):
                await reads.one()

    loop = loop_factory()
    loop.run_until_complete(main())
    gone = weakref.ref(loop)
    if closed:
        loop.close()
        del loop
        gc.collect()
    else:
        with pytest.warns(ResourceWarning, match="unclosed event loop"):
            del loop
            gc.collect()
    assert gone() is None


def test_an_overridden_create_future_is_called_for_each_wait(loop_factory, reads):
    asked = []
    with contextlib.closing(loop_factory()) as sample:
        base = type(sample)

    class Loop(base):
        def get_debug(self):
            asked.append(None)
            return super().get_debug()

    async def main():
        async with reads:
            for _ in range(10):
                await reads.one()
                counts.append(len(asked))

    counts = []
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())
    rounds = {after - before for before, after in zip(counts[2:], counts[3:], strict=False)}
    assert len(rounds) == 1 and rounds.pop() > 0
