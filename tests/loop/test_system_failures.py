"""The system refuses: calls fail or are missing, as in old kernels and sandboxes."""

import asyncio
import errno
import os
import textwrap

import pytest

from tests.support import sandbox
from tests.support.script import run_script

pytestmark = pytest.mark.skipif(not sandbox.POSSIBLE, reason="no seccomp filters here")

IMPORTS = "import errno, os, resource, socket, sys\nfrom tests.support.sandbox import epoll_descriptors, refuse\n"


def run_sandboxed(loop_name, body, **options):
    """As `run_script`, with `refuse` available."""
    outcome = run_script(loop_name, IMPORTS + textwrap.dedent(body), **options)
    assert outcome.code == 0, outcome
    return outcome


def test_a_poller_that_fails_ends_the_run_with_its_error(loop_factory):
    """The loop would get no more events from it, and would spin."""
    before = sandbox.epoll_descriptors()
    loop = loop_factory()
    (poller,) = sandbox.epoll_descriptors() - before

    async def main():
        # A program does this if it closes all descriptors without reusing the number.
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), poller)
        await asyncio.sleep(5)

    task = loop.create_task(main())
    try:
        with pytest.raises(OSError, match=r"^\[Errno 22\] Invalid argument$") as caught:
            loop.run_until_complete(task)
        assert caught.value.errno == errno.EINVAL
        assert not loop.is_running()
    finally:
        task._log_destroy_pending = False
        loop.close()


def test_a_loop_without_a_free_descriptor_raises_oserror(loop_name):
    body = """
        import gc, warnings
        warnings.simplefilter("ignore")
        new_loop().close()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = len(os.listdir("/proc/self/fd")) - 1
        for spare in (0, 1):
            resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))
            try:
                new_loop()
            except OSError as error:
                print(error.errno == errno.EMFILE, error.args[1])
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            gc.collect()
            assert len(os.listdir("/proc/self/fd")) - 1 == used
        new_loop().close()
    """
    assert run_sandboxed(loop_name, body).out == "True Too many open files\n" * 2


def test_datagrams_work_without_recvmmsg_and_sendmmsg(loop_name):
    body = """
        class Collecting(asyncio.DatagramProtocol):
            def __init__(self):
                self.got, self.errors = [], []
            def datagram_received(self, data, address):
                self.got.append(data)
            def error_received(self, error):
                self.errors.append(error)

        async def main():
            loop = asyncio.get_running_loop()
            here, server = await loop.create_datagram_endpoint(Collecting, local_addr=("127.0.0.1", 0))
            there = here.get_extra_info("sockname")
            client, sender = await loop.create_datagram_endpoint(Collecting, remote_addr=there)
            for burst in range(4):
                for number in range(50):
                    client.sendto(b"%d" % (50 * burst + number))
                while len(server.got) < 50 * (burst + 1) and not server.errors + sender.errors:
                    await asyncio.sleep(0.001)
            print([int(data) for data in server.got] == [*range(200)], server.errors, sender.errors)
            client.close()
            here.close()
            await asyncio.sleep(0)

        refuse(errno.ENOSYS, "recvmmsg", "sendmmsg")
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True [] []\n"


@pytest.mark.native
def test_datagrams_are_received_one_by_one_without_memory_for_a_batch(loop_name):
    body = """
        class Collecting(asyncio.DatagramProtocol):
            def __init__(self):
                self.got = []
            def datagram_received(self, data, address):
                self.got.append(data)

        async def main():
            loop = asyncio.get_running_loop()
            here, server = await loop.create_datagram_endpoint(Collecting, local_addr=("127.0.0.1", 0))
            client = socket.socket(type=socket.SOCK_DGRAM)
            client.connect(here.get_extra_info("sockname"))
            client.send(b"the first comes alone")
            while not server.got:
                await asyncio.sleep(0.001)
            with open("/proc/self/statm") as sizes:
                used = int(sizes.read().split()[0]) * resource.getpagesize()
            # Less than the buffers take.
            resource.setrlimit(resource.RLIMIT_AS, (used + (3 << 20), resource.RLIM_INFINITY))
            for number in range(20):
                client.send(b"%d" % number)
            while len(server.got) < 21:
                await asyncio.sleep(0.001)
            print([int(data) for data in server.got[1:]] == [*range(20)])
            client.close()
            here.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True\n"


