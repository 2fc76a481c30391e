"""add_reader, add_writer and their removal: level-triggered, replaceable, with numbers and objects."""

import asyncio
import os
import socket
import sys
import time
import weakref

import pytest

from tests.loop.test_scheduling import run_once
from tests.support.script import run_script
from tests.support.sockets import socketpair


def test_a_reader_is_called_while_there_is_something_to_read(loop):
    """Level-triggered: the test reads nothing between the calls, and the calls continue."""
    with socketpair() as (near, far):
        calls = []

        def readable():
            calls.append(1)
            if len(calls) == 5:
                near.recv(100)
                loop.call_later(0.02, loop.stop)

        loop.add_reader(near, readable)
        far.send(b"x")
        loop.run_forever()
        assert len(calls) == 5
        assert loop.remove_reader(near) is True


@pytest.mark.parametrize("turns_before", [0, 3, 40])
def test_changes_to_a_watched_descriptor_are_reported_in_the_next_iteration(run, turns_before):
    """This holds however busy the loop is, and if the loop itself did not write: a send, and a listener that is shut
    down.
    """

    async def main():
        loop, seen = asyncio.get_running_loop(), []
        with socketpair() as (near, far), socket.create_server(("127.0.0.1", 0)) as listener:
            loop.add_reader(near, lambda: seen.append(near.recv(10)))
            loop.add_reader(listener, lambda: (seen.append("shut down"), loop.remove_reader(listener)))
            for number in range(10):
                for _ in range(turns_before):
                    await asyncio.sleep(0)
                far.send(b"%d" % number)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                assert seen == [b"%d" % number]
                seen.clear()
            listener.shutdown(socket.SHUT_RDWR)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert seen == ["shut down"]
            loop.remove_reader(near)

    run(main())


def test_a_writer_is_called_in_every_iteration_while_there_is_room(loop):
    with socketpair() as (near, _):
        calls = []

        def writable():
            calls.append(1)
            if len(calls) == 5:
                assert loop.remove_writer(near) is True
                loop.call_later(0.01, loop.stop)

        loop.add_writer(near, writable)
        loop.run_forever()
        assert len(calls) == 5


def test_a_writer_waits_for_room(loop):
    with socketpair() as (near, far):
        seen = []
        with pytest.raises(BlockingIOError):
            while True:
                near.send(bytes(65536))
        loop.add_writer(near, lambda: (seen.append("writable"), loop.remove_writer(near), loop.stop()))
        loop.call_later(0.02, seen.append, "nothing for 20 ms")
        loop.call_later(0.03, lambda: drain(far))
        loop.run_forever()
        assert seen == ["nothing for 20 ms", "writable"]


def drain(sock):
    try:
        while sock.recv(1 << 20):
            pass
    except BlockingIOError:
        pass


def test_reader_and_writer_of_one_descriptor_are_independent(loop):
    with socketpair() as (near, far):
        seen = []
        loop.add_reader(near, lambda: (seen.append("read"), near.recv(1)))
        loop.add_writer(near, lambda: (seen.append("write"), loop.remove_writer(near)))
        far.send(b"x")
        loop.call_later(0.02, loop.stop)
        loop.run_forever()
        assert sorted(seen) == ["read", "write"]
        far.send(b"x")
        loop.call_later(0.02, loop.stop)
        loop.run_forever()
        assert sorted(seen) == ["read", "read", "write"]
        assert loop.remove_writer(near) is False
        assert loop.remove_reader(near) is True
        assert loop.remove_reader(near) is False


def test_adding_again_replaces_the_callback(loop):
    with socketpair() as (near, far):
        seen = []
        loop.add_reader(near, seen.append, "first")
        loop.add_reader(near.fileno(), lambda: (seen.append("second"), near.recv(1), loop.stop()))
        far.send(b"x")
        loop.run_forever()
        assert seen == ["second"]
        assert loop.remove_reader(near) is True


