"""The base of all scenarios: choices, steps, and the record of what was observed."""

import asyncio
import random
import re


class Raised(Exception):
    """The exception that the scenarios' protocols raise."""


class Scenario:
    """One transport, its protocol and its peer."""

    #: Names of protocol callbacks in which the program may act.
    CALLS = []
    #: Names of methods of the scenario, with their weights.
    ACTIONS = {}
    #: False once the loop has met a bug of asyncio's that no other loop need repeat: the rest says nothing about others.
    comparable = True

    def __init__(self, seed, loop):
        self.random, self.loop, self.seen, self.step = random.Random(seed), loop, [], 0
        #: The weights vary with the seed, so that some scenarios combine the same few actions often.
        self.weights = {name: often * self.random.choice([0, 1, 1, 5]) for name, often in self.ACTIONS.items()}
        self.weights[self.random.choice(list(self.ACTIONS))] += 20
        self.transport = self.protocol = self.peer = None
        #: The actions for the next protocol callback of each name.
        self.planned = {}
        #: Bytes received and not yet recorded. How a stream is split into pieces is not guaranteed.
        self.received = 0

    # -- the record --------------------------------------------------------------------------------------------------

    def record(self, *what):
        self.record_received()
        self.seen.append((self.step, *what))

    def record_received(self):
        if self.received:
            self.seen.append((self.step, "received", self.received))
            self.received = 0

    def handler_called(self, loop, context):
        words = self.describe(context.get("exception"))
        # Drop the callback: asyncio does not name it once its handle was cancelled.
        message = re.sub(r"callback .*", "callback", self.cleaned(context["message"]))
        self.record("handler", message, sorted(context), words)

    def warns(self, message):
        """Whether a warning must be the same on both loops."""
        return True

    def describe(self, error):
        return None if error is None else self.cleaned(f"{type(error).__name__}: {error}")

    def cleaned(self, text):
        """Removes addresses, descriptors and the names of our types."""
        text = re.sub(r"<(_Selector(Socket|Datagram)|_Unix(Read|Write)Pipe|wakeloop\.(_core\.)?\w+)Transport.*>", "<transport>", str(text))
        text = re.sub(r"0x[0-9a-f]+", "0x", text)
        text = re.sub(r"fd=-?\d+", "fd", text)
        # Ours have no line number where native code raises what CPython does.
        text = re.sub(r" ?\(_ssl\.c(:\d+)?\)", "", text)
        return re.sub(r"\('(127\.0\.0\.1|::1)', \d+(, 0, 0)?\)", "address", text)

    def state(self):
        transport = self.transport
        reading = not transport.is_closing() and self.is_reading()
        return transport.is_closing(), reading, transport.get_write_buffer_size() == 0

    # -- the steps ---------------------------------------------------------------------------------------------------

    async def run(self):
        await self.begin()
        for self.step in range(1, self.random.randrange(4, 16)):
            try:
                self.act(self.choose())
            except Raised:
                self.record("raised to the caller")
            await self.settle()
            self.record("state", *self.state())
        self.step = "end"
        await self.finish()
        self.leave()
        await self.settle()
        self.record_received()

    async def begin(self):
        raise NotImplementedError

    async def finish(self):
        """Runs before the transport is aborted."""

    def leave(self):
        self.transport.abort()

    def end(self):
        if self.peer is not None:
            self.peer.close()
        self.transport = self.protocol = None
        self.planned.clear()

    async def settle(self):
        """Waits until all actions have had their effect."""
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        for _ in range(4):
            await asyncio.sleep(0)

    # -- the actions ------------------------------------------------------------------------------------------------

    def choose(self, depth=0):
        """Returns an action: the name of a method and its arguments."""
        chosen = self.random.random()
        if depth < 2 and chosen < 0.2:
            if chosen < 0.03:
                return "call_soon", self.choose_some(depth + 1)
            actions = self.choose_some(depth + 1)
            if chosen < 0.06:
                actions.append(("fail",))
            return "plan", self.random.choice(self.CALLS), actions
        name = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        return name, *getattr(self, f"choose_{name}", lambda: ())()

    def choose_some(self, depth):
        actions = [self.choose(depth) for _ in range(self.random.randrange(1, 4))]
        # asyncio sends inside `write`, ours after the callback: a write ends the list, so that nothing runs in between.
        sending = ("write", "writelines", "sendto", "transport_writes")
        writes = [number for number, action in enumerate(actions) if action[0] in sending]
        if writes:
            return actions[: writes[0] + 1]
        # While callbacks schedule callbacks, ours polls its sockets one or more iterations later than asyncio.
        if any(action[0].startswith("peer_") for action in actions):
            return [action for action in actions if action[0] != "call_soon"]
        return actions

    def act(self, action):
        """Runs an action and records its result."""
        name, *arguments = action
        try:
            result = getattr(self, name)(*arguments)
        except Raised:
            raise
        except Exception as error:
            result = self.describe(error)
        self.record(name, *(one if name in ("plan", "call_soon") else repr(one)[:20] for one in arguments), "->", result)

    def plan(self, call, actions):
        self.planned[call] = actions

    def call_soon(self, actions):
        self.loop.call_soon(self.act_all, actions)

    def fail(self):
        raise Raised

    def called(self, call, *what):
        """Records a protocol callback, and runs the actions planned for it."""
        self.record("called", call, *what)
        self.act_inside(call)

    def called_with_data(self, count):
        self.received += count
        self.act_inside("received")

    def act_inside(self, call):
        self.act_all(self.planned.pop(call, ()))

    def act_all(self, actions):
        for action in actions:
            self.act(action)

    # -- what every transport offers ---------------------------------------------------------------------------------

    def close(self):
        self.transport.close()

    def abort(self):
        self.transport.abort()

    def pause_reading(self):
        self.transport.pause_reading()

    def resume_reading(self):
        self.transport.resume_reading()

    def is_reading(self):
        return self.transport.is_reading()

    def is_closing(self):
        return self.transport.is_closing()

    def limits(self):
        return self.transport.get_write_buffer_limits()

    def set_limits(self, high, low):
        self.transport.set_write_buffer_limits(high, low)

    def choose_set_limits(self):
        return self.random.choice([None, 0, 1, 100, 100_000]), self.random.choice([None, None, 0, 1, 100, 200_000])

    def extra(self, name):
        return type(self.transport.get_extra_info(name, "none")).__name__

    def choose_extra(self):
        return (self.random.choice(["socket", "peername", "sockname", "nothing"]),)

    def same_protocol(self):
        return self.transport.get_protocol() is self.protocol
