"""Unused objects are freed: cycles that the collector must find, and objects that must not grow with each use."""

import asyncio
import gc
import os
import socket
import weakref

import pytest
import wakeloop

from tests.support.sockets import socketpair


class Thing:
    """An object that can be weakly referenced."""

    def fail(self, *_arguments):
        raise RuntimeError("fails")


def alive(watched):
    gc.collect()
    return [reference() for reference in watched if reference() is not None]


async def turns(count=4):
    for _ in range(count):
        await asyncio.sleep(0)


# -- handles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("schedule", ["call_soon", "call_later", "call_soon_threadsafe"])
def test_a_handle_whose_callback_failed_is_collected_with_its_callback(loop, schedule, debug):
    loop.set_debug(debug)
    loop.set_exception_handler(lambda loop, context: None)
    delay = (0,) if schedule == "call_later" else ()
    watched = []
    for _ in range(5):
        thing = Thing()
        thing.handle = getattr(loop, schedule)(*delay, thing.fail, thing)
        watched.append(weakref.ref(thing))
        del thing
    loop.run_until_complete(asyncio.sleep(0.005))
    assert alive(watched) == []


def test_a_handle_whose_callback_ended_the_run_is_collected_with_its_callback(loop):
    def end(thing):
        raise KeyboardInterrupt

    thing = Thing()
    thing.handle = loop.call_soon(end, thing)
    watched = [weakref.ref(thing)]
    del thing
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    assert alive(watched) == []


def test_a_kept_exception_context_names_its_callback_and_is_collected(loop):
    contexts, watched = [], []
    loop.set_exception_handler(lambda loop, context: contexts.append(context))

    class Named(Thing):
        def __call__(self):
            self.fail()

        def __repr__(self):
            return "<the callback>"

    thing = Named()
    thing.contexts = contexts
    watched.append(weakref.ref(thing))
    loop.call_soon(thing)
    future = loop.create_future()
    future.add_done_callback(thing.fail)
    future.set_result(None)
    loop.run_until_complete(turns())
    first, second = (repr(context["handle"]) for context in contexts)
    assert "the callback" in first and "Thing.fail" in second
    loop.set_exception_handler(None)
    del thing, future, contexts
    assert alive(watched) == []


# -- socket calls ------------------------------------------------------------------------------------------


class Sock(socket.socket):
    """A socket that can have attributes."""


@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
def test_a_socket_call_in_a_cycle_that_is_never_awaited_is_collected(run):
    class Memory(bytearray):
        pass

    async def main():
        loop, watched = asyncio.get_running_loop(), []
        with socketpair() as (near, _far):
            with Sock(fileno=os.dup(near.fileno())) as sock:
                sock.setblocking(False)
                sock.call = loop.sock_recv(sock, 10)
                watched.append(weakref.ref(sock))
            memory = Memory(10)
            memory.call = loop.sock_recv_into(near, memory)
            watched.append(weakref.ref(memory))
            del sock, memory
            assert alive(watched) == []

    run(main())


@pytest.mark.filterwarnings("ignore:.*was never awaited:RuntimeWarning")
def test_a_refused_socket_call_that_is_never_awaited_is_collected_with_its_caller(run):
    """The traceback of the error that it keeps leads to the frame that holds the call."""

    async def main():
        loop, watched = asyncio.get_running_loop(), []
        loop.set_debug(True)
        near, far = socket.socketpair()

        def call_and_forget():
            thing = Thing()
            thing.call = loop.sock_recv(near, 10)
            watched.append(weakref.ref(thing))

        with near, far:
            call_and_forget()
            assert alive(watched) == []

    run(main())


# -- streams -----------------------------------------------------------------------------------------------


def frames_of(traceback):
    count = 0
    while traceback is not None:
        traceback, count = traceback.tb_next, count + 1
    return count


@pytest.mark.native
def test_stream_reads_that_are_stepped_by_hand_leave_no_frames_behind(run):
    async def main():
        reader, lengths, watched = wakeloop.StreamReader(), [], []

        def step():
            thing = Thing()
            watched.append(weakref.ref(thing))
            reader.feed_data(b"line\n")
            call = reader.readline()
            try:
                next(iter(call))
            except StopIteration as stop:
                assert stop.value == b"line\n"
                lengths.append(frames_of(stop.__traceback__))

        for _ in range(5):
            step()
        assert lengths == [1] * 5
        # The exception that carries results is kept for the next read, which gets another one.
        assert len(alive(watched)) <= 1
        reader.feed_data(b"line\n")
        await reader.readline()
        assert alive(watched) == []

    run(main())


# -- transports --------------------------------------------------------------------------------------------


class Forgetful(asyncio.Protocol):
    """Keeps its connection open when the peer has sent eof, and drops its reference."""

    answer = b""

    def connection_made(self, transport):
        self.transport = transport

    def eof_received(self):
        self.transport.write(self.answer)
        return True


async def forgotten(factory):
    """Returns a weak reference to a transport that only its protocol references, and the other end."""
    near, far = socket.socketpair()
    near.setblocking(False)
    far.setblocking(False)
    transport, _ = await asyncio.get_running_loop().create_connection(factory, sock=near)
    return weakref.ref(transport), far


async def collected(reference):
    """Waits until the object is gone."""
    gc.collect()
    while reference() is not None:
        await asyncio.sleep(0.001)
        gc.collect()


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_unreferenced_connection_is_closed_after_the_peer_sent_eof(run):
    async def main():
        reference, far = await forgotten(Forgetful)
        with far:
            gc.collect()
            assert reference() is not None
            far.shutdown(socket.SHUT_WR)
            await collected(reference)
            assert far.recv(10) == b""

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_unreferenced_paused_connection_is_closed(run):
    class Pausing(Forgetful):
        def data_received(self, data):
            self.transport.pause_reading()

    async def main():
        reference, far = await forgotten(Pausing)
        with far:
            far.send(b"data")
            await collected(reference)
            assert far.recv(10) == b""

    run(main())


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_an_unreferenced_connection_sends_its_buffer_before_it_is_closed(run):
    class Answering(Forgetful):
        answer = bytes(4_000_000)

    async def main():
        loop = asyncio.get_running_loop()
        reference, far = await forgotten(Answering)
        with far:
            far.shutdown(socket.SHUT_WR)
            await asyncio.sleep(0.005)
            gc.collect()
            assert reference() is not None
            left = len(Answering.answer)
            while left > 0:
                data = await loop.sock_recv(far, 1 << 20)
                assert data
                left -= len(data)
            await collected(reference)
            assert far.recv(10) == b""

    run(main())


def test_a_referenced_paused_connection_continues_when_resumed(run):
    class Counting(Forgetful):
        count = 0

        def data_received(self, data):
            self.count += len(data)
            self.transport.pause_reading()

    async def main():
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        with far:
            transport, protocol = await asyncio.get_running_loop().create_connection(Counting, sock=near)
            for expected in range(1, 6):
                far.send(b"x")
                gc.collect()
                while protocol.count < expected:
                    await asyncio.sleep(0.001)
                transport.write(b"y" * 100_000)
                gc.collect()
                transport.resume_reading()
            received = 0
            while received < 500_000:
                received += len(await asyncio.get_running_loop().sock_recv(far, 1 << 20))
            transport.close()
            await turns()

    run(main())
