"""What a `wakeloop.TcpStream` leaves behind: after a cancelled call, a dropped stream, a fork, or the end of the
process.
"""

import asyncio
import contextlib
import gc
import random
import socket
import sys
import threading

import pytest

from tests.support.tcp_stream import connected
from tests.support import script

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="the primitives are wakeloop's; the control group has none")


def test_a_write_releases_its_data_when_it_completes(run):
    async def main():
        async with connected() as (stream, peer):
            data = bytes(20_000_000)
            before = sys.getrefcount(data)

            async def until_let_go():
                while sys.getrefcount(data) != before:
                    await asyncio.sleep(0.01)

            cancelled = asyncio.ensure_future(stream.write_all(data))
            await asyncio.sleep(0.01)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            await until_let_go()

            def receive():
                while peer.recv(1_000_000):
                    pass

            receiving = threading.Thread(target=receive)
            receiving.start()
            await stream.write_all(data)
            await until_let_go()
            stream.write_eof()
            while receiving.is_alive():
                await asyncio.sleep(0.001)
            receiving.join()

    run(main())


def test_many_cancelled_reads_leave_nothing_behind(run):
    async def main():
        async with connected() as (stream, _peer):

            async def give_up(count):
                for _ in range(count):
                    reading = asyncio.ensure_future(stream.readline())
                    await asyncio.sleep(0)
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await reading

            await give_up(100)
            before = sys.getallocatedblocks()
            await give_up(1000)
            assert sys.getallocatedblocks() - before < 500

    run(main())


def test_a_stream_that_is_dropped_open_is_closed_with_a_warning(run):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as server:
            stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
            peer, _ = server.accept()
            peer.settimeout(10)
            with peer:
                with pytest.warns(ResourceWarning, match="unclosed <wakeloop.TcpStream"):
                    del stream
                    gc.collect()
                assert peer.recv(1) == b""

    run(main())


def test_a_read_in_a_dropped_task_releases_the_stream(run, asyncio_log):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as server:
            stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
            peer, _ = server.accept()
            peer.settimeout(10)
            with peer:
                coroutine = stream.readline()
                with pytest.warns(ResourceWarning):
                    assert coroutine.send(None)  # waits
                    del coroutine, stream
                    gc.collect()
                assert await wakeloop.spawn_blocking(peer.recv, 1) == b""

    run(main())


def test_a_storm_of_cancels_leaves_no_future_behind(run):
    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0)
        udp = await wakeloop.UdpSocket.bind("127.0.0.1", 0)
        before = wakeloop.runtime_metrics().tasks_live
        async with connected() as (stream, peer):
            for _ in range(30):
                tasks = [asyncio.ensure_future(wakeloop.sleep(60)) for _ in range(30)]
                tasks += [asyncio.ensure_future(listener.accept()) for _ in range(30)]
                tasks += [asyncio.ensure_future(udp.recv()) for _ in range(30)]
                tasks += [asyncio.ensure_future(stream.write_all(bytes(9_000_000))) for _ in range(3)]
                tasks += [asyncio.ensure_future(stream.readline())]
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(random.choice([0, 0.001]))
                for task in tasks:
                    task.cancel()
                results = await asyncio.gather(*tasks, return_exceptions=True)
                assert {type(result) for result in results} == {asyncio.CancelledError}
        listener.close()
        udp.close()
        while wakeloop.runtime_metrics().tasks_live > before:
            await asyncio.sleep(0.01)

    run(main())


def test_a_forked_child_refuses_the_parents_stream(loop_name):
    done = script.run_script(
        loop_name,
        """
        import os, socket, wakeloop
        async def main():
            with socket.create_server(("127.0.0.1", 0)) as server:
                stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
                peer, _ = server.accept()
                pending = asyncio.ensure_future(stream.readline())
                await asyncio.sleep(0.01)
                if not (child := os.fork()):
                    asyncio.events._set_running_loop(None)
                    async def in_child():
                        await wakeloop.sleep(0.001)
                        try:
                            await stream.read(1)
                        except RuntimeError as error:
                            print("child:", error, flush=True)
                    fresh = new_loop()
                    fresh.run_until_complete(in_child())
                    stream.close()
                    os._exit(0)
                os.waitpid(child, 0)
                peer.sendall(b"still there\\n")
                print(await pending, flush=True)
                stream.close()
                peer.close()
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
        """,
        options=("-W", "ignore::DeprecationWarning"),
    )
    expected = "child: this stream belongs to the parent process\nb'still there\\n'\n"
    assert (done.code, done.out, done.err) == (0, expected, "")


@pytest.mark.parametrize("end", ["sys.exit(3)", "os._exit(3)", "raise SystemExit(3)"])
def test_an_interpreter_that_exits_with_reads_in_flight_is_silent(loop_name, end):
    done = script.run_script(
        loop_name,
        f"""
        import os, socket, sys, threading, wakeloop
        server = socket.create_server(("127.0.0.1", 0))
        def send():
            peer, _ = server.accept()
            while True:
                peer.sendall(b"line\\n" * 10000)
        threading.Thread(target=send, daemon=True).start()
        async def main():
            stream = await wakeloop.TcpStream.connect("127.0.0.1", server.getsockname()[1])
            count = 0
            async for line in stream:
                count += 1
                if count > 100_000:
                    {end}
        asyncio.set_event_loop(loop := new_loop())
        loop.run_until_complete(main())
        """,
        options=("-W", "ignore"),
    )
    assert (done.code, done.out, done.err) == (3, "", "")