@pytest.mark.native
@pytest.mark.parametrize("kind", ["stream", "datagram"])
def test_a_connection_that_the_poller_refuses_is_closed_and_reported(loop_name, kind):
    """asyncio calls its exception handler too, but leaves the connection open, without any events."""
    make = {
        "stream": "loop.create_connection(lambda: Ending(), sock=near)",
        "datagram": "loop.create_datagram_endpoint(lambda: Ending(), sock=near)",
    }[kind]
    body = f"""
        class Ending(asyncio.Protocol):
            def connection_lost(self, error):
                print("lost:", error)

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: print("reported:", context["exception"]))
            near, far = socket.socketpair(type=socket.SOCK_{kind.replace("datagram", "dgram").upper()})
            near.setblocking(False)
            refuse(errno.ENOSPC, "epoll_ctl")
            transport, protocol = await {make}
            await asyncio.sleep(0)
            print(transport.is_closing(), near.fileno())
            far.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    text = f"[Errno {errno.ENOSPC}] No space left on device"
    assert run_sandboxed(loop_name, body).out == f"reported: {text}\nlost: {text}\nTrue -1\n"


def test_a_write_that_cannot_be_finished_raises_and_leaves_the_pipe_open(loop_name):
    body = """
        async def main():
            loop = asyncio.get_running_loop()
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            transport, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(writing, "wb", 0))
            refuse(errno.ENOSPC, "epoll_ctl")
            for _ in range(2):
                try:
                    transport.write(bytes(1_000_000))
                except OSError as error:
                    print(error.errno == errno.ENOSPC)
            print(transport.is_closing(), transport.get_write_buffer_size())
            print(len(os.read(reading, 1_000_000)) > 0)
            transport.write(b"small")
            print(os.read(reading, 100))
            # Nothing can be taken away from the poller either.
            os._exit(0)

        sys.stdout.reconfigure(line_buffering=True)
        new_loop().run_until_complete(main())
    """
    assert run_sandboxed(loop_name, body).out == "True\nTrue\nFalse 0\nTrue\nb'small'\n"


def test_input_for_a_child_that_cannot_be_written_is_an_error_of_communicate(loop_name):
    body = """
        async def main():
            pipe = asyncio.subprocess.PIPE
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "import sys; print(len(sys.stdin.buffer.read()))", stdin=pipe, stdout=pipe
            )
            await asyncio.sleep(0.01)
            refuse(errno.ENOMEM, "epoll_ctl")
            try:
                print(await child.communicate(bytes(1_000_000)), child.returncode)
            except OSError as error:
                print(error.errno == errno.ENOMEM)
            child.kill()
            os._exit(0)

        sys.stdout.reconfigure(line_buffering=True)
        new_loop().run_until_complete(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True\n"


def test_reading_that_cannot_be_resumed_raises_and_leaves_the_pipe_open(loop_name):
    body = """
        async def main():
            loop = asyncio.get_running_loop()
            reading, writing = os.pipe()
            transport, _ = await loop.connect_read_pipe(asyncio.Protocol, os.fdopen(reading, "rb", 0))
            transport.pause_reading()
            refuse(errno.ENOSPC, "epoll_ctl")
            try:
                transport.resume_reading()
            except OSError as error:
                print(error.errno == errno.ENOSPC)
            print(transport.is_closing())
            os._exit(0)

        sys.stdout.reconfigure(line_buffering=True)
        new_loop().run_until_complete(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True\nFalse\n"


def test_a_datagram_that_cannot_wait_for_room_raises_and_leaves_the_transport_open(loop_name):
    body = """
        async def main():
            loop = asyncio.get_running_loop()
            near, far = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            far.bind("")
            near.connect(far.getsockname())
            near.setblocking(False)
            transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=near)
            refuse(errno.ENOSPC, "epoll_ctl")
            try:
                for _ in range(10_000):
                    await asyncio.sleep(0)
                    transport.sendto(bytes(1000))
            except OSError as error:
                print(error.errno == errno.ENOSPC)
            print(transport.is_closing(), transport.get_write_buffer_size())
            os._exit(0)

        sys.stdout.reconfigure(line_buffering=True)
        new_loop().run_until_complete(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True\nFalse 0\n"


def test_a_failed_accept_is_reported_with_asyncios_message(loop_name):
    body = """
        async def main():
            loop = asyncio.get_running_loop()
            reported = loop.create_future()
            loop.set_exception_handler(lambda loop, context: reported.done() or reported.set_result(context))
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            refuse(errno.EPERM, "accept4")
            client = socket.create_connection(server.sockets[0].getsockname())
            context = await reported
            print(context["message"].partition("(")[0], repr(context["exception"]))
            client.close()
            server.close()
            await server.wait_closed()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    words = "Exception in callback BaseSelectorEventLoop._accept_connection"
    assert run_sandboxed(loop_name, body).out == f"{words} PermissionError(1, 'Operation not permitted')\n"


@pytest.mark.native
def test_workers_whose_poller_was_closed_neither_spin_nor_stop(loop_name):
    body = """
        async def main():
            before = epoll_descriptors()
            await wakeloop.sleep(0.001)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for poller in epoll_descriptors() - before:
                os.dup2(nothing, poller)
            def used():
                usage = resource.getrusage(resource.RUSAGE_SELF)
                return usage.ru_utime + usage.ru_stime
            begun, start = used(), asyncio.get_running_loop().time()
            for _ in range(5):
                await wakeloop.sleep(0.1)
            passed = asyncio.get_running_loop().time() - start
            print(used() - begun < passed / 4)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "True\n"


@pytest.mark.native
@pytest.mark.parametrize("started", [False, True])
def test_a_primitive_that_cannot_start_a_thread_raises_runtime_error(loop_name, started):
    body = f"""
        async def main():
            if {started}:
                await wakeloop.sleep(0.001)
            refuse(errno.EAGAIN, "clone", "clone3")
            calls = [
                lambda: wakeloop.spawn_blocking(print),
                lambda: wakeloop.TcpStream.connect("localhost", 1),
                lambda: asyncio.get_running_loop().getaddrinfo("localhost", 1),
            ]
            for call in calls:
                try:
                    await call()
                except RuntimeError as error:
                    print(error)
            await asyncio.sleep(0.001)
            print("on it goes")

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "can't start new thread\n" * 3 + "on it goes\n"


@pytest.mark.native
@pytest.mark.parametrize("started", [False, True])
def test_a_file_that_cannot_start_a_thread_to_close_is_still_open(loop_name, started):
    body = f"""
        async def main():
            if {started}:
                await wakeloop.sleep(0.001)
            # wakeloop.open() would start the thread.
            raw = open(os.devnull, "wb", buffering=0)
            file = wakeloop._core._open_file(raw, True, 8192)
            refuse(errno.EAGAIN, "clone", "clone3")
            for call in file.close, file.fsync, file.close:
                try:
                    await call()
                except RuntimeError as error:
                    print(error, file.closed, raw.closed)
            raw.close()

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(main(), 10))
    """
    assert run_sandboxed(loop_name, body).out == "can't start new thread False False\n" * 3


def test_a_tcp_stream_that_the_poller_refuses_raises_and_keeps_no_descriptor(loop_name):
    body = """
        import gc

        async def main():
            listener = socket.create_server(("127.0.0.1", 0))
            before = len(os.listdir("/proc/self/fd"))
            refuse(errno.ENOSPC, "epoll_ctl")
            for _ in range(3):
                try:
                    await asyncio.get_running_loop().create_connection(asyncio.Protocol, *listener.getsockname())
                except OSError as error:
                    print(error.errno == errno.ENOSPC)
                await asyncio.sleep(0)
            gc.collect()
            print(len(os.listdir("/proc/self/fd")) - before)
            # Nothing can be taken away from the poller either.
            os._exit(0)

        sys.stdout.reconfigure(line_buffering=True)
        new_loop().run_until_complete(main())
    """
    assert run_sandboxed(loop_name, body).out == "True\n" * 3 + "0\n"


WITHOUT_DESCRIPTORS = """
    import asyncio, contextlib, os, resource
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    @contextlib.contextmanager
    def without_descriptors():
        "None is left for anybody."
        taken = []
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        try:
            yield
        finally:
            for descriptor in taken:
                os.close(descriptor)
