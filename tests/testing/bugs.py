"""Ten programs with a bug of a known kind each. Every one passes in asyncio's own order, and fails in another.

A program is a coroutine function with one argument: False runs the program with its bug, True the same program with the
bug mended. The mended one must pass in every order: a search that reports everything would find all ten bugs too.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket

from wakeloop import testing
from wakeloop.testing.network import Network

#: From one end of the network to the other, in seconds.
LATENCY = 0.25


async def turns(count):
    """Lets `count` turns of the loop pass."""
    for _ in range(count):
        await asyncio.sleep(0)


class Mailbox:
    """A queue of one consumer, with a wake-up of its own."""

    def __init__(self):
        self.items = []
        self.waiter = None

    def put(self, item):
        self.items.append(item)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def get(self, mended):
        while not self.items:
            if mended:
                self.waiter = asyncio.get_running_loop().create_future()
            await asyncio.sleep(0)  # stands for a line of logging that has become asynchronous
            if not mended:
                self.waiter = asyncio.get_running_loop().create_future()
            await self.waiter
        return self.items.pop(0)


async def lost_wakeup(mended):
    """An item that comes between the check and the wait wakes nobody."""
    mailbox = Mailbox()

    async def produce():
        await turns(2)
        mailbox.put("item")

    async with asyncio.TaskGroup() as group:
        consumer = group.create_task(mailbox.get(mended))
        group.create_task(produce())
    assert consumer.result() == "item"


async def lost_update(mended):
    """A balance is read, something is awaited, and the balance is written."""
    balance, lock = 100, asyncio.Lock()

    async def withdraw(amount, delay):
        nonlocal balance
        await turns(delay)
        async with lock if mended else contextlib.nullcontext():
            read = balance
            await asyncio.sleep(0)  # stands for a query
            balance = read - amount

    async with asyncio.TaskGroup() as group:
        group.create_task(withdraw(10, 0))
        group.create_task(withdraw(20, 3))
    assert balance == 70, f"a withdrawal is lost: {balance}"


async def cancelled_holder(mended):
    """The holder of a lock is cancelled, and does not release it."""
    lock = asyncio.Lock()

    async def hold():
        await lock.acquire()
        if mended:
            try:
                await asyncio.sleep(0)
            finally:
                lock.release()
        else:
            await asyncio.sleep(0)
            lock.release()

    async def stop(task):
        await turns(4)
        task.cancel()

    holder = asyncio.create_task(hold(), name="holder")
    stopper = asyncio.create_task(stop(holder), name="stopper")
    await asyncio.wait([holder, stopper])
    async with lock:
        pass


class Pool:
    """Counts its connections. Closing one takes a turn of the loop."""

    def __init__(self):
        self.open, self.closing = 0, []

    async def close_one(self):
        await asyncio.sleep(0)
        self.open -= 1


async def unshielded_cleanup(mended):
    """A second cancellation interrupts the clean-up that the first one has started."""
    pool = Pool()

    async def serve():
        pool.open += 1
        try:
            await asyncio.sleep(3600)
        finally:
            if mended:
                pool.closing.append(asyncio.create_task(pool.close_one(), name="clean-up"))
                await asyncio.shield(pool.closing[0])
            else:
                await pool.close_one()

    async def shut_down(task):
        await turns(2)
        task.cancel()
        await turns(4)
        task.cancel()  # to be sure

    server = asyncio.create_task(serve(), name="server")
    await asyncio.wait([server, asyncio.create_task(shut_down(server), name="shutdown")])
    await asyncio.gather(*pool.closing)
    assert pool.open == 0, f"{pool.open} connections stay open"


class Channel:
    """Hands an item to the receiver that waits, or keeps it."""

    def __init__(self):
        self.kept = []
        self.waiter = None

    def send(self, item):
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(item)
        else:
            self.kept.append(item)

    async def receive(self, timeout, mended):
        if self.kept:
            return self.kept.pop(0)
        self.waiter = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self.waiter], timeout=timeout)
        if not done:
            await asyncio.sleep(0)  # stands for a line of logging that has become asynchronous
        if done or (mended and self.waiter.done()):
            return self.waiter.result()
        self.waiter.cancel()
        return None


async def timeout_races_completion(mended):
    """The item comes after the timeout has fired and before its task runs: it is thrown away."""
    channel, got = Channel(), None

    async def receive():
        nonlocal got
        while got is None:
            got = await channel.receive(1, mended)

    receiver = asyncio.create_task(receive(), name="receiver")
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(1, channel.send, "item")
    try:
        async with asyncio.timeout(5):
            await receiver
    except TimeoutError:
        pass
    assert got == "item", "the item is lost"


class Handle:
    """A resource that may be closed once."""

    def __init__(self):
        self.closed = self.closing = False
        self.freed = 0

    async def close(self, mended):
        if self.closed or (mended and self.closing):
            return
        self.closing = True
        await asyncio.sleep(0)  # stands for a flush
        self.closed = True
        self.freed += 1


async def double_close(mended):
    """Two tasks see that the resource is open, and both free it."""
    handle = Handle()

    async def close_after(count):
        await turns(count)
        await handle.close(mended)

    await asyncio.gather(close_after(0), close_after(3))
    assert handle.freed == 1, f"freed {handle.freed} times"


#: Where the servers of these programs listen, on a simulated network.
ADDRESS = "127.0.0.1", 8000


class Client:
    """Connects when a request finds that it is not connected."""

    def __init__(self, mended):
        self.connecting = asyncio.Lock() if mended else contextlib.nullcontext()
        self.connections = []

    async def request(self):
        async with self.connecting:
            if not self.connections:
                self.connections.append(await asyncio.open_connection(*ADDRESS))

    async def close(self):
        for _, writer in self.connections:
            writer.close()
            await writer.wait_closed()


async def reconnect_storm(mended):
    """Each request that finds no connection opens a new one."""
    client = Client(mended)

    async def serve(reader, writer):
        await reader.read()
        writer.close()

    async def request_after(delay, count):
        await asyncio.sleep(delay)
        await turns(count)
        await client.request()

    async with await asyncio.start_server(serve, *ADDRESS):
        # The last three come just after the connection is there: it takes a way to the server, and one back.
        late = [request_after(1 + 2 * LATENCY, 5) for _ in range(3)]
        await asyncio.gather(request_after(1, 0), *late)
        await client.close()
        await asyncio.sleep(1)
    assert len(client.connections) == 1, f"{len(client.connections)} connections of one client"


async def join_never_done(mended):
    """A worker that is stopped while it works on an item never says that the item is done."""
    queue = asyncio.Queue()

    async def work():
        while True:
            await queue.get()
            if mended:
                try:
                    await asyncio.sleep(0)
                finally:
                    queue.task_done()
            else:
                await asyncio.sleep(0)
                queue.task_done()

    async def scale_down(worker):
        await turns(5)
        worker.cancel()

    workers = [asyncio.create_task(work(), name=f"worker {number}") for number in range(2)]
    scaling = asyncio.create_task(scale_down(workers[0]), name="scale down")
    for item in range(3):
        queue.put_nowait(item)
    await queue.join()
    for task in workers:
        task.cancel()
    await asyncio.wait([*workers, scaling])


async def partial_write(mended):
    """A short write is taken for a whole one."""
    loop, lines, received = asyncio.get_running_loop(), [b"one\n", b"two\n", b"three\n", b"four\n"], []

    async def collect(reader, writer):
        received.append(await reader.read())
        writer.close()

    async with await asyncio.start_server(collect, *ADDRESS):
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ADDRESS)
            for line in lines:
                sent = sock.send(line)
                if mended:
                    await loop.sock_sendall(sock, line[sent:])
        await asyncio.sleep(1)
    assert received == [b"".join(lines)], f"lost data: {received}"


async def leaked_task(mended):
    """The first answer wins. The request that comes too late goes on in the background, and nobody stops it."""
    answered = False

    async def ask():
        await asyncio.sleep(1)
        if answered:
            await asyncio.sleep(60)  # stands for a line in a slow log
        return "answer"

    requests = [asyncio.create_task(ask(), name=f"replica {number}") for number in range(2)]
    done, pending = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    answered = True
    await turns(1)  # stands for the parsing of the answer
    if mended:
        for request in pending:
            request.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    assert {request.result() for request in done} == {"answer"}


PROGRAMS = [
    lost_wakeup,
    lost_update,
    cancelled_holder,
    unshielded_cleanup,
    timeout_races_completion,
    double_close,
    reconnect_storm,
    join_never_done,
    partial_write,
    leaked_task,
]


def network():
    """A network whose kernel may take less of a write than it is given."""
    network = Network(latency=LATENCY)
    network.shorten("send", 2, probability=0.5)
    return network


#: The programs that need a network, and the functions that make it.
NETWORKS = {reconnect_storm: network, partial_write: network}


def explore(program, is_mended, *arguments, **options):
    """As wakeloop.testing.explore, for one of the programs."""
    return testing.explore(functools.partial(program, is_mended), *arguments, network=NETWORKS.get(program), **options)


def run(program, is_mended, **options):
    """As wakeloop.testing.run, for one of the programs."""
    make_network = NETWORKS.get(program, lambda: None)
    return testing.run(functools.partial(program, is_mended), network=make_network(), **options)
