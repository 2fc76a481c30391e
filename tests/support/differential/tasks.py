"""The base of scenarios whose program waits in tasks."""

import asyncio


class Tasks:
    """Mixin for scenarios whose program waits. Its tasks are in `self.tasks`."""

    def spawn(self, name, function):
        """Runs `function` in a task and records its outcome."""
        name = name, len(self.tasks)

        async def watched():
            try:
                self.record("done", *name, await function())
            except asyncio.CancelledError:
                self.record("cancelled", *name)
            except Exception as error:
                self.record("failed", *name, self.describe(error))

        self.tasks.append(self.loop.create_task(watched()))

    def cancel(self, number):
        if self.tasks:
            return self.tasks[number % len(self.tasks)].cancel()

    def choose_cancel(self):
        return (self.random.randrange(10),)

    def cancel_last(self):
        return self.tasks[-1].cancel() if self.tasks else None
