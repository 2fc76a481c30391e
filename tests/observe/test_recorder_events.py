"""What the flight recorder records: callbacks, tasks, timers, turns, reads and writes, the runtime and the GIL."""

import asyncio
import collections
import itertools
import os
import threading
import time

import pytest
import wakeloop

from tests.support.builds import FREE_THREADED
from tests.support.nesting import make_nestable, run_nested
from tests.support.recorder import TOLERANCE, Truth, record, recorded, recorder_stops, trace_path  # noqa: F401
from tests.support.sockets import socketpair
from tests.support.tls_pair import Echo, close, secure_pair
from tests.support.trace import ends

pytestmark = pytest.mark.native


def test_callbacks_timers_and_tasks_have_their_names_and_their_real_times(run, path):
    truth = Truth()

    async def task():
        truth.callback("Task-me: task")()

    async def main():
        loop = asyncio.get_running_loop()
        loop.call_soon(truth.callback("soon"))
        loop.call_later(0.001, truth.callback("later"))
        loop.call_soon_threadsafe(truth.callback("threadsafe"))
        await loop.create_task(task(), name="Task-me")
        await asyncio.sleep(0.003)
        await loop.run_in_executor(None, truth.callback("job"))
        del truth.ran["job"]  # it ran in another thread

    task.__qualname__ = "task"
    trace = record(path, run, main())
    truth.check(trace)
    assert {event["cat"] for event in trace.find("soon")} == {"callback"}
    assert trace.find("soon")[0]["args"] == {"module": Truth.__module__}
    assert trace.find("Task-me: task")[0]["cat"] == "task"
    assert trace.find("Task-me: task")[0]["args"] == {"task": "Task-me", "coroutine": "task"}
    assert trace.names(category="turn") and trace.names(category="poll")
    assert len([event for event in trace.instants if event["name"] == "timer"]) >= 2
    assert all(event["args"]["late_us"] >= 0 for event in trace.instants if event["name"] == "timer")


def test_a_query_finds_the_slow_callback(run, path):
    class Service:
        def fast(self):
            pass

        def blocks(self):
            time.sleep(0.05)

    async def main():
        service, loop = Service(), asyncio.get_running_loop()
        for _ in range(50):
            loop.call_soon(service.fast)
            await asyncio.sleep(0)
        loop.call_soon(service.blocks)
        await asyncio.sleep(0.01)

    slowest = record(path, run, main()).slowest()
    assert slowest["name"].endswith("Service.blocks") and slowest["dur"] >= 50_000


def test_callbacks_are_inside_of_turns_and_polls_are_not(run, path):
    async def main():
        for _ in range(20):
            asyncio.get_running_loop().call_soon(int)
            await asyncio.sleep(0.0005)

    trace = record(path, run, main())
    turns = [ends(turn) for turn in trace.find(category="turn")]

    def in_a_turn(event):
        start, end = ends(event)
        return any(turn[0] - 2e-9 <= start and end <= turn[1] + 2e-9 for turn in turns)

    assert all(map(in_a_turn, trace.find(category="callback") + trace.find(category="task")))
    assert not any(map(in_a_turn, trace.find(category="poll")))


def test_reads_and_writes_of_a_protocol_have_descriptor_and_size(run, path):
    sizes = [1, 1000, 70_000]

    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        fd = writer.get_extra_info("socket").fileno()
        for size in sizes:
            writer.write(bytes(size))
            await reader.readexactly(size)
        writer.close()
        await writer.wait_closed()
        server.close()
        return fd

    with recorded(path) as found:
        fd = run(main())
    sums = collections.Counter()
    for event in found[0].find(category="io"):
        if "bytes" in event.get("args", {}):
            sums[event["name"], event["args"]["fd"] == fd] += event["args"]["bytes"]
    # The data goes both ways, and each way is sent and received once.
    assert sums == {(name, near): sum(sizes) for name in ("send", "receive") for near in (True, False)}
    assert "Echo.data_received" in found[0].names(category="callback")


def test_reads_and_writes_of_datagrams_pipes_and_sockets_have_their_sizes(run, path):
    async def datagrams():
        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data, address):
                received.set_result(data)

        loop, received = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        far, _ = await loop.create_datagram_endpoint(Receiver, ("127.0.0.1", 0))
        near, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=far.get_extra_info("sockname")
        )
        near.sendto(bytes(101))
        await received
        near.close()
        far.close()

    async def pipes():
        loop, (read_end, write_end) = asyncio.get_running_loop(), os.pipe()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_end, "rb", 0))
        transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, open(write_end, "wb", 0))
        transport.write(bytes(202))
        transport.close()
        assert len(await reader.read()) == 202

    async def sockets():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, far):
            receiving = loop.create_task(loop.sock_recv(far, 1000))
            await asyncio.sleep(0.001)
            await loop.sock_sendall(near, bytes(303))
            assert len(await receiving) == 303
            await loop.sock_sendall(near, bytes(404))
            assert await loop.sock_recv_into(far, bytearray(1000)) == 404

    async def main():
        await datagrams()
        await pipes()
        await sockets()
        await asyncio.sleep(0)

    trace = record(path, run, main())
    events = trace.find(category="io") + [event for event in trace.instants if event["cat"] == "io"]
    seen = collections.Counter((event["name"], event["args"].get("bytes")) for event in events)
    for size in (101, 202, 303, 404):
        assert seen["send", size] == seen["receive", size] == 1, (size, seen)


