"""The soak test: does everything a service does, over and over, and checks that nothing grows.

    python -m tests.soak [--minutes N] [--loop wakeloop|asyncio] [--observed]

Each cycle makes a loop, serves and talks over TCP, Unix sockets, UDP, TLS and pipes, starts processes, sets and
cancels timers, fails in callbacks, cancels in the middle of everything, and closes the loop. Every byte is checked.
After each cycle it counts open descriptors, threads, Python objects and resident memory. The first cycles warm
caches. After them descriptors and threads must stay the same, and memory and objects must not grow.

With --observed, everything that looks at a running loop is on, and is asked in each cycle: the watchdog, the flight
recorder, the window, the times of task steps, metrics, tasks and their text for Prometheus.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import random
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import wakeloop

WARM_UP = 5
# The recorder's names, and the memory in which traces are made, fill later.
WARM_UP_OBSERVED = 150
# The most that one cycle may add to resident memory, in KiB, by the slope over all cycles: allocators vary.
MOST_PER_CYCLE = 24.0
MOST_OBJECTS_PER_CYCLE = 5.0


def resident() -> int:
    """Returns the resident memory in KiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def slope(values: list[float]) -> float:
    """Returns the growth per cycle: the slope of the line through the values."""
    return statistics.linear_regression(range(len(values)), values).slope if len(values) > 2 else 0.0


def certificate(directory: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key, cert = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=str(cert))
    return server, client


@contextlib.contextmanager
def everything_on(directory: Path) -> Iterator[wakeloop.Recorder]:
    with (
        wakeloop.admin(),
        open(os.devnull, "w") as nowhere,
        wakeloop.watchdog(0.01, file=nowhere),
        wakeloop.record(directory / "trace.json") as recorder,
    ):
        yield recorder


