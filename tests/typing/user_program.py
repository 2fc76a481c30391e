"""A program of a user who runs `mypy --strict` or strict pyright. Checked by tests/project/test_typing.py, never run.

Every public name of `wakeloop` is used here, so that nothing public is untyped. `assert_type` says what the
type checker must make of it.
"""

import asyncio
import pathlib
import signal
import sys
from typing import assert_type

import wakeloop
import wakeloop.waits
from wakeloop import fs


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.write(data)


class Service(wakeloop.EventLoop):
    """A loop of the user's own."""

    def time(self) -> float:
        return super().time() + 1.0


def add(one: int, other: int) -> int:
    return one + other


async def sleeping() -> str:
    assert_type(await wakeloop.sleep(0.1), None)
    assert_type(await wakeloop.sleep(1, "done"), str)
    await asyncio.wait_for(wakeloop.sleep(0.1), timeout=1)
    assert_type(await asyncio.gather(sum_of(1, 2), sum_of(3, 4)), tuple[int, int])
    return await wakeloop.sleep(0.1, result="slept")


async def sum_of(one: int, other: int) -> int:
    loop = asyncio.get_running_loop()
    assert_type(await loop.run_in_executor(None, add, one, other), int)
    return one + other


def later(delay: float) -> wakeloop.Operation[str]:
    """An operation is a coroutine: it can be annotated, made a task, and waited for with a timeout."""
    return wakeloop.sleep(delay, "done")


async def introspection(loop: asyncio.AbstractEventLoop) -> list[str]:
    wakeloop.track_waits()
    wakeloop.track_waits(False, loop=loop)
    long = [task for task in wakeloop.tasks(loop) if task.seconds is not None and task.seconds > 10]
    found: list[wakeloop.waits.TaskInfo] = wakeloop.tasks()
    assert_type(found[0].stack[0].line, int)
    assert_type(found[0].state, wakeloop.waits.State)
    return [f"{task.name}: {task.kind}, {task.waits_for}" for task in long]


async def operations() -> None:
    task: asyncio.Task[str] = asyncio.create_task(later(0.1))
    assert_type(await asyncio.wait_for(later(0.1), timeout=1), str)
    await task


async def blocking() -> None:
    assert_type(await wakeloop.spawn_blocking(add, 1, other=2), int)


async def talking() -> None:
    listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
    assert_type(listener, wakeloop.TcpListener)
    async with listener, wakeloop.TcpStream.connect(listener.host, listener.port, timeout=1.0) as stream:
        assert_type(stream, wakeloop.TcpStream)
        await stream.write_all(b"line\n")
        await stream.write_all(b"more", bytearray(b"lines"))
        assert_type(await stream.readuntil((b"\n", b"\r")), bytes)
        stream.write_eof()
        print(stream.at_eof(), stream.is_closing())
        async for other in listener:
            assert_type(await other.readline(), bytes)
            async for line in other:
                assert_type(line, bytes)
            other.close()
        await asyncio.wait_for(stream.readexactly(3), timeout=1)
    async with await wakeloop.UdpSocket.connect("127.0.0.1", 53) as socket:
        assert_type(socket, wakeloop.UdpSocket)
        await socket.send(b"query")
        assert_type(await socket.recv(), bytes)


async def filing() -> None:
    async with wakeloop.open("path", "rb") as file:
        assert_type(file, wakeloop.File)
        assert_type(await file.read(), bytes)
        assert_type(await file.readinto(bytearray(5)), int)
        async for data in file:
            assert_type(data, bytes)
    text = await wakeloop.open("path", "w", encoding="utf-8")
    assert_type(text, wakeloop.TextFile)
    assert_type(await text.write("text"), int)
    async for line in text:
        assert_type(line, str)
    async with fs.TemporaryFile() as temporary:
        assert_type(temporary, wakeloop.File)
    async with fs.NamedTemporaryFile("w") as named, fs.TemporaryDirectory() as folder:
        assert_type(named, wakeloop.TextFile)
        assert_type(await wakeloop.fs.listdir(folder), list[str])
    assert_type(await fs.exists("path"), bool)
    assert_type((await fs.stat("path")).st_size, int)
    async for _, folders, _ in fs.walk("path"):
        assert_type(folders, list[str])


async def serving() -> None:
    server = await wakeloop.start_echo_server("127.0.0.1", 0)
    assert_type(server, wakeloop.EchoServer)
    assert_type((server.host, server.port), tuple[str, int])
    assert_type(server.stats(), dict[str, int])
    server.close()
    await server.wait_closed()
    async with wakeloop.start_echo_server("127.0.0.1", 0) as other:
        assert_type(other, wakeloop.EchoServer)
        print(other.is_serving())


