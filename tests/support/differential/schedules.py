"""Scenarios for callbacks, timers, futures and tasks. Their clock stands still during a step."""

import asyncio

from .scenario import Raised, Scenario
from .tasks import Tasks

DELAYS = [-1, 0, 0.5, 1, 2]


class ScheduleScenario(Tasks, Scenario):
    CALLS = ["future", "task"]
    ACTIONS = {
        "call_later": 14, "call_at": 6, "call_soon_many": 10, "call_threadsafe": 4, "cancel_handle": 8, "make_future": 8,
        "set_result": 8, "set_exception": 3, "cancel_future": 4, "add_callback": 6, "remove_callback": 2, "sleeps": 10,
        "waits": 10, "shields": 3, "waits_for": 6, "gathers": 4, "groups": 4, "waits_for_first": 3, "cancel": 8,
        "cancel_last": 4, "uncancel": 1,
    }  # fmt: skip

    def __init__(self, seed, loop):
        super().__init__(seed, loop)
        self.tasks, self.handles, self.futures, self.now = [], [], [], 1000.0
        loop.time = lambda: self.now

    async def begin(self):
        pass

    # Without asyncio.sleep: the clock does not advance by itself.
    async def settle(self):
        self.now += self.random.choice([0, 0.3, 1])
        for _ in range(12):
            await asyncio.sleep(0)

    def state(self):
        return sum(not task.done() for task in self.tasks), sum(not future.done() for future in self.futures)

    def leave(self):
        for one in *self.tasks, *self.futures, *self.handles:
            one.cancel()

    def end(self):
        del self.loop.time
        for one in self.tasks, self.futures, self.handles, self.planned:
            one.clear()

    # -- callbacks ---------------------------------------------------------------------------------------------------

    def run_callback(self, name, number, actions):
        self.record("runs", name, number)
        self.act_all(actions)

    def called_later(self, method, *when, actions):
        number = len(self.handles)
        self.handles.append(method(*when, self.run_callback, method.__name__, number, actions))
        return number

    def call_later(self, delay, actions):
        return self.called_later(self.loop.call_later, delay, actions=actions)

    # Never two at the same time: asyncio's heap does not keep the order of equal deadlines.
    def choose_call_later(self):
        return self.random.choice(DELAYS) + self.random.random() / 10, self.choose_few()

    def call_at(self, delay, actions):
        return self.called_later(self.loop.call_at, self.now + delay, actions=actions)

    choose_call_at = choose_call_later

    def call_soon_many(self, actions):
        return [self.called_later(self.loop.call_soon, actions=[one]) for one in actions]

    def call_threadsafe(self, actions):
        return self.called_later(self.loop.call_soon_threadsafe, actions=actions)

    def choose_call_soon_many(self):
        return (self.choose_few(),)

    choose_call_threadsafe = choose_call_soon_many

    def choose_few(self):
        few = self.choose_some(1) if self.random.random() < 0.4 else []
        return [*few, ("fail",)] if self.random.random() < 0.1 else few

    def cancel_handle(self, number):
        if self.handles:
            handle = self.handles[number % len(self.handles)]
            handle.cancel()
            return handle.cancelled()

    choose_cancel_handle = Tasks.choose_cancel

    # -- futures -----------------------------------------------------------------------------------------------------

    def make_future(self):
        self.futures.append(self.loop.create_future())

    def future(self, number):
        if not self.futures:
            self.make_future()
        return self.futures[number % len(self.futures)]

    def set_result(self, number):
        self.future(number).set_result(number)

    choose_set_result = Tasks.choose_cancel

    def set_exception(self, number):
        self.future(number).set_exception(Raised())

    choose_set_exception = Tasks.choose_cancel

    def cancel_future(self, number):
        return self.future(number).cancel()

    choose_cancel_future = Tasks.choose_cancel

    def done(self, future):
        self.called("future", self.futures.index(future))

    def add_callback(self, number):
        self.future(number).add_done_callback(self.done)

    choose_add_callback = Tasks.choose_cancel

    def remove_callback(self, number):
        return self.future(number).remove_done_callback(self.done)

    choose_remove_callback = Tasks.choose_cancel

    # -- tasks -------------------------------------------------------------------------------------------------------

    def sleeps(self, delay, count):
        async def asleep():
            for _ in range(count):
                await asyncio.sleep(delay)
            self.act_inside("task")

        self.spawn("sleeps", asleep)

    def choose_sleeps(self):
        return self.random.choice(DELAYS) + self.random.random() / 10, self.random.randrange(1, 4)

    async def wait(self, number):
        result = await self.future(number)
        self.act_inside("task")
        return result

    def waits(self, number):
        self.spawn("waits", lambda: self.wait(number))

    choose_waits = Tasks.choose_cancel

    def shields(self, number):
        self.spawn("shields", lambda: asyncio.shield(self.future(number)))

    choose_shields = Tasks.choose_cancel

    def waits_for(self, number, delay):
        self.spawn("waits_for", lambda: asyncio.wait_for(self.wait(number), delay))

    def choose_waits_for(self):
        return self.random.randrange(10), self.random.choice([None, *DELAYS]) and self.choose_sleeps()[0]

    def gathers(self, number, returns):
        parts = [lambda: self.wait(number), lambda: self.wait(number + 1)]

        async def gathered():
            return self.cleaned(await asyncio.gather(*(part() for part in parts), return_exceptions=returns))

        self.spawn("gathers", gathered)

    def choose_gathers(self):
        return self.random.randrange(10), self.random.random() < 0.5

    def groups(self, number):
        async def grouped():
            async with asyncio.TaskGroup() as group:
                group.create_task(self.wait(number))
                group.create_task(self.wait(number + 1))

        self.spawn("groups", grouped)

    choose_groups = Tasks.choose_cancel

    def waits_for_first(self, number, delay):
        async def first():
            futures = {self.future(number), self.future(number + 1)}
            done, pending = await asyncio.wait(futures, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            return len(done), len(pending)

        self.spawn("waits_for_first", first)

    choose_waits_for_first = choose_waits_for

    def uncancel(self, number):
        if self.tasks:
            return self.tasks[number % len(self.tasks)].uncancel()

    choose_uncancel = Tasks.choose_cancel
