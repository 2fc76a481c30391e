"""What wakeloop.testing, looptime, aiotools' virtual clock and trio's MockClock can do: every cell of the table is run.

    python -m tests.testing.peers                 prints the table; needs looptime, aiotools, trio and anyio
    python -m tests.testing.peers --write         writes it into docs/reference/testing.md
    python -m tests.testing.peers --only seed     runs the rows whose names contain this

The scenarios use anyio, so that the same code runs on asyncio and on trio. Each cell has a process of its own, because
some of them hang; such a process is ended after twenty seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib.metadata
import pathlib
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "reference" / "testing.md"
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
LIMIT = 20


class Unlike(Exception):
    """The tool does something else than the row asks for."""


# -- the tools -------------------------------------------------------------------------------------------------------


class Tool:
    #: Its distribution, and what it is called in the table.
    distribution = title = ""

    def run(self, main, **options):
        """Runs a coroutine function on the tool's clock."""
        raise NotImplementedError

    def run_patiently(self, main):
        """As `run`, with whatever makes the clock wait longest before it jumps."""
        return self.run(main)

    # What a tool has nothing for is tried with what it has.

    def freeze(self):
        pass

    def advance(self, seconds):
        raise Unlike("nothing moves it")

    def run_fast(self, main, rate):
        return self.run(main)

    def run_patched(self, main):
        return self.run(main)

    def run_seeded(self, main, seed):
        return self.run(main)

    def run_checked(self, main):
        return self.run(main)

    def run_on_network(self, main, latency):
        return self.run(main)

    def run_asyncio(self, main):
        return self.run(main)

    def find(self, main):
        """Returns whether a run of a thousand fails, and the reorderings to which that is shrunk, or None."""
        for _ in range(1000):
            try:
                self.run(main)
            except Exception:
                return True, None
        return False, None

    def cancel_everywhere(self, main):
        """Returns at how many points the program was cancelled."""
        self.run(main)
        return 0


class AsyncioTool(Tool):
    def factory(self, **options):
        raise NotImplementedError

    def run(self, main, **options):
        import anyio

        factory = functools.partial(self.factory, **options)
        return anyio.run(main, backend="asyncio", backend_options={"loop_factory": factory})

    def run_asyncio(self, main):
        with asyncio.Runner(loop_factory=self.factory) as runner:
            return runner.run(main())


class Wakeloop(AsyncioTool):
    distribution, title = "wakeloop", "wakeloop.testing"

    def factory(self, **options):
        from wakeloop import testing

        return testing.EventLoop(**options)

    def freeze(self):
        asyncio.get_running_loop().clock.freeze()

    def advance(self, seconds):
        asyncio.get_running_loop().clock.advance(seconds)

    def run_fast(self, main, rate):
        from wakeloop import testing

        async def fast():
            asyncio.get_running_loop().clock.rate = rate
            return await main()

        return self.run(fast, clock="real")

    def run_patched(self, main):
        return self.run(main, patch_time=True)

    def run_seeded(self, main, seed):
        return self.run(main, seed=seed)

    def find(self, main):
        from wakeloop import testing

        failure = testing.explore(main, 1000).failure
        return failure is not None, failure and failure.reorderings

    def run_checked(self, main):
        from wakeloop import testing

        return testing.run(main)

    def cancel_everywhere(self, main):
        from wakeloop import testing

        return len(testing.cancel_everywhere(main))

    def run_on_network(self, main, latency):
        from wakeloop import testing
        from wakeloop.testing.network import Network

        return testing.run(main, network=Network(latency=latency))


class Looptime(AsyncioTool):
    distribution = title = "looptime"

    def factory(self, **options):
        import looptime

        return looptime.new_event_loop(**options)

    def run_checked(self, main):
        return self.run(main, idle_timeout=1)


class Aiotools(AsyncioTool):
    distribution, title = "aiotools", "aiotools.VirtualClock"

    def factory(self, **options):
        return asyncio.SelectorEventLoop()

    def run(self, main, **options):
        import aiotools

        async def patched():
            with aiotools.VirtualClock().patch_loop():
                return await main()

        return super().run(patched)

    def run_asyncio(self, main):
        return self.run(main)