def test_a_datagram_that_goes_through_the_programs_own_socket_has_its_size(run, path):
    """So it does while an audit hook wants to see the sends, and for an address that Python has to understand."""

    async def main():
        loop, received = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        class Receiver(asyncio.DatagramProtocol):
            def datagram_received(self, data, addr):
                received.set_result(data)

        far, _ = await loop.create_datagram_endpoint(Receiver, ("127.0.0.1", 0))
        near, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=("127.0.0.1", 0))
        near.sendto(bytes(105), ("localhost", far.get_extra_info("sockname")[1]))
        assert len(await received) == 105
        near.close()
        far.close()
        await asyncio.sleep(0)

    trace = record(path, run, main())
    assert [event["args"].get("bytes") for event in trace.find("send")] == [105]


def test_a_protocol_on_tls_is_named(run, path, tls, tls_engine):
    async def main():
        near, far = await secure_pair(tls, far=Echo)
        near.transport.write(b"hello")
        await near.received(5) if hasattr(near, "received") else await asyncio.sleep(0.05)
        await close(near, far)

    trace = record(path, run, main())
    assert "Echo.data_received" in trace.names(category="callback")


def test_the_runtime_has_a_track_for_each_worker(run, path, runtime):
    async def main():
        await asyncio.gather(*[wakeloop.sleep(0.003) for _ in range(20)])

    trace = record(path, run, main())
    polls = [event for event in trace.find(category="runtime", thread="runtime wakeloop") if event["name"] != "parked"]
    assert len(polls) >= 20 and all("::" in event["name"] for event in polls)
    assert trace.find("parked", thread="runtime wakeloop")


def test_two_loops_have_a_track_each_and_the_gil_has_one(path, loop_factory):
    truths = [Truth(), Truth()]
    barrier = threading.Barrier(2)

    def run(index):
        async def main():
            barrier.wait()
            for turn in range(5):
                asyncio.get_running_loop().call_soon(truths[index].callback(f"{index}-{turn}", 0.001))
                await asyncio.sleep(0.001)

        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())

    with recorded(path) as found:
        threads = [threading.Thread(target=run, args=(index,), name=f"loop {index} \"x\"") for index in (0, 1)]
        for thread in threads:
            thread.start()
        numbers = [thread.native_id for thread in threads]
        for thread in threads:
            thread.join()
    (trace,) = found
    for index, truth in enumerate(truths):
        truth.check(trace)
        assert {event["tid"] for name in truth.ran for event in trace.find(name)} == {numbers[index]}
    assert list(trace.threads.values()).count("GIL") == (not FREE_THREADED)
    held = trace.find("event loop", thread="GIL")
    assert {event["args"]["thread"] for event in held} == (set() if FREE_THREADED else set(numbers))
    # The checker has found that they do not overlap.
    assert all(first["ts"] + first["dur"] <= second["ts"] + 0.01 for first, second in itertools.pairwise(held))


@pytest.mark.measured
def test_a_thread_that_keeps_the_gil_is_seen(run, path):
    """The loop wants the GIL, and a thread in one long C call has it."""
    times = []

    def keep():
        time.sleep(0.02)  # Until then the loop polls.
        start = time.monotonic()
        sum(range(4_000_000))
        times.append(time.monotonic() - start)

    async def main():
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(None, keep)
        while not job.done():
            await asyncio.sleep(0.001)

    seen = []
    for _ in range(11):
        times.clear()
        trace = record(path, run, main())
        (kept,) = times
        waits = [event["dur"] / 1e6 for event in trace.find("wait for the GIL")]
        others = [event["dur"] / 1e6 for event in trace.find("another thread", thread="GIL")]
        # The loop begins to wait when its sleep is over.
        is_close = bool(waits) and kept / 2 <= max(waits) <= kept + TOLERANCE and max(others) == max(waits)
        seen.append((is_close, kept, waits))
    assert sum(is_close for is_close, _, _ in seen) > len(seen) / 2, seen


def test_debug_mode_and_patches_are_recorded_too(loop, path, monkeypatch):
    original = asyncio.Handle._run
    for patched in (False, True):
        if patched:
            monkeypatch.setattr(asyncio.Handle, "_run", lambda handle: original(handle))
        for debug in (False, True):
            loop.set_debug(debug)
            truth = Truth()
            with recorded(path) as found:
                loop.call_soon(truth.callback("seen"))
                loop.run_until_complete(asyncio.sleep(0))
            truth.check(found[0])


def test_a_loop_that_python_steps_records_its_polls_and_callbacks(loop, path):
    make_nestable(loop)
    truth = Truth()

    async def main():
        await asyncio.sleep(0.001)
        for name in ("first", "second"):
            loop.call_soon(truth.callback(name))
        run_nested(loop, asyncio.sleep(0.001))

    with recorded(path) as found:
        loop.run_until_complete(main())
    truth.check(found[0])
    assert len(found[0].find("poll")) >= 4


def test_cancelled_callbacks_are_not_recorded(run, path):
    async def main():
        loop = asyncio.get_running_loop()
        handle = loop.call_soon(Truth().callback("cancelled"))
        loop.call_soon(Truth().callback("not cancelled"))
        handle.cancel()
        await asyncio.sleep(0)

    names = record(path, run, main()).names(category="callback")
    assert "not cancelled" in names and "cancelled" not in names