def test_a_callback_can_replace_and_remove_itself_and_others(loop):
    with socketpair() as (one, one_far), socketpair() as (two, two_far):
        seen = []

        def first(name):
            seen.append(name)
            loop.remove_reader(one)
            loop.remove_reader(two)

        loop.add_reader(one, first, "one")
        loop.add_reader(two, first, "two")
        one_far.send(b"x")
        two_far.send(b"x")
        loop.call_later(0.03, loop.stop)
        loop.run_forever()
        assert len(seen) == 1, "both were ready, and whichever ran first removed the other"


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_a_watcher_whose_handle_was_cancelled_is_taken_out(loop, kind):
    """The descriptor stays ready: if it were still watched, it would wake the loop again and again."""
    with socketpair() as (near, far):
        far.send(b"x")
        seen = []
        handle = getattr(loop, f"_add_{kind}")(near.fileno(), seen.append, "called")
        handle.cancel()
        turns, start = turns_of(loop), time.process_time()
        loop.run_until_complete(asyncio.sleep(0.2))
        assert turns_of(loop) - turns < 10 and time.process_time() - start < 0.1
        assert getattr(loop, f"remove_{kind}")(near) is False
        assert seen == []


def turns_of(loop):
    return loop.metrics().turns if hasattr(loop, "metrics") else 0


def test_arguments_and_context_reach_the_callback(loop):
    with socketpair() as (near, far):
        seen = []
        loop.add_reader(near, lambda *args: (seen.append(args), near.recv(1), loop.stop()), 1, 2, 3, 4)
        far.send(b"x")
        loop.run_forever()
        assert seen == [(1, 2, 3, 4)]
        loop.remove_reader(near)


def test_end_of_file_and_hang_up_make_a_reader_ready(loop):
    reader, writer = os.pipe()
    seen = []
    try:
        loop.add_reader(reader, lambda: (seen.append(os.read(reader, 10)), loop.stop()))
        os.close(writer)
        loop.run_forever()
        assert seen == [b""]
        loop.remove_reader(reader)
    finally:
        os.close(reader)


def test_a_broken_pipe_makes_a_writer_ready(loop):
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, bytes(65536))
        loop.add_writer(writer, loop.stop)
        loop.call_later(0.01, os.close, reader)
        loop.run_forever()
        with pytest.raises(BrokenPipeError):
            os.write(writer, b"x")
        loop.remove_writer(writer)
    finally:
        os.close(writer)


def test_a_reused_descriptor_number_is_a_new_descriptor(loop):
    """The descriptor is closed after removal and opened again with the same number: the new one is watched."""
    for _ in range(20):
        with socketpair() as (near, far):
            loop.add_reader(near, lambda near=near: (near.recv(1), loop.stop()))
            far.send(b"x")
            loop.run_forever()
            assert loop.remove_reader(near)


def test_an_object_that_is_not_a_descriptor_is_refused(loop):
    for bad in (-1, "name", None, 1.5, object()):
        for method in (loop.add_reader, loop.add_writer):
            with pytest.raises((ValueError, TypeError)):
                method(bad, print)
    with pytest.raises(ValueError):
        loop.add_reader(-1, print)
    closed = socket.socket()
    closed.close()
    with pytest.raises(ValueError):
        loop.add_reader(closed, print)
    run_once(loop)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="CPython warns since 3.13")
@pytest.mark.parametrize("method", ["add_reader", "add_writer"])
def test_a_bool_as_a_descriptor_is_warned_of(loop_name, method):
    body = f"""
        import socket, warnings, os
        near, far = socket.socketpair()
        os.dup2(near.fileno(), 0)
        loop = new_loop()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loop.{method}(0, print)
            loop.{method.replace("add", "remove")}(0)
            print(len(caught))
            loop.{method}(False, print)
            print([(warning.category.__name__, str(warning.message)) for warning in caught])
            loop.{method.replace("add", "remove")}(False)
            warnings.simplefilter("error")
            try:
                loop.{method}(False, print)
            except RuntimeWarning as warning:
                print(warning)
        print(loop.{method.replace("add", "remove")}(0))
        loop.close()
    """
    outcome = run_script(loop_name, body)
    text = "bool is used as a file descriptor"
    expected = ["0", str([("RuntimeWarning", text)]), text, "False"]
    assert outcome.out.splitlines() == expected and not outcome.err, outcome