class Trio(Tool):
    distribution, title = "trio", "trio.testing.MockClock"

    def run(self, main, **options):
        import anyio
        import trio.testing

        self.clock = trio.testing.MockClock(**{"autojump_threshold": 0, **options})
        return anyio.run(main, backend="trio", backend_options={"clock": self.clock})

    def run_patiently(self, main):
        return self.run(main, autojump_threshold=1)

    def freeze(self):
        import math

        self.clock.autojump_threshold = math.inf

    def advance(self, seconds):
        self.clock.jump(seconds)

    def run_fast(self, main, rate):
        import math

        return self.run(main, rate=rate, autojump_threshold=math.inf)


TOOLS = {tool.__name__.lower(): tool for tool in (Wakeloop, Looptime, Aiotools, Trio)}


# -- the rows --------------------------------------------------------------------------------------------------------

ROWS = {}


def row(title):
    def add(function):
        ROWS[title] = function
        return function

    return add


def demand(fact, otherwise):
    if not fact:
        raise Unlike(otherwise)


def took(seconds):
    return f"{seconds * 1000:.0f} ms"


@row("a sleep of a day takes no time")
def sleeps(tool):
    import anyio

    async def main():
        before = anyio.current_time()
        await anyio.sleep(86400)
        return anyio.current_time() - before

    started = time.monotonic()
    slept = tool.run(main)
    demand(abs(slept - 86400) < 1, f"the clock moved by {slept:.0f} s")
    demand(time.monotonic() - started < 5, "it takes real time")


@row("timeouts follow the clock")
def timeouts(tool):
    import anyio

    async def main():
        before = anyio.current_time()
        with anyio.move_on_after(3600) as scope:
            await anyio.sleep(7200)
        demand(scope.cancelled_caught, "the timeout does not fire")
        demand(abs(anyio.current_time() - before - 3600) < 1, "it fires at another time")

    tool.run(main)


@row("timers fire at their exact times, in order")
def exact(tool):
    import anyio

    async def main():
        start, seen = anyio.current_time(), []

        async def ring(delay):
            await anyio.sleep(delay)
            seen.append((delay, round(anyio.current_time() - start, 9)))

        async with anyio.create_task_group() as group:
            for delay in (0.3, 0.1, 1e-6, 0.2, 5.0, 0.30001):
                group.start_soon(ring, delay)
        demand(seen == sorted(seen), "another order")
        late = max(now - delay for delay, now in seen)
        demand(late < 1e-8, f"up to {late:.6f} s late")

    tool.run(main)


@row("a week of work, once a minute: wall time")
def week(tool):
    import anyio

    async def main():
        for _ in range(7 * 24 * 60):
            await anyio.sleep(60)

    started = time.monotonic()
    tool.run(main)
    return took(time.monotonic() - started)


@row("a tight loop of sleep(0) stops no timer")
def busy(tool):
    import anyio

    async def main():
        done = False

        async def spin():
            while not done:
                await anyio.sleep(0)

        async with anyio.create_task_group() as group:
            group.start_soon(spin)
            with anyio.move_on_after(0.2):
                await anyio.sleep(30)
            done = True

    started = time.monotonic()
    tool.run(main)
    demand(time.monotonic() - started < 5, "it takes real time")


@row("the test moves time by hand")
def by_hand(tool):
    import anyio

    async def main():
        tool.freeze()
        done = []

        async def wait():
            await anyio.sleep(10)
            done.append(True)

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            for expected in ([], [True]):
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                tool.advance(5)
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                demand(done == expected, "the clock moves by itself")

    tool.run(main)


@row("the clock flows, faster than real time")
def fast(tool):
    import anyio

    async def main():
        started = time.monotonic()
        await anyio.sleep(4)
        return time.monotonic() - started

    seconds = tool.run_fast(main, 20)
    demand(seconds > 0.15, "it jumps")
    demand(seconds < 3, "it takes real time")