"""


def test_add_signal_handler_works_again_after_descriptors_are_freed(loop_name):
    """asyncio makes its socket pair for signals with the loop, and adds the handler at the first call. Ours raises
    with the reason.
    """
    body = WITHOUT_DESCRIPTORS + """
    import signal

    async def main():
        loop, seen = asyncio.get_running_loop(), []
        with without_descriptors():
            try:
                loop.add_signal_handler(signal.SIGUSR1, seen.append, "early")
            except RuntimeError as error:
                assert "Too many open files" in str(error), error
            else:
                loop.remove_signal_handler(signal.SIGUSR1)
        assert signal.set_wakeup_fd(-1) == -1
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "late")
        os.kill(os.getpid(), signal.SIGUSR1)
        while not seen:
            await asyncio.sleep(0.001)
        assert loop.remove_signal_handler(signal.SIGUSR1)
        print(seen, signal.set_wakeup_fd(-1))

    new_loop().run_until_complete(main())
    """
    outcome = run_script(loop_name, body)
    assert outcome.out == "['late'] -1\n", outcome


@pytest.mark.native
def test_primitives_work_again_after_descriptors_are_freed(loop_name):
    body = WITHOUT_DESCRIPTORS + """
    import errno, wakeloop

    async def main():
        listener = await wakeloop.TcpListener.bind("127.0.0.1", 0) if started else None
        port = listener.port if listener else 1
        first = [
            lambda: wakeloop.TcpStream.connect("127.0.0.1", port),
            lambda: wakeloop.TcpListener.bind("127.0.0.1", 0),
            lambda: wakeloop.UdpSocket.bind("127.0.0.1", 0),
        ]
        if not started:
            # They need the runtime, which has a poller.
            first += [lambda: wakeloop.sleep(0.001), lambda: wakeloop.spawn_blocking(int)]
        with without_descriptors():
            for make in first:
                try:
                    await make()
                except OSError as error:
                    assert error.errno == errno.EMFILE
                else:
                    raise AssertionError
        listener = listener or await wakeloop.TcpListener.bind("127.0.0.1", 0)
        stream = await wakeloop.TcpStream.connect("127.0.0.1", listener.port)
        await wakeloop.sleep(0.001)
        assert await wakeloop.spawn_blocking(int) == 0
        stream.close()
        listener.close()
        (await wakeloop.UdpSocket.bind("127.0.0.1", 0)).close()
        print("well")

    for started in (False, True):
        new_loop().run_until_complete(main())
    """
    outcome = run_script(loop_name, body)
    assert outcome.out == "well\n" * 2, outcome