def test_a_descriptor_that_cannot_be_polled_is_an_error_of_the_system(loop, tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(PermissionError):
        loop.add_reader(file, print)
    run_once(loop)


def test_a_descriptor_number_out_of_range_is_ebadf(loop_name):
    """A table of that size would take 16 GB."""
    body = """
        import errno, resource
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
        loop = new_loop()
        for number in (100_000, 2**31 - 1):
            for method in (loop.add_reader, loop.add_writer):
                try:
                    method(number, print)
                except OSError as error:
                    print(errno.errorcode[error.errno])
        assert loop.run_until_complete(asyncio.sleep(0, "alive")) == "alive"
        loop.close()
    """
    outcome = run_script(loop_name, body)
    assert (outcome.out, outcome.err, outcome.code) == ("EBADF\n" * 4, "", 0), outcome


def test_add_reader_on_a_closed_loop_raises(loop_factory):
    loop = loop_factory()
    with socketpair() as (near, _):
        loop.add_reader(near, print)
        loop.close()
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            loop.add_reader(near, print)
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            loop.add_writer(near, print)


def test_the_descriptor_of_a_transport_may_not_be_watched(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, _):
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            for method in (loop.add_reader, loop.add_writer):
                with pytest.raises(RuntimeError, match="is used by transport"):
                    method(near.fileno(), print)
            with pytest.raises(RuntimeError, match="is used by transport"):
                loop.remove_reader(near.fileno())
            transport.abort()
            await asyncio.sleep(0)

    run(main())


def test_hundreds_of_descriptors_are_served_fairly(loop):
    pairs = [socket.socketpair() for _ in range(200)]
    counts = dict.fromkeys(range(200), 0)

    def readable(number):
        counts[number] += 1
        if sum(counts.values()) >= 2000:
            loop.stop()

    for number, (near, far) in enumerate(pairs):
        loop.add_reader(near, readable, number)
        far.send(b"x")
    loop.run_forever()
    for near, far in pairs:
        loop.remove_reader(near)
        near.close()
        far.close()
    assert min(counts.values()) > 0 and max(counts.values()) - min(counts.values()) <= 10


@pytest.mark.parametrize("direction", ["reader", "writer"])
def test_a_socket_closed_while_it_was_watched_can_be_removed_once(loop, direction):
    """As with a selector: the object is found although it has no descriptor any more (anyio relies on it)."""
    add, remove = getattr(loop, f"add_{direction}"), getattr(loop, f"remove_{direction}")
    with socketpair() as (near, _):
        add(near, lambda: None)
        near.close()
        assert remove(near) is True
        with pytest.raises(ValueError, match="Invalid file descriptor: -1"):
            remove(near)


class Borrower:
    """An object with a descriptor that it does not close."""

    def __init__(self, number):
        self.fileno = lambda: number


def test_a_watched_object_is_kept_alive_until_it_is_removed(loop):
    with socketpair() as (near, far):
        calls = []
        borrower = Borrower(near.fileno())
        loop.add_reader(borrower, lambda: (calls.append(near.recv(10)), loop.stop()))
        borrower = weakref.ref(borrower)
        assert borrower() is not None
        far.send(b"x")
        loop.run_forever()
        assert calls == [b"x"]
        assert loop.remove_reader(borrower()) is True
        assert borrower() is None


@pytest.mark.native
@pytest.mark.parametrize("by", ["object", "number"])
def test_a_reused_descriptor_is_watched_as_a_new_one(run, by):
    """asyncio gets no events for it: its selector still has the number."""

    async def main():
        loop = asyncio.get_running_loop()
        with socketpair() as (near, _):
            loop.add_reader(near, pytest.fail)
            number = near.fileno()
        with socketpair() as (one, other):
            near, far = (one, other) if one.fileno() == number else (other, one)
            if near.fileno() != number:
                pytest.skip("the number was not given again")
            called = asyncio.Event()
            loop.add_reader(near if by == "object" else number, called.set)
            far.send(b"x")
            await asyncio.wait_for(called.wait(), 5)
            assert loop.remove_reader(number)

    run(main())


def test_the_first_descriptor_may_be_that_of_a_transport(loop_name):
    body = """
        import os, socket

        near, far = socket.socketpair()
        os.dup2(near.detach(), 0)

        async def main():
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=socket.socket(fileno=0))
            try:
                loop.add_reader(0, print)
            except RuntimeError as error:
                print(error)
            transport.close()

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
    """
    done = run_script(loop_name, body)
    assert done.out.startswith("File descriptor 0 is used by transport <"), done
