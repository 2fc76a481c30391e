"""What all lives have in common: choices, steps, and the book of what was seen."""

import asyncio
import random
import re


class Raised(Exception):
    """What a protocol of ours raises."""


class Life:
    """One transport, its protocol and its peer."""

    #: The protocol's calls in which the program may act.
    CALLS = []
    #: What else the transport of a kind offers: names of methods here, by how often they are chosen.
    ACTIONS = {}

    def __init__(self, seed, loop):
        self.random, self.loop, self.seen, self.step = random.Random(seed), loop, [], 0
        #: Each life has its habits: what it does often meets itself more often than in an average of all.
        self.habits = {name: often * self.random.choice([0, 1, 1, 5]) for name, often in self.ACTIONS.items()}
        self.habits[self.random.choice(list(self.ACTIONS))] += 20
        self.transport = self.protocol = self.peer = None
        #: What the program does in the protocol's next call of a name.
        self.planned = {}
        #: Received and not yet written down: how a stream is cut into pieces is nobody's promise.
        self.received = 0

    # -- the book ----------------------------------------------------------------------------------------------------

    def say(self, *what):
        self.say_received()
        self.seen.append((self.step, *what))

    def say_received(self):
        if self.received:
            self.seen.append((self.step, "received", self.received))
            self.received = 0

    def handler_called(self, loop, context):
        words = self.words(context.get("exception"))
        # Which callback it was: asyncio names none once its handle was cancelled.
        message = re.sub(r"callback .*", "callback", self.cleaned(context["message"]))
        self.say("handler", message, sorted(context), words)

    def warns(self, message):
        """Whether a warning belongs to what must be the same."""
        return True

    def words(self, error):
        return None if error is None else self.cleaned(f"{type(error).__name__}: {error}")

    def cleaned(self, text):
        """Without addresses, descriptors and the names of our types."""
        text = re.sub(r"<(_Selector(Socket|Datagram)|_Unix(Read|Write)Pipe|wakeloop\.(_core\.)?\w+)Transport.*>", "<transport>", str(text))
        text = re.sub(r"0x[0-9a-f]+", "0x", text)
        text = re.sub(r"fd=-?\d+", "fd", text)
        text = re.sub(r" ?\(_ssl\.c:\d+\)", "", text)
        return re.sub(r"\('(127\.0\.0\.1|::1)', \d+(, 0, 0)?\)", "address", text)

    def state(self):
        transport = self.transport
        reading = not transport.is_closing() and self.is_reading()
        return transport.is_closing(), reading, transport.get_write_buffer_size() == 0

    # -- its course --------------------------------------------------------------------------------------------------

    async def live(self):
        await self.begin()
        for self.step in range(1, self.random.randrange(4, 16)):
            try:
                self.act(self.choose())
            except Raised:
                self.say("raised to the caller")
            await self.settle()
            self.say("state", *self.state())
        self.step = "end"
        await self.finish()
        self.leave()
        await self.settle()
        self.say_received()

    async def begin(self):
        raise NotImplementedError

    async def finish(self):
        """Before the transport is aborted."""

    def leave(self):
        self.transport.abort()

    def end(self):
        if self.peer is not None:
            self.peer.close()
        self.transport = self.protocol = None
        self.planned.clear()

    async def settle(self):
        """Until all that was done has had its effect."""
        await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        for _ in range(4):
            await asyncio.sleep(0)

    # -- what is done ------------------------------------------------------------------------------------------------

    def choose(self, depth=0):
        """An action: the name of a method and its arguments."""
        chosen = self.random.random()
        if depth < 2 and chosen < 0.2:
            if chosen < 0.03:
                return "call_soon", self.choose_some(depth + 1)
            actions = self.choose_some(depth + 1)
            if chosen < 0.06:
                actions.append(("fail",))
            return "plan", self.random.choice(self.CALLS), actions
        name = self.random.choices(list(self.habits), list(self.habits.values()))[0]
        return name, *getattr(self, f"choose_{name}", lambda: ())()

    def choose_some(self, depth):
        actions = [self.choose(depth) for _ in range(self.random.randrange(1, 4))]
        # asyncio sends in `write`, ours when the callback is over: nothing looks in between.
        sending = ("write", "writelines", "sendto", "transport_writes")
        writes = [number for number, action in enumerate(actions) if action[0] in sending]
        if writes:
            return actions[: writes[0] + 1]
        # While callbacks follow each other, ours looks at its sockets a turn or more later than asyncio.
        if any(action[0].startswith("peer_") for action in actions):
            return [action for action in actions if action[0] != "call_soon"]
        return actions

    def act(self, action):
        """Does it, and says what came of it."""
        name, *arguments = action
        try:
            result = getattr(self, name)(*arguments)
        except Raised:
            raise
        except Exception as error:
            result = self.words(error)
        self.say(name, *(one if name in ("plan", "call_soon") else repr(one)[:20] for one in arguments), "->", result)

    def plan(self, call, actions):
        self.planned[call] = actions

    def call_soon(self, actions):
        self.loop.call_soon(self.act_all, actions)

    def fail(self):
        raise Raised

    def called(self, call, *what):
        """The protocol is called."""
        self.say("called", call, *what)
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
