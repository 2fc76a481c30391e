"""Hunts bugs in other people's clients and servers: runs them on a simulated network that mistreats them.

    python -m tests.testing.hunt [--minutes 20] [--first 0] [aiohttp websockets redis asyncpg uvicorn]
    python -m tests.testing.hunt --seed 17 redis      # one run again, with its traceback

A run is one program with one seed. The seed decides what the program does (requests, timeouts, cancellations) and what
the network does to it (latency, loss, partitions, resets, errors and short reads). An even seed also draws the order of
callbacks. With an odd one that is asyncio's own, so what it finds can happen on any loop. It is a finding if

- an answer belongs to another request,
- an exception is none of those that the library documents,
- the loop reports an exception, or a task that was lost,
- sockets or tasks are left after everything was closed,
- nothing can happen any more, or the program has not ended after a day of the virtual clock.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import gc
import importlib
import logging
import random
import re
import signal
import sys
import time
import traceback
import warnings

from tests.testing.fakes import FakePostgres, FakeRedis
from wakeloop import testing, waits
from wakeloop.testing.network import Network

#: A program that runs longer than this on the virtual clock is stuck, in seconds.
DAY = 86_400
#: From then on nothing is broken on purpose, in seconds of the virtual clock.
QUIET = 600
#: A run may take so many real seconds.
PATIENCE = 60


class Finding(AssertionError):
    """Something that must not happen."""


class NetworkAlone(testing.Seeded):
    """Draws what the network does from a seed. Callbacks run in asyncio's order."""

    ORDER = ("ready", "timer", "event", "completion")

    def draw(self, kind, count, weight=None):
        return 0 if kind in self.ORDER else super().draw(kind, count, weight)


