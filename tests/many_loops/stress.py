"""Runs loops in threads, each with every kind of work, while they wake, cancel and close each other.

Each thread runs one loop after the other. A loop lives for a part of a second, does jobs that are chosen at random, and
then ends as asyncio.run ends it, in the middle of whatever the others send to it. Every byte that a job sends is checked.

Nothing may be lost: a number of tokens goes round in queues between all loops and some threads, and at the end each of
them must be there. Nothing may be left: descriptors and threads are counted before and after.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import random
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import wakeloop
from tests.support.builds import FREE_THREADED

#: No wait of a job is longer than this, in seconds, on a machine that is busy with 64 loops.
PATIENCE = 90.0
TOKENS, QUEUES, THREADS = 200, 8, 4


class Lost(AssertionError):
    """Something was lost, or did not arrive in time."""


class Shared:
    """What the loops share."""

    def __init__(self, directory: Path, contexts: tuple[ssl.SSLContext, ssl.SSLContext] | None) -> None:
        self.directory = directory
        self.contexts = contexts
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.ended = wakeloop.Event()
        self.failures: list[str] = []
        self.done: Counter[str] = Counter()
        # Half of them have little room, so that putting waits too.
        self.queues = [wakeloop.Queue[int](maxsize=TOKENS if number % 2 else 30) for number in range(QUEUES)]
        for token in range(TOKENS):
            self.queues[1 + 2 * (token % (QUEUES // 2))].put_nowait(token)
        self.file = directory / "file"
        self.file.write_bytes(random.Random(1).randbytes(200_000))

    def fail(self, what: str) -> None:
        with self.lock:
            self.failures.append(what)
        self.over.set()
        self.ended.set()

    def other_loop(self, chance: random.Random) -> asyncio.AbstractEventLoop | None:
        with self.lock:
            return chance.choice(sorted(self.loops, key=id)) if self.loops else None


Job = Callable[["Worker"], Awaitable[None]]
JOBS: list[tuple[int, Job]] = []


def job(weight: int) -> Callable[[Job], Job]:
    def add(function: Job) -> Job:
        JOBS.append((weight, function))
        return function

    return add


class Worker:
    """One thread."""

    def __init__(self, shared: Shared, number: int, seed: int, factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.shared, self.number, self.chance = shared, number, random.Random(f"{seed}/{number}")
        self.factory = factory
        self.thread = threading.Thread(target=self.run, name=f"loop {number}")

    def run(self) -> None:
        try:
            while not self.shared.over.is_set():
                with asyncio.Runner(loop_factory=self.factory, debug=self.chance.random() < 0.1) as runner:
                    runner.run(self.live())
        except BaseException:
            self.shared.fail(f"loop {self.number}:\n{traceback.format_exc()}")

    async def live(self) -> None:
        """The life of one loop."""
        loop, shared = asyncio.get_running_loop(), self.shared
        loop.set_exception_handler(self.complain)
        loop.slow_callback_duration = loop.slow_turn_duration = 3600  # type: ignore[attr-defined]
        with shared.lock:
            shared.loops.add(loop)
        try:
            until = time.monotonic() + self.chance.uniform(0.2, 2)
            tokens = [asyncio.create_task(self.pass_tokens()) for _ in range(2)]
            ends = asyncio.create_task(shared.ended.wait())  # type: ignore[var-annotated]
            weights = [weight for weight, _ in JOBS]
            while time.monotonic() < until and not shared.over.is_set():
                jobs = [asyncio.create_task(self.do(work)) for _, work in self.chance.choices(JOBS, weights, k=3)]
                await asyncio.wait([*jobs, ends], return_when=asyncio.FIRST_COMPLETED, timeout=0.2)
                if self.chance.random() < 0.3:
                    self.chance.choice(jobs).cancel()
                elif self.chance.random() < 0.1:
                    return  # with all of them under way
                await asyncio.wait(jobs)
            if self.chance.random() < 0.5:
                for task in tokens:
                    task.cancel()
                await asyncio.wait(tokens)
        finally:
            with shared.lock:
                shared.loops.discard(loop)

    def complain(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):
            return  # Python 3.11 reports a task of a server that was cancelled
        if isinstance(error, (AssertionError, OSError)) and "transport creation" in context["message"]:
            return  # the server was closed while it accepted, or the client has left; asyncio reports it in debug mode
        if "was destroyed but it is pending" in context["message"]:
            return  # the coroutine came from another loop after the tasks of this one were cancelled
        if FREE_THREADED and "exception was never retrieved" in context["message"] and isinstance(error, OSError):
            return  # the collector may finalize a stream's future before its protocol, which would have retrieved it
        self.shared.fail(f"loop {self.number} reports: {context}")

    async def do(self, work: Job) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await work(self)
            with self.shared.lock:
                self.shared.done[work.__name__] += 1
        except asyncio.CancelledError:
            raise
        except BaseException:
            self.shared.fail(f"loop {self.number}, {work.__name__}:\n{traceback.format_exc()}")

    async def pass_tokens(self) -> None:
        """Takes tokens from one queue, and puts them into another. One that is in its hands when it is cancelled goes back."""
        while not self.shared.over.is_set():
            there, here = self.chance.sample(self.shared.queues, 2)
            token = None
            try:
                async with asyncio.timeout(self.chance.uniform(0.001, 0.3)):
                    token = await there.get()
                    await here.put(token)
                    token = None
            except TimeoutError:
                pass
            finally:
                if token is not None:
                    give_back(self.shared, token)
            await asyncio.sleep(self.chance.uniform(0, 0.01))


def give_back(shared: Shared, token: int) -> None:
    """The queues with odd numbers have room for all tokens."""
    shared.queues[1].put_nowait(token)


def pass_tokens_blocking(shared: Shared, seed: int) -> None:
    chance = random.Random(f"{seed}/thread")
    while not shared.over.is_set():
        there, here = chance.sample(shared.queues, 2)
        try:
            token = there.sync_q.get(timeout=chance.uniform(0, 0.05))
        except queue.Empty:
            continue
        try:
            here.sync_q.put(token, timeout=chance.uniform(0, 0.05))
        except queue.Full:
            give_back(shared, token)
        time.sleep(chance.uniform(0, 0.01))


# -- jobs of one loop ------------------------------------------------------------------------------------------------


async def echo(reader: Any, writer: Any) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except (ConnectionError, ssl.SSLError):
        pass
    finally:
        writer.close()


async def talk(worker: Worker, server: asyncio.Server, connection: Awaitable[tuple[Any, Any]]) -> None:
    async with server:
        reader, writer = await connection
        try:
            for _ in range(3):
                message = worker.chance.randbytes(worker.chance.choice([1, 1000, 100_000]))
                writer.write(message)
                if await reader.readexactly(len(message)) != message:
                    raise Lost("other bytes came back")
        finally:
            writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()


def port_of(server: asyncio.Server) -> int:
    port: int = server.sockets[0].getsockname()[1]
    return port


@job(3)
async def tcp(worker: Worker) -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    await talk(worker, server, asyncio.open_connection("127.0.0.1", port_of(server)))


@job(3)
async def native_streams(worker: Worker) -> None:
    server = await wakeloop.start_server(echo, "127.0.0.1", 0)
    await talk(worker, server, wakeloop.open_connection("127.0.0.1", port_of(server)))


@job(1)
async def tls(worker: Worker) -> None:
    if worker.shared.contexts is None:
        return
    serves, connects = worker.shared.contexts
    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=serves)
    connection = asyncio.open_connection("127.0.0.1", port_of(server), ssl=connects, server_hostname="localhost")
    await talk(worker, server, connection)


@job(1)
async def unix(worker: Worker) -> None:
    path = str(worker.shared.directory / f"{worker.number}-{worker.chance.getrandbits(48):x}")
    server = await asyncio.start_unix_server(echo, path)
    try:
        await talk(worker, server, asyncio.open_unix_connection(path))
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


@job(1)
async def datagrams(worker: Worker) -> None:
    arrived: asyncio.Queue[bytes] = asyncio.Queue()

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: Any) -> None:
            arrived.put_nowait(data)

    loop = asyncio.get_running_loop()
    receiver, _ = await loop.create_datagram_endpoint(Receiver, local_addr=("127.0.0.1", 0))
    sender = None
    try:
        address = receiver.get_extra_info("sockname")
        sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=address)
        for number in range(5):
            sender.sendto(b"%d" % number)
            if await arrived.get() != b"%d" % number:
                raise Lost("another datagram arrived")
    finally:
        receiver.close()
        if sender is not None:
            sender.close()


@job(1)
async def pipes(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    reading, writing = (os.fdopen(fd, mode, 0) for fd, mode in zip(os.pipe(), ("rb", "wb")))
    with reading, writing:
        reader = asyncio.StreamReader()
        source, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), reading)
        sink = None
        try:
            sink, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, writing)
            message = worker.chance.randbytes(100_000)
            sink.write(message)
            if await reader.readexactly(len(message)) != message:
                raise Lost("other bytes came through the pipe")
        finally:
            source.close()
            if sink is not None:
                sink.abort()
            await asyncio.sleep(0)


@job(1)
async def sockets(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    one, other = socket.socketpair()
    with one, other:
        one.setblocking(False)
        other.setblocking(False)
        for size in (1, 1000):
            message = worker.chance.randbytes(size)
            await loop.sock_sendall(one, message)
            if await loop.sock_recv(other, 2000) != message:
                raise Lost("other bytes came through the socket")


@job(2)
async def timers(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    fired: list[int] = []
    handles = [loop.call_later(worker.chance.uniform(0, 0.02), fired.append, number) for number in range(30)]
    for handle in handles[::2]:
        handle.cancel()
    await asyncio.sleep(0.03)
    if sorted(fired) != list(range(1, 30, 2)):
        raise Lost(f"timers fired: {fired}")


@job(1)
async def executors(worker: Worker) -> None:
    loop = asyncio.get_running_loop()
    numbers = [loop.run_in_executor(None, pow, number, 2) for number in range(5)]
    if await asyncio.gather(*numbers) != [0, 1, 4, 9, 16]:
        raise Lost("an executor has other results")
    if await wakeloop.spawn_blocking(sum, range(10)) != 45:
        raise Lost("the pool has another result")


@job(2)
async def primitives(worker: Worker) -> None:
    await asyncio.gather(*(wakeloop.sleep(worker.chance.uniform(0, 0.01)) for _ in range(5)))
    listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
    async with listener, wakeloop.TcpStream.connect("127.0.0.1", listener.port) as stream:
        async with listener.accept() as peer:
            message = worker.chance.randbytes(worker.chance.choice([10, 300_000]))
            _, received = await asyncio.gather(stream.write_all(message), peer.readexactly(len(message)))
            if received != message:
                raise Lost("a stream has received other bytes")


@job(1)
async def files(worker: Worker) -> None:
    async with wakeloop.open(worker.shared.file, "rb") as file:
        await file.seek(100_000)
        if len(await file.read()) != 100_000:
            raise Lost("a file has another length")


# -- jobs between loops ----------------------------------------------------------------------------------------------


@job(5)
async def calls(worker: Worker) -> None:
    """Calls in other loops, which answer. A loop that is closed says so, and one that ends may not answer."""
    here = asyncio.get_running_loop()
    for _ in range(5):
        there = worker.shared.other_loop(worker.chance)
        if there is None:
            return
        answered, dropped = wakeloop.Event(), asyncio.Event()

        class Call:
            """What the other loop is to call. It is dropped there if the loop ends first."""

            def __init__(self, answered: wakeloop.Event, dropped: asyncio.Event) -> None:
                self._answered, self._dropped = answered, dropped

            def __call__(self) -> None:
                self._answered.set()

            def __del__(self) -> None:
                with contextlib.suppress(RuntimeError):
                    here.call_soon_threadsafe(self._dropped.set)

        try:
            there.call_soon_threadsafe(Call(answered, dropped))
        except RuntimeError:
            continue  # it is closed
        waits = [asyncio.ensure_future(answered.wait()), asyncio.ensure_future(dropped.wait())]
        try:
            done: set[Any] = set()
            while not done:
                done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED, timeout=1)
                if not done and there.is_closed() and not isinstance(there, wakeloop.EventLoop):
                    break  # asyncio keeps a callback that comes while the loop is closed
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


@job(3)
async def coroutines(worker: Worker) -> None:
    """Runs coroutines in other loops, and cancels some of them from here."""
    there = worker.shared.other_loop(worker.chance)
    if there is None or there is asyncio.get_running_loop():
        return

    async def work(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "result"

    long = worker.chance.random() < 0.5
    coroutine = work(PATIENCE if long else 0.001)
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, there)
    except RuntimeError:
        coroutine.close()
        return
    if long:
        await asyncio.sleep(worker.chance.uniform(0, 0.01))
        future.cancel()
        if not future.cancelled():
            raise Lost("a coroutine could not be cancelled from another loop")
        return
    try:
        # A loop that ends cancels it, or drops it: then nobody answers.
        if await asyncio.wait_for(asyncio.wrap_future(future), 1) != "result":
            raise Lost("a coroutine in another loop has another result")
    except (asyncio.CancelledError, concurrent.futures.CancelledError, TimeoutError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise


@job(2)
async def wrong_threads(worker: Worker) -> None:
    """What asyncio refuses is refused, and what it does not refuse breaks nothing."""
    there = worker.shared.other_loop(worker.chance)
    if there is None or there is asyncio.get_running_loop():
        return
    loop = asyncio.get_running_loop()
    fired: list[int] = []
    handle = loop.call_later(0.05, fired.append, 1)
    soon = loop.call_soon(lambda: None)
    others = threading.Thread(target=lambda: (handle.cancel(), soon.cancel()))
    others.start()
    # Blocks the loop, so that no timer is due meanwhile.
    others.join()
    await asyncio.sleep(0.06)
    if fired:
        raise Lost("a timer fired that another thread had cancelled")
    # Without a GIL, the run may end between the question and the call, which then closes the loop under its Runner.
    if not FREE_THREADED and there.is_running():
        try:
            there.close()
        except RuntimeError as error:
            if "Cannot close a running event loop" not in str(error):
                raise
        # Without an error, it had just ended, and is closed twice.
    if there.get_debug() and there.is_running():
        with contextlib.suppress(RuntimeError):
            there.call_soon(lambda: None)


@job(2)
async def queues(worker: Worker) -> None:
    """A conversation with another loop over queues of their own."""
    there = worker.shared.other_loop(worker.chance)
    if there is None:
        return
    asks, answers = wakeloop.Queue[int](1), wakeloop.Queue[int](1)

    async def answer() -> None:
        try:
            while True:
                await answers.put(await asks.get() + 1)
        except wakeloop.QueueShutDown:
            pass
        finally:
            answers.shutdown()

    coroutine = answer()
    try:
        future = asyncio.run_coroutine_threadsafe(coroutine, there)
    except RuntimeError:
        coroutine.close()
        return
    try:
        for number in range(10):
            await asks.put(number)
            async with asyncio.timeout(1):
                if await answers.get() != number + 1:
                    raise Lost("another answer")
    except (wakeloop.QueueShutDown, TimeoutError):
        pass  # the other loop has ended
    finally:
        asks.shutdown(immediate=True)
        answers.shutdown(immediate=True)
        future.cancel()


# -- all of it -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def certificate(directory: Path) -> Iterator[tuple[ssl.SSLContext, ssl.SSLContext]]:
    key, cert = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(cert, key)
    yield serves, ssl.create_default_context(cafile=str(cert))


def stress(
    seconds: float,
    loops: int,
    seed: int,
    factory: Callable[[], asyncio.AbstractEventLoop],
    *,
    with_tls: bool = True,
    report: Callable[[Shared], None] | None = None,
) -> Counter[str]:
    """Runs it. Returns how often each job was done. Raises Lost if anything went wrong."""
    with tempfile.TemporaryDirectory(prefix="wl") as name, contextlib.ExitStack() as stack:
        contexts = stack.enter_context(certificate(Path(name))) if with_tls else None
        shared = Shared(Path(name), contexts)
        # It logs that the loop of a cancelled future is closed.
        logger = logging.getLogger("concurrent.futures")
        stack.callback(setattr, logger, "disabled", logger.disabled)
        logger.disabled = True
        workers = [Worker(shared, number, seed, factory) for number in range(loops)]
        blocking = [
            threading.Thread(target=pass_tokens_blocking, args=(shared, seed + number)) for number in range(THREADS)
        ]
        threads = [*(worker.thread for worker in workers), *blocking]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not shared.over.wait(min(30, seconds)):
            if report is not None:
                report(shared)
        shared.over.set()
        shared.ended.set()
        for thread in threads:
            thread.join(PATIENCE)
        stuck = [thread.name for thread in threads if thread.is_alive()]
        if stuck:
            shared.fail(f"still running: {stuck}")
        tokens = sorted(token for items in shared.queues for token in iter_now(items))
        if tokens != list(range(TOKENS)):
            shared.fail(f"{len(tokens)} tokens are left of {TOKENS}, {len(set(tokens))} different ones")
        if shared.failures:
            raise Lost("\n\n".join(shared.failures[:10]))
        return shared.done


def iter_now(items: wakeloop.Queue[int]) -> Iterator[int]:
    with contextlib.suppress(asyncio.QueueEmpty):
        while True:
            yield items.get_nowait()