async def streaming() -> bytes:
    async def answer(reader: wakeloop.StreamReader, writer: wakeloop.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await wakeloop.start_server(answer, "127.0.0.1", 0, limit=1000)
    reader, writer = await wakeloop.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
    assert_type(reader, wakeloop.StreamReader)
    theirs: asyncio.StreamWriter = writer
    theirs.write(b"line\n")
    await writer.drain()
    line = assert_type(await reader.readexactly(5), bytes)
    server.close()
    await wakeloop.start_unix_server(answer, "/tmp/socket")
    reader, writer = await wakeloop.open_unix_connection("/tmp/socket")
    wakeloop.StreamReaderProtocol(reader)
    return line + await reader.readuntil(b"|")


async def on_the_loop(loop: wakeloop.EventLoop) -> None:
    assert_type(loop.call_soon(add, 1, 2), asyncio.Handle)
    assert_type(loop.call_later(0.5, print, "later"), asyncio.TimerHandle)
    assert_type(loop.call_soon_threadsafe(add, 1, 2), asyncio.Handle)
    assert_type(loop.create_task(sum_of(1, 2), name="sum"), asyncio.Task[int])
    earlier: wakeloop.LoopMetrics = loop.metrics()
    between = loop.metrics() - earlier
    delay: wakeloop.Histogram = between.delay
    print(between.turns, between.utilization, delay.percentile(99), delay.max)
    slow: tuple[wakeloop.SlowCallback, ...] = between.last_slow_turns
    print([each.name for each in slow])
    loop.slow_turn_duration = 0.1
    loop.reset_metrics()
    server = await loop.create_server(Echo, "127.0.0.1", 0)
    server.close()
    transport, protocol = await loop.create_connection(Echo, "127.0.0.1", 80)
    assert_type(protocol, Echo)
    transport.close()


async def passing_on() -> None:
    items: wakeloop.Queue[int] = wakeloop.Queue(maxsize=10)
    await items.put(1)
    assert_type(await items.get(), int)
    items.task_done()
    await items.join()
    side: wakeloop.SyncQueue[int] = items.sync_q
    side.put(2, timeout=0.5)
    assert_type(side.get(block=False), int)
    items.shutdown(immediate=True)
    try:
        items.put_nowait(3)
    except wakeloop.QueueShutDown as ended:
        print(ended, items.qsize(), items.full(), side.empty())
    event = wakeloop.Event()
    event.set()
    assert_type(await event.wait(), bool)
    print(event.is_set(), event.sync_wait(0.5))


async def answer(reader: wakeloop.StreamReader, writer: wakeloop.StreamWriter) -> None:
    writer.close()


async def many_loops(group: wakeloop.EventLoopGroup) -> list[int]:
    server: wakeloop.GroupServer = await group.start_server(answer, "127.0.0.1", 0, graceful_timeout=1)
    async with server, await group.create_server(Echo, "127.0.0.1", 0, reuse_port=False) as other:
        print(server.addresses, other.connections, other.is_serving())
    assert_type(await group.run_on(group.loops[-1], sum_of, 1, 2), int)
    assert_type(group.metrics(), list[wakeloop.LoopMetrics])
    return await group.run_on_each(sum_of, 1, 2)


async def main() -> int:
    wakeloop.configure(workers=2)
    with wakeloop.watchdog(0.5, file=sys.stderr) as watchdog:
        started: wakeloop.Watchdog = watchdog
        print(started.limit + 1, started.is_running())
    wakeloop.watchdog(file=2).stop()
    if isinstance(loop := asyncio.get_running_loop(), wakeloop.EventLoop):
        await on_the_loop(loop)
    try:
        await serving()
    except wakeloop.RuntimePanic as panic:
        print(panic)
    if metrics := wakeloop.runtime_metrics():
        assert_type(metrics - metrics, wakeloop.RuntimeMetrics)
        assert_type(metrics.per_worker, tuple[wakeloop.WorkerMetrics, ...])
        assert_type(metrics.per_worker[0].busy_seconds + metrics.delay.max, float)
    print(wakeloop.__version__, await streaming())
    with wakeloop.record("trace.json", size=1 << 16, signal=signal.SIGUSR2, slow_turns=True) as recorder:
        assert_type(recorder, wakeloop.Recorder)
        assert_type(wakeloop.Recorder.running(), wakeloop.Recorder | None)
        saved: str = recorder.save(pathlib.Path("other.json"))
        print(saved, recorder.path, recorder.active, recorder.events + recorder.dropped)
    with wakeloop.admin("127.0.0.1:0", limit="5s") as window:
        assert_type(window, wakeloop.Admin)
        print(window.addresses, window.limit, window.is_open())
    wakeloop.set_ready(False, limit=0.5)
    with wakeloop.label("GET /users"):
        pass
    text: str = wakeloop.metrics_text()
    print(text)
    await talking()
    return len(await sleeping())


def start() -> None:
    assert_type(wakeloop.run(main()), int)
    assert_type(wakeloop.run(main(), debug=True), int)
    assert_type(wakeloop.run(main(), loop_factory=Service), int)
    with asyncio.Runner(loop_factory=wakeloop.new_event_loop) as runner:
        assert_type(runner.run(main()), int)
    with wakeloop.EventLoopGroup(2) as group:
        assert_type(group.run(many_loops(group)), list[int])
    wakeloop.install()
    asyncio.set_event_loop_policy(wakeloop.EventLoopPolicy())  # pyright: ignore[reportDeprecated]
    assert_type(asyncio.run(main()), int)
    assert_type(wakeloop.new_event_loop(), wakeloop.EventLoop)
    loop: asyncio.AbstractEventLoop = Service()
    loop.close()
