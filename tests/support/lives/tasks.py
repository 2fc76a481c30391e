"""What lives have in common whose program waits for something in tasks."""

import asyncio


class Tasks:
    """For a life whose program waits. Its tasks are in `self.tasks`."""

    def spawn(self, name, function):
        """Runs it in a task, and says what came of it."""
        name = name, len(self.tasks)

        async def watched():
            try:
                self.say("done", *name, await function())
            except asyncio.CancelledError:
                self.say("cancelled", *name)
            except Exception as error:
                self.say("failed", *name, self.words(error))

        self.tasks.append(self.loop.create_task(watched()))

    def cancel(self, number):
        if self.tasks:
            return self.tasks[number % len(self.tasks)].cancel()

    def choose_cancel(self):
        return (self.random.randrange(10),)

    def cancel_last(self):
        return self.tasks[-1].cancel() if self.tasks else None
