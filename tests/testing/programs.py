"""Programs drawn at random, for the test of determinism.

A program is a few tasks that share locks, queues, events and futures, and do a few operations each. It is built from
its number alone. Whatever happens in it ends in its journal: a run returns the journal, which has no addresses.

No operation waits for ever by itself: each wait has a timeout. So a program always ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import socket

#: Few delays, so that many deadlines are the same.
DELAYS = (0, 0, 0.001, 0.5, 1, 1, 2)

depth = contextvars.ContextVar("depth", default=0)


class Program:
    """One program. Call it to get its coroutine.

    Without ties it is one that asyncio runs in the same way each time: no two deadlines are the same, because asyncio's
    heap does not keep their order; no job runs in a thread; and no set is iterated over.
    """

    def __init__(self, number, ties=True):
        self.number, self.ties = number, ties

    def __call__(self):
        return self.run()

    async def run(self):
        # The choices belong to the program: each task draws from a generator of its own, in whatever order tasks run.
        choices = random.Random(f"program {self.number}")
        self.journal = []
        self.lock = asyncio.Lock()
        self.semaphore = asyncio.Semaphore(2)
        self.condition = asyncio.Condition()
        self.event = asyncio.Event()
        self.queue = asyncio.Queue(choices.choice([0, 1, 3]))
        self.futures = [asyncio.get_running_loop().create_future() for _ in range(3)]
        self.tasks = []
        for number in range(choices.randrange(2, 6)):
            self.spawn(f"{number}", choices)
        while pending := [task for task in self.tasks if not task.done()]:
            await asyncio.wait(pending)
        for future in self.futures:
            future.cancel()
        return self.journal

    def spawn(self, name, choices):
        operations = choices.choices(list(OPERATIONS), list(OPERATIONS.values()), k=choices.randrange(2, 8))
        if not self.ties:
            operations = [each for each in operations if each not in ("job", "look_up", "completed")]
        task = asyncio.create_task(self.work(name, operations, random.Random(choices.random())), name=name)
        self.tasks.append(task)

    async def work(self, name, operations, choices):
        depth.set(depth.get() + 1)
        for operation in operations:
            try:
                async with asyncio.timeout(self.delay(choices, [0.5, 1, 3])):
                    result = await getattr(self, operation)(name, choices)
            except Exception as error:
                result = type(error).__name__
            except asyncio.CancelledError:
                self.note(name, operation, "cancelled")
                raise
            self.note(name, operation, result)

    def note(self, *what):
        self.journal.append((round(asyncio.get_running_loop().time(), 6), *what))

    def delay(self, choices, delays=DELAYS):
        chosen = choices.choice(delays)
        return chosen if self.ties or not chosen else chosen + choices.random() / 100

    def future(self, choices):
        return choices.choice(self.futures)

    # -- what a task does --------------------------------------------------------------------------------------------

    async def sleep(self, name, choices):
        await asyncio.sleep(self.delay(choices))

    async def hold(self, name, choices):
        async with self.lock:
            await asyncio.sleep(self.delay(choices))

    async def use(self, name, choices):
        async with self.semaphore:
            await asyncio.sleep(self.delay(choices))

    async def wait_for_condition(self, name, choices):
        async with self.condition:
            await self.condition.wait()

    async def notify(self, name, choices):
        async with self.condition:
            self.condition.notify(choices.randrange(1, 3))

    async def wait_for_event(self, name, choices):
        return await self.event.wait()

    async def toggle(self, name, choices):
        self.event.set() if choices.random() < 0.6 else self.event.clear()

    async def put(self, name, choices):
        await self.queue.put(name)

    async def get(self, name, choices):
        item = await self.queue.get()
        self.queue.task_done()
        return item

    async def resolve(self, name, choices):
        future = self.future(choices)
        if not future.done():
            future.set_result(name)

    async def wait_for_future(self, name, choices):
        return await asyncio.shield(self.future(choices))

    async def first_of(self, name, choices):
        done, pending = await asyncio.wait(
            [asyncio.ensure_future(asyncio.sleep(self.delay(choices), number)) for number in range(3)],
            timeout=self.delay(choices, [0.5, 1]),
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending if self.ties else sorted(pending, key=lambda task: int(task.get_name().split("-")[1])):
            task.cancel()
        if pending:
            await asyncio.wait(pending)
        # The order of these sets is part of what must not differ between two runs.
        results = [task.result() for task in done]
        return results if self.ties else sorted(results), len(pending)

    async def gather(self, name, choices):
        delays = [self.delay(choices) for _ in range(3)]
        return await asyncio.gather(*(asyncio.sleep(delay, delay) for delay in delays))

    async def group(self, name, choices):
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(asyncio.sleep(self.delay(choices)))
            if choices.random() < 0.3:
                raise LookupError(name)

    async def completed(self, name, choices):
        parts = [asyncio.sleep(self.delay(choices), number) for number in range(3)]
        return [await part for part in asyncio.as_completed(parts)]

    async def stream(self, name, choices):
        async def numbers():
            for number in range(3):
                await asyncio.sleep(self.delay(choices))
                yield number

        async with contextlib.aclosing(numbers()) as stream:
            return [number async for number in stream]

    async def cancel_another(self, name, choices):
        task = choices.choice(self.tasks)
        return task is not asyncio.current_task() and task.cancel()

    async def start_another(self, name, choices):
        if depth.get() < 3 and len(self.tasks) < 12:
            self.spawn(f"{name}.{len(self.tasks)}", choices)

    async def callbacks(self, name, choices):
        loop = asyncio.get_running_loop()
        for number in range(3):
            loop.call_soon(self.note, name, "soon", number)
            delay = self.delay(choices) + (0 if self.ties else choices.random() / 1000)
            loop.call_later(delay, self.note, name, "later", number)
        loop.call_later(1, self.note, name, "never").cancel()

    async def callbacks_of_a_future(self, name, choices):
        future = self.future(choices)
        for number in range(2):
            future.add_done_callback(lambda future, number=number: self.note(name, "done", number))

    async def job(self, name, choices):
        return await asyncio.get_running_loop().run_in_executor(None, "{}{}".format, name, "'s job")

    async def look_up(self, name, choices):
        found = await asyncio.get_running_loop().getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)
        return found[0][4]


#: The operations with their weights.
OPERATIONS = {
    "sleep": 8, "hold": 6, "use": 4, "wait_for_condition": 4, "notify": 4, "wait_for_event": 3, "toggle": 3, "put": 5,
    "get": 5, "resolve": 4, "wait_for_future": 4, "first_of": 4, "gather": 3, "group": 3, "completed": 3, "stream": 3,
    "cancel_another": 3, "start_another": 4, "callbacks": 3, "callbacks_of_a_future": 2, "job": 2, "look_up": 1,
}  # fmt: skip