@row("`time.monotonic` and `time.time` follow")
def patched(tool):
    import anyio

    async def main():
        before = time.monotonic(), time.time()
        await anyio.sleep(3600)
        demand(min(time.monotonic() - before[0], time.time() - before[1]) > 3599, "they do not")

    tool.run_patched(main)


def waits(tool, main, wanted, otherwise):
    """Runs a program that waits 0.3 seconds for something real, under a timeout of a minute."""
    if tool.run(main) == wanted:
        return "yes"
    demand(tool.run_patiently(main) == wanted, otherwise)
    return "only with a threshold that is longer than the wait"


@row("a real socket is waited for, under a timeout")
def real_socket(tool):
    import anyio

    async def main():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            thread = threading.Thread(target=lambda: (time.sleep(0.3), theirs.send(b"answer")))
            thread.start()
            try:
                with anyio.move_on_after(60):
                    await anyio.wait_readable(ours)
                    return ours.recv(100)
            finally:
                thread.join()

    return waits(tool, main, b"answer", "times out before the answer")


@row("a job in a thread is waited for, under a timeout")
def real_thread(tool):
    import anyio

    async def main():
        with anyio.move_on_after(60):
            if isinstance(tool, Trio):
                await anyio.to_thread.run_sync(time.sleep, 0.3, abandon_on_cancel=True)
            else:
                await asyncio.to_thread(time.sleep, 0.3)
            return "done"

    return waits(tool, main, "done", "times out before the job ends")


@row("a child process is waited for, under a timeout")
def real_process(tool):
    import anyio

    async def main():
        with anyio.move_on_after(60):
            return (await anyio.run_process(["sh", "-c", "sleep 0.3; echo done"])).stdout

    return waits(tool, main, b"done\n", "times out before the child ends")


@row("a call from a thread that the loop does not know is waited for, under a timeout")
def unknown_thread(tool):
    import anyio

    async def main():
        event = anyio.Event()
        token = anyio.lowlevel.current_token()

        def wake():
            time.sleep(0.3)
            anyio.from_thread.run_sync(event.set, token=token)

        thread = threading.Thread(target=wake)
        thread.start()
        with anyio.move_on_after(60) as scope:
            await event.wait()
        await anyio.to_thread.run_sync(thread.join)
        return not scope.cancelled_caught

    return waits(tool, main, True, "times out before the call")


@row("an unchanged asyncio program runs")
def unchanged(tool):
    async def main():
        async with asyncio.timeout(3600):
            await asyncio.gather(asyncio.sleep(60), asyncio.sleep(1800))

    tool.run_asyncio(main)


def order_of_three(tool, run):
    import anyio

    async def main():
        seen = []

        async def one(number):
            for _ in range(3):
                await anyio.lowlevel.checkpoint()
                seen.append(number)

        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(one, number)
        return tuple(seen)

    return run(main)


@row("ready tasks run in other orders than one: orders in 100 runs")
def orders(tool):
    count = len({order_of_three(tool, functools.partial(tool.run_seeded, seed=seed)) for seed in range(100)})
    demand(count > 1, "1")
    return str(count)


@row("a seed repeats a run, in another process too")
def seeded(tool):
    code = f"from tests.testing import peers; tool = peers.TOOLS[{type(tool).__name__.lower()!r}]()\n"
    code += "print([peers.order_of_three(tool, lambda main: tool.run_seeded(main, seed)) for seed in range(20)])"
    said = {subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, timeout=LIMIT) for _ in range(2)}
    demand(len(said) == 1, "another order each time")
    demand(len(set(map(str, eval(said.pop())))) > 1, "there is one order only")


async def lost_update():
    import anyio

    balance = 100

    async def withdraw(amount, delay):
        nonlocal balance
        for _ in range(delay):
            await anyio.lowlevel.checkpoint()
        read = balance
        await anyio.lowlevel.checkpoint()
        balance = read - amount

    async with anyio.create_task_group() as group:
        group.start_soon(withdraw, 10, 0)
        group.start_soon(withdraw, 20, 4)
    assert balance == 70