class Cycle:
    def __init__(
        self,
        contexts: tuple[ssl.SSLContext, ssl.SSLContext],
        directory: Path,
        seed: int,
        recorder: wakeloop.Recorder | None,
    ) -> None:
        self.server_tls, self.client_tls = contexts
        self.directory = directory
        self.random = random.Random(seed)
        self.recorder = recorder

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(self.random.choice([100, 1000, 65536])):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def talk(self, connect: Callable[[], Any]) -> None:
        reader, writer = await connect()
        try:
            for _ in range(4):
                message = self.random.randbytes(self.random.choice([1, 100, 5_000, 200_000]))
                writer.write(message)
                answer = await asyncio.wait_for(reader.readexactly(len(message)), 60)
                assert answer == message
            if self.random.random() < 0.3:
                writer.transport.abort()
        finally:
            writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass

    async def streams(self) -> None:
        path = str(self.directory / "socket")
        plain = await asyncio.start_server(self.echo, "127.0.0.1", 0)
        secret = await asyncio.start_server(self.echo, "127.0.0.1", 0, ssl=self.server_tls)
        local = await asyncio.start_unix_server(self.echo, path)
        ports = [server.sockets[0].getsockname()[1] for server in (plain, secret)]
        await asyncio.gather(
            *[self.talk(lambda: asyncio.open_connection("127.0.0.1", ports[0])) for _ in range(8)],
            *[
                self.talk(
                    lambda: asyncio.open_connection(
                        "127.0.0.1", ports[1], ssl=self.client_tls, server_hostname="localhost"
                    )
                )
                for _ in range(4)
            ],
            *[self.talk(lambda: asyncio.open_unix_connection(path)) for _ in range(4)],
        )
        # Cancelled in the middle of whatever it is doing.
        tasks = [
            asyncio.create_task(self.talk(lambda: asyncio.open_connection("127.0.0.1", ports[0]))) for _ in range(6)
        ]
        await asyncio.sleep(self.random.random() * 0.005)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in (plain, secret, local):
            server.close()
            await server.wait_closed()

    async def datagrams(self) -> None:
        loop = asyncio.get_running_loop()
        arrived: asyncio.Queue[bytes] = asyncio.Queue()

        class Echo(asyncio.DatagramProtocol):
            def connection_made(self, transport: Any) -> None:
                self.transport = transport

            def datagram_received(self, data: bytes, addr: Any) -> None:
                self.transport.sendto(data, addr)

        class Client(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                arrived.put_nowait(data)

        server, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
        client, _ = await loop.create_datagram_endpoint(Client, remote_addr=server.get_extra_info("sockname"))
        for number in range(50):
            client.sendto(b"%d" % number)
            assert await asyncio.wait_for(arrived.get(), 10) == b"%d" % number
        client.close()
        server.close()

    async def processes(self) -> None:
        async def one(number: int) -> None:
            process = await asyncio.create_subprocess_exec(
                "cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            message = b"%d" % number * 10_000
            out, _ = await process.communicate(message)
            assert out == message and process.returncode == 0

        await asyncio.gather(*[one(number) for number in range(4)])

    async def callbacks(self) -> None:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda loop, context: reported.append(context["message"]))
        for number in range(200):
            handle = loop.call_later(self.random.random(), int, "not a number")
            if number % 10:
                handle.cancel()
            loop.call_soon(int, "not a number")
        done = asyncio.Event()
        thread = threading.Thread(target=lambda: loop.call_soon_threadsafe(done.set))
        thread.start()
        await done.wait()
        thread.join()
        await loop.run_in_executor(None, time.sleep, 0)
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            pass
        assert len(reported) >= 200
        await wakeloop.sleep(0.001)

    async def observe(self) -> None:
        if self.recorder is None:
            return
        loop = asyncio.get_running_loop()
        assert isinstance(loop, wakeloop.EventLoop)
        wakeloop.track_waits()
        before = loop.metrics()
        for _ in range(4):
            await asyncio.sleep(self.random.uniform(0, 0.02))
            # The watchdog, and the log of slow turns, have something to report.
            loop.slow_turn_duration = 0.01
            time.sleep(self.random.choice([0, 0.015]))
            assert all(str(task) for task in wakeloop.tasks())
            assert wakeloop.metrics_text()
            wakeloop.runtime_metrics()
        await asyncio.to_thread(self.recorder.save)
        assert (loop.metrics() - before).turns > 0

    async def run(self) -> None:
        await asyncio.gather(self.streams(), self.datagrams(), self.processes(), self.callbacks(), self.observe())


def count(what: str, expected: float | None) -> float:
    """Counts again for a moment if there are more: the watchdog has a thread and a pipe while it writes a report."""
    end = time.monotonic() + 1
    while (found := len(os.listdir(f"/proc/self/{what}"))) != expected and expected and time.monotonic() < end:
        time.sleep(0.005)
    return found


def state(before: dict[str, float]) -> dict[str, float]:
    gc.collect()
    return {
        "descriptors": count("fd", before.get("descriptors")),
        "threads": count("task", before.get("threads")),
        "objects": len(gc.get_objects()),
        "KiB": resident(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="nothing may grow")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--loop", choices=["wakeloop", "asyncio"], default="wakeloop")
    parser.add_argument("--observed", action="store_true")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}")
    factory = wakeloop.new_event_loop if arguments.loop == "wakeloop" else asyncio.SelectorEventLoop
    states: list[dict[str, float]] = []
    end = time.monotonic() + arguments.minutes * 60
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        directory = Path(name)
        recorder = stack.enter_context(everything_on(directory)) if arguments.observed else None
        contexts = certificate(directory)
        number = 0
        while time.monotonic() < end or len(states) < 3:
            cycle = Cycle(contexts, directory, arguments.seed + number, recorder)
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(cycle.run())
            number += 1
            now = state(states[-1] if states else {})
            if number > (WARM_UP_OBSERVED if arguments.observed else WARM_UP):
                states.append(now)
            if number % 20 == 0:
                print(f"cycle {number}: " + ", ".join(f"{value:g} {name}" for name, value in now.items()), flush=True)
    series = {name: [each[name] for each in states] for name in states[0]}
    grown = {name: slope(values) for name, values in series.items()}
    print(f"{number} cycles; per cycle: " + ", ".join(f"{value:+.3f} {name}" for name, value in grown.items()))
    wrong = [name for name in ("descriptors", "threads") if len(set(series[name])) > 1]
    wrong += [name for name, most in (("KiB", MOST_PER_CYCLE), ("objects", MOST_OBJECTS_PER_CYCLE)) if grown[name] > most]
    print(f"grows: {', '.join(wrong)}" if wrong else "nothing grows")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