class Run:
    """One program with one seed."""

    def __init__(self, name, seed):
        self.name, self.seed = name, seed
        self.random = random.Random(f"{name} {seed}")
        self.network = self._network()
        #: What the loop has reported.
        self.reports = []
        #: The exceptions that the library documents: their names, how often.
        self.expected = {}

    def _network(self):
        choose = self.random.choice
        network = Network(
            latency=choose([0.0, 0.01, (0.001, 0.1), (0.0, 2.0)]),
            loss=choose([0.0, 0.0, 0.02, 0.2]),
            bandwidth=choose([None, None, 100_000]),
            send_buffer=choose([131072, 5000]),
            receive_buffer=choose([131072, 5000]),
            lookup_delay=choose([0.0, (0.0, 1.0)]),
        )
        network.host("client", "10.0.0.1")
        network.host("server", "10.0.0.2")
        if self.random.random() < 0.4:
            network.shorten("recv", (1, choose([1, 10, 1000])), probability=choose([0.1, 1.0]))
        if self.random.random() < 0.4:
            network.shorten("send", (1, choose([1, 10, 1000])), probability=choose([0.1, 1.0]))
        rare = choose([0.0, 0.0, 0.01, 0.1])
        if rare:
            network.fail("connect", [errno.ECONNREFUSED, errno.ETIMEDOUT, errno.ENETUNREACH], probability=rare)
            network.fail("recv", [errno.ECONNRESET, errno.ETIMEDOUT], probability=rare / 5)
            network.fail("send", [errno.ECONNRESET, errno.EPIPE], probability=rare / 5)
        return network

    # -- what goes wrong ---------------------------------------------------------------------------

    async def misfortunes(self):
        """Breaks connections and links from time to time."""
        network, pick = self.network, self.random
        if pick.random() < 0.3:
            return
        while self.loop.time() < QUIET:
            await asyncio.sleep(pick.expovariate(0.2))
            what = pick.choice(["reset", "half open", "partition", "one way", "stall"])
            connections = network.connections("client", "server")
            if what == "partition" or what == "one way":
                network.partition("client", "server", one_way=what == "one way")
                await asyncio.sleep(pick.choice([0.3, 5, 100]))
                network.heal()
            elif connections:
                connection = pick.choice(connections)
                if what == "reset":
                    connection.reset()
                elif what == "half open":
                    connection.half_open(pick.choice(["client", "server"]))
                else:
                    connection.stall()
                    await asyncio.sleep(pick.choice([0.5, 20]))
                    connection.resume()

    async def attempt(self, coroutine, expected):
        """Awaits a request, with a timeout or a cancellation now and then. Returns its result, None if it has failed."""
        chosen = self.random.random()
        limit = self.random.choice([0.001, 0.05, 1, 10])
        try:
            if chosen < 0.2:
                task = asyncio.create_task(coroutine)
                await asyncio.wait([task], timeout=limit)
                task.cancel()
                return await task
            async with asyncio.timeout(limit if chosen < 0.5 else 300):
                return await coroutine
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():
                raise
        except Finding:
            raise
        except (*expected, OSError, asyncio.TimeoutError) as error:
            name = type(error).__name__
            self.expected[name] = self.expected.get(name, 0) + 1

    async def clients(self, work, count=4, requests=6):
        """Runs `work(client, request)` for several clients at the same time, on the host `client`."""

        async def client(number):
            for request in range(requests):
                await work(number, request)
                if self.random.random() < 0.3:
                    await asyncio.sleep(self.random.choice([0.01, 1, 30]))

        tasks = [self.network.host("client").create_task(client(number)) for number in range(count)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # -- the run -----------------------------------------------------------------------------------

    def go(self):
        """Runs the program. Raises what is a finding."""
        testing.run_on(self._loop(), self._main, check=False)
        if self.reports:
            raise Finding(self.reports[0])

    def _loop(self):
        schedule = NetworkAlone(self.seed) if self.seed % 2 else testing.Seeded(self.seed)
        # asyncpg reckons with the module `time`.
        self.loop = testing.EventLoop(schedule=schedule, network=self.network, patch_time=True)
        self.loop.set_exception_handler(self._reported)
        return self.loop

    def _reported(self, loop, context):
        error = context.get("exception")
        text = "" if error is None else "".join(traceback.format_exception(error))
        self.reports.append(f"{context['message']}\n{text}")

    async def _main(self):
        task = asyncio.create_task(self._program())
        done, _ = await asyncio.wait([task], timeout=DAY)
        if not done:
            tasks = "\n".join(map(str, waits.infos(self.loop)))
            task.cancel()
            await asyncio.wait([task], timeout=DAY)
            raise Finding(f"not done after a day:\n{tasks}\n")
        task.result()
        # What closes in the background has an hour. A link that was cut is whole again.
        self.network.heal()
        await asyncio.sleep(3600)
        left = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
        if left:
            raise Finding(f"{len(left)} tasks are left: {left[0].get_coro()!r}")
        if self.network.sockets():
            raise Finding(f"{len(self.network.sockets())} sockets are left: {self.network.sockets()[0]!r}")

    async def _program(self):
        self.loop.call_later(QUIET, self.network.faults._rules.clear)
        misfortunes = asyncio.create_task(self.misfortunes())
        try:
            await PROGRAMS[self.name](self)
        finally:
            misfortunes.cancel()
            await asyncio.wait([misfortunes])
            self.network.heal()


# -- the programs --------------------------------------------------------------------------------


async def run_aiohttp(run):
    import aiohttp
    from aiohttp import web

    async def echo(request):
        body = await request.read()
        await asyncio.sleep(run.random.choice([0, 0, 0.5]))
        return web.Response(body=body, headers={"X-Number": request.headers["X-Number"]})

    async def pieces(request):
        response = web.StreamResponse(headers={"X-Number": request.headers["X-Number"]})
        await response.prepare(request)
        for _ in range(5):
            await response.write(request.headers["X-Number"].encode() * 100)
            await asyncio.sleep(run.random.choice([0, 0.1]))
        return response

    async def socket(request):
        connection = web.WebSocketResponse(heartbeat=run.random.choice([None, 5]))
        await connection.prepare(request)
        async for message in connection:
            await connection.send_str(message.data)
        return connection

    app = web.Application()
    app.add_routes([web.post("/echo", echo), web.get("/pieces", pieces), web.get("/socket", socket)])
    runner = web.AppRunner(app, shutdown_timeout=5, access_log=None)
    with run.network.host("server"):
        await runner.setup()
        await web.TCPSite(runner, "10.0.0.2", 80).start()
    with run.network.host("client"):
        connector = aiohttp.TCPConnector(limit=run.random.choice([1, 3, 100]))
        session = aiohttp.ClientSession("http://server", connector=connector)

    async def request(number):
        headers = {"X-Number": str(number)}
        kind = run.random.choice(["echo", "echo", "pieces", "socket"])
        if kind == "socket":
            async with session.ws_connect("/socket", headers=headers) as connection:
                for count in range(3):
                    await connection.send_str(f"{number} {count}")
                    message = await connection.receive()
                    if message.type == aiohttp.WSMsgType.TEXT and message.data != f"{number} {count}":
                        raise Finding(f"a WebSocket got {message.data!r} instead of '{number} {count}'")
                    if message.type != aiohttp.WSMsgType.TEXT:
                        return
            return
        if kind == "echo":
            body = str(number).encode() * run.random.choice([0, 1, 100, 5000])
            made = session.post("/echo", data=body, headers=headers)
        else:
            body = str(number).encode() * 500
            made = session.get("/pieces", headers=headers)
        async with made as response:
            received = await response.read()
        if response.status != 200:
            raise Finding(f"status {response.status} for {kind}")
        if received != body or response.headers["X-Number"] != str(number):
            raise Finding(f"request {number} ({kind}) got the answer of {response.headers['X-Number']}, {len(received)} bytes")

    async def work(client, count):
        await run.attempt(request(1000 + 10 * client + count), [aiohttp.ClientError])

    try:
        await run.clients(work)
    finally:
        await session.close()
        await runner.cleanup()


async def run_websockets(run):
    import websockets
    from websockets.asyncio.client import connect
    from websockets.asyncio.server import serve

    async def handle(connection):
        async for message in connection:
            await connection.send(message)

    timings = {"ping_interval": run.random.choice([None, 5, 20]), "ping_timeout": 20, "close_timeout": 5}
    with run.network.host("server"):
        server = await serve(handle, "10.0.0.2", 80, **timings)

    async def talk(number):
        async with connect("ws://server", proxy=None, **timings) as connection:
            sent = received = 0
            for _ in range(5):
                for _ in range(run.random.choice([1, 3])):
                    size = run.random.choice([0, 10, 10_000])
                    await connection.send(f"{number} {sent} " + "x" * size)
                    sent += 1
                while received < sent:
                    try:
                        async with asyncio.timeout(run.random.choice([0.01, 100])):
                            message = await connection.recv()
                    except TimeoutError:
                        # recv() may be cancelled, and loses nothing.
                        if asyncio.get_running_loop().time() > DAY / 2:
                            raise
                        continue
                    if not message.startswith(f"{number} {received} "):
                        raise Finding(f"message {received} of {number} is {message[:20]!r}")
                    received += 1

    async def work(client, count):
        await run.attempt(talk(10 * client + count), [websockets.WebSocketException])

    try:
        await run.clients(work, requests=3)
    finally:
        server.close()
        await server.wait_closed()


async def run_redis(run):
    import redis.asyncio as redis

    with run.network.host("server"):
        fake = await FakeRedis("10.0.0.2", 6379).__aenter__()
    options = {
        "protocol": run.random.choice([2, 3]),
        "socket_timeout": run.random.choice([None, 2]),
        "health_check_interval": run.random.choice([0, 10]),
    }
    limit = run.random.choice([1, 3])
    pool = redis.BlockingConnectionPool(host="server", port=6379, max_connections=limit, timeout=50, **options)
    client = redis.Redis(connection_pool=pool)

    async def request(number):
        kind = run.random.choice(["echo", "set", "pipeline", "slow"])
        text = str(number).encode()
        if kind == "echo":
            check(kind, text, await client.echo(text))
        elif kind == "slow":
            check(kind, True, await client.execute_command("SLOW", run.random.choice(["0.01", "3"])) in (True, b"OK"))
        elif kind == "set":
            await client.set(text, text)
            check(kind, text, await client.get(text))
        else:
            async with client.pipeline(transaction=False) as pipeline:
                for count in range(5):
                    pipeline.echo(b"%s %d" % (text, count))
                check(kind, [b"%s %d" % (text, count) for count in range(5)], await pipeline.execute())

    def check(kind, wanted, got):
        if wanted != got:
            raise Finding(f"{kind} got {got!r} instead of {wanted!r}")

    async def work(number, count):
        await run.attempt(request(1000 + 10 * number + count), [redis.RedisError])

    try:
        await run.clients(work, requests=10)
    finally:
        await client.aclose()
        await pool.aclose()
        await fake.__aexit__()


async def run_asyncpg(run):
    import asyncpg

    with run.network.host("server"):
        fake = await FakePostgres("10.0.0.2", 5432).__aenter__()

    async def request(number):
        async with pool.acquire(timeout=100) as connection:
            kind = run.random.choice(["number", "text", "simple", "slow"])
            if kind == "number":
                check(number, await connection.fetchval("SELECT $1::int4", number))
            elif kind == "text":
                text = f"{number} " + "x" * run.random.choice([0, 20_000])
                check(text, await connection.fetchval("SELECT $1::text", text))
            elif kind == "simple":
                await connection.execute("SET something")
                check(number, await connection.fetchval(f"SELECT {number}"))
            else:
                await connection.fetchval("SELECT sleep(2)", timeout=run.random.choice([1, 10]))

    def check(wanted, got):
        if wanted != got:
            raise Finding(f"a query got {str(got)[:20]!r} instead of {str(wanted)[:20]!r}")

    async def work(number, count):
        await run.attempt(request(1000 + 10 * number + count), [asyncpg.PostgresError, asyncpg.InterfaceError])

    with run.network.host("client"):
        pool = None
        while pool is None:
            made = asyncpg.create_pool(
                host="server", port=5432, user="user", database="base", ssl=False, min_size=1, max_size=3, timeout=30
            )
            try:
                pool = await made
            except (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                await asyncio.sleep(60)
    try:
        await run.clients(work)
    finally:
        try:
            async with asyncio.timeout(2000):
                await pool.close()
        except (OSError, asyncio.TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            pool.terminate()
        await fake.__aexit__()


async def run_uvicorn(run):
    import aiohttp
    import uvicorn

    async def app(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body += message.get("body", b"")
            more = message.get("more_body")
        await asyncio.sleep(run.random.choice([0, 0, 1]))
        number = dict(scope["headers"]).get(b"x-number", b"")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"x-number", number)]})
        for place in range(0, len(body), 10_000):
            await send({"type": "http.response.body", "body": body[place : place + 10_000], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(
        app,
        host="10.0.0.2",
        port=80,
        http=run.random.choice(["h11", "httptools"]),
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=run.random.choice([1, 5]),
        timeout_graceful_shutdown=2000,
    )
    server = uvicorn.Server(config)
    serving = run.network.host("server").create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.1)
    with run.network.host("client"):
        session = aiohttp.ClientSession("http://server")

    async def request(number):
        body = str(number).encode() * run.random.choice([0, 1, 100, 5000])
        async with session.post("/", data=body, headers={"X-Number": str(number)}) as response:
            received = await response.read()
        if response.status != 200 or received != body or response.headers["x-number"] != str(number):
            raise Finding(f"request {number} got status {response.status}, {len(received)} of {len(body)} bytes")

    async def work(client, count):
        await run.attempt(request(1000 + 10 * client + count), [aiohttp.ClientError])

    try:
        await run.clients(work)
    finally:
        await session.close()
        server.should_exit = True
        await serving


PROGRAMS = {
    "aiohttp": run_aiohttp,
    "websockets": run_websockets,
    "redis": run_redis,
    "asyncpg": run_asyncpg,
    "uvicorn": run_uvicorn,
}


# -- the hunt ------------------------------------------------------------------------------------


class TooSlow(BaseException):
    """A run has taken too long in real time."""


@contextlib.contextmanager
def patience():
    """Raises TooSlow in a run that takes too long in real time."""

    def too_slow(*_):
        raise TooSlow(f"a run takes more than {PATIENCE} real seconds")

    before = signal.signal(signal.SIGALRM, too_slow)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(name, seed):
    """Runs a program with a seed. Returns None, or what was found: a short text that is the same for the same bug."""
    # What an earlier run has left to the collector must not end in this one.
    gc.collect()
    run = Run(name, seed)
    with warnings.catch_warnings(), patience():
        warnings.simplefilter("ignore")
        try:
            run.go()
        except (Exception, TooSlow) as error:
            run.failure = error
            return run, signature(error)
    return run, None


def signature(error):
    """The type of an exception, its text without numbers, and the innermost line of a library."""
    text = str(error).strip().splitlines() or [""]
    short = f"{text[0]} ... {text[-1]}" if len(text) > 1 else text[0]
    short = re.sub(r"0x[0-9a-f]+|\d+", "N", short)[:160]
    # A report of the loop has its traceback in its text.
    shown = "".join(traceback.format_exception(error))
    places = re.findall(r'File ".*site-packages/(.*)", line (\d+)', shown)
    return f"{type(error).__name__}: {short}{' at ' + ':'.join(places[-1]) if places else ''}"


def hunt(names, first, minutes):
    """Runs the programs in turn with one seed after the other, and prints what is found."""
    end, seed = time.monotonic() + 60 * minutes, first
    found, runs, expected = {}, dict.fromkeys(names, 0), {name: {} for name in names}
    while time.monotonic() < end:
        for name in names:
            run, what = outcome(name, seed)
            runs[name] += 1
            for error, count in run.expected.items():
                expected[name][error] = expected[name].get(error, 0) + count
            if what is not None:
                seeds = found.setdefault((name, what), [])
                seeds.append(seed)
                if len(seeds) <= 3:
                    print(f"{name}, seed {seed}: {what}", flush=True)
        seed += 1
    print(f"\nseeds {first} to {seed - 1}")
    for name in names:
        counts = ", ".join(f"{error} {count}" for error, count in sorted(expected[name].items()))
        print(f"{name}: {runs[name]} runs; documented errors: {counts or 'none'}")
    for (name, what), seeds in sorted(found.items(), key=lambda item: -len(item[1])):
        shown = ", ".join(map(str, seeds[:8]))
        usual = sum(seed % 2 for seed in seeds)
        print(f"{len(seeds):>5} times {name}: {what}\n      {usual} of them in asyncio's order")
        print(f"      seeds {shown}{' ...' if len(seeds) > 8 else ''}")
    if not found:
        print("nothing was found")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(PROGRAMS)}; all if none is given")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed, and show its exception")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = [name for name in options.names or PROGRAMS if _is_there(name)]
    if options.seed is not None:
        for name in names:
            run, what = outcome(name, options.seed)
            print(f"{name}, seed {options.seed}: {what or 'nothing was found'}")
            if what:
                traceback.print_exception(run.failure, file=sys.stdout)
                print("\n\n".join(run.reports))
        return
    hunt(names, options.first, options.minutes)


def _is_there(name):
    if name not in PROGRAMS:
        raise SystemExit(f"there is no program {name!r}")
    try:
        importlib.import_module(name)
    except ImportError:
        print(f"{name} is not installed")
        return False
    return True


if __name__ == "__main__":
    main()