@row("an order with a bug is searched, and shrunk to the reorderings that matter")
def searched(tool):
    found, reorderings = tool.find(lost_update)
    demand(found, "passes a thousand times")
    demand(reorderings is not None, "fails, but is not shrunk")
    return f"yes: {reorderings}"


@row("a deadlock is reported, not waited for")
def deadlock(tool):
    import anyio

    started = 0.0

    async def main():
        nonlocal started
        started = time.monotonic()
        await anyio.Event().wait()

    try:
        tool.run_checked(main)
    except Exception as error:
        seconds = time.monotonic() - started
        return f"yes: {type(error).__name__}" + (f" after {seconds:.0f} s" if seconds > 0.9 else " at once")
    raise Unlike("it ends without a word")


@row("tasks and connections that are left at the end are reported")
def left_behind(tool):
    import anyio

    async def main():
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            asyncio.get_running_loop().create_task(asyncio.Event().wait())
            await anyio.sleep(0)

    async def in_a_nursery():
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 3600)

    if isinstance(tool, Trio):
        # A nursery waits for its tasks: none can be left.
        tool.run(in_a_nursery)
        return "no task can be left"
    try:
        tool.run_checked(main)
    except Exception as error:
        return f"yes: {type(error).__name__}"
    raise Unlike("it ends without a word")


@row("a connection between two hosts in memory, with latency")
def network(tool):
    import anyio

    async def main():
        async def serve(stream):
            async with stream:
                await stream.send(await stream.receive())

        async with anyio.create_task_group() as group:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            group.start_soon(listener.serve, serve)
            await anyio.lowlevel.checkpoint()
            before = anyio.current_time()
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"hello")
                demand(await stream.receive() == b"hello", "another answer")
            seconds = anyio.current_time() - before
            group.cancel_scope.cancel()
        await listener.aclose()
        demand(seconds >= 0.2, "no latency")

    tool.run_on_network(main, 0.1)


@row("a program is cancelled at each of its await points")
def cancelled(tool):
    import anyio

    async def main():
        for _ in range(3):
            await anyio.sleep(1)

    count = tool.cancel_everywhere(main)
    demand(count >= 3, f"at {count} of 3")


@row("comes with a pytest plugin")
def plugin(tool):
    found = {entry.dist.name for entry in importlib.metadata.entry_points(group="pytest11")}
    if isinstance(tool, Wakeloop):
        # It may run from the source tree here.
        import tomllib

        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        demand("pytest11" in project["entry-points"], "no")
        return
    if isinstance(tool, Trio):
        demand(f"pytest-{tool.distribution}" in found, "another package, pytest-trio, has one")
    demand(tool.distribution in found, "no")


# -- the table -------------------------------------------------------------------------------------------------------


def try_cell(title, name):
    """Runs one cell in a process of its own, and returns what the table says of it."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.testing.peers", "--cell", title, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT)
    except subprocess.TimeoutExpired:
        return "no: hangs"
    return done.stdout.strip() or f"no: {done.stderr.strip().splitlines()[-1][:60]}"


def run_cell(title, name):
    try:
        print(ROWS[title](TOOLS[name]()) or "yes")
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = str(error) if isinstance(error, Unlike) else f"{type(error).__name__}: {error}".rstrip(": ")
        print("no" if said == "no" else f"no: {said}")


def version(tool):
    if tool is Wakeloop:
        return tool.title
    return f"{tool.title} {importlib.metadata.version(tool.distribution)}"


def table(wanted):
    lines = [f"| | {' | '.join(map(version, TOOLS.values()))} |", f"|---{'|---' * len(TOOLS)}|"]
    for title in ROWS:
        if wanted in title:
            lines.append(f"| {title} | {' | '.join(try_cell(title, name) for name in TOOLS)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.testing.peers")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    parser.add_argument("--only", default="", metavar="TEXT", help="the rows whose names contain this")
    parser.add_argument("--cell", nargs=2, metavar=("ROW", "TOOL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        run_cell(*options.cell)
        return
    made = table(options.only)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n\n{made}\n\n{END}{after}")
    else:
        print(made)


if __name__ == "__main__":
    main()
