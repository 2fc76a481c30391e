"""A program that prints nothing on asyncio prints nothing here, and one that prints something prints the same."""

import concurrent.futures
import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from tests.support.loops import PRELUDE

pytestmark = [pytest.mark.native, pytest.mark.timeout(120)]

#: What each program begins with.
BEGIN = """
import logging, os, signal, socket, subprocess, sys, threading, time

def run(main, **options):
    with asyncio.Runner(loop_factory=new_loop, **options) as runner:
        # A busy machine must not decide what debug mode logs.
        runner.get_loop().slow_callback_duration = 10
        return runner.run(main)
"""

PROGRAMS = {
    "steps that block": """
        async def main():
            time.sleep(0.3)
            await asyncio.sleep(0)
            asyncio.get_running_loop().call_soon(time.sleep, 0.3)
            for _ in range(300):
                asyncio.get_running_loop().call_soon(time.sleep, 0.001)
            await asyncio.sleep(0.01)
        run(main())
        """,
    "a slow import in the first task": """
        import types
        module = types.ModuleType("slow_module")
        async def main():
            exec("import time; time.sleep(0.4)", module.__dict__)
            await asyncio.sleep(0)
        run(main())
        """,
    "protocols that block": """
        async def main():
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            class Slow(asyncio.Protocol):
                def data_received(self, data):
                    time.sleep(0.3)
                    done.set()
            server = await loop.create_server(Slow, "127.0.0.1", 0)
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
            transport.write(b"x")
            await done.wait()
            transport.close()
            server.close()
            await server.wait_closed()
        run(main())
        """,
    "threads that compute beside the loop, under load": """
        def compute(end):
            while time.monotonic() < end:
                sum(range(1000))
        async def client(address):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(20):
                writer.write(b"x" * 1000)
                await reader.readexactly(1000)
            writer.close()
            await writer.wait_closed()
        async def handle(reader, writer):
            while data := await reader.read(65536):
                writer.write(data)
            writer.close()
        async def main():
            server = await asyncio.start_server(handle, "127.0.0.1", 0)
            threads = [threading.Thread(target=compute, args=[time.monotonic() + 1]) for _ in range(4)]
            for thread in threads:
                thread.start()
            await asyncio.gather(*(client(server.sockets[0].getsockname()) for _ in range(20)))
            for thread in threads:
                await asyncio.to_thread(thread.join)
            server.close()
        run(main())
        """,
    "an exit without close": """
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.call_later(100, print, "never")
        """,
    "an exit with a transport that is open": """
        async def main():
            server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
            kept = await asyncio.open_connection(*server.sockets[0].getsockname())
            await asyncio.sleep(0.01)
            return server, kept
        loop = new_loop()
        kept = loop.run_until_complete(main())
        """,
    "sys.exit in a task": "async def main(): sys.exit(3)\nrun(main())",
    "sys.exit in a callback": "loop = new_loop()\nloop.call_soon(sys.exit, 4)\nloop.run_forever()",
    "KeyboardInterrupt": """
        async def main():
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(10)
        try:
            run(main())
        except KeyboardInterrupt:
            print("interrupted")
        """,
    "os._exit in a callback": "loop = new_loop()\nloop.call_soon(os._exit, 5)\nloop.run_forever()",
    "a loop in a daemon thread": """
        def work():
            loop = new_loop()
            loop.call_soon(started.set)
            loop.run_forever()
        started = threading.Event()
        threading.Thread(target=work, daemon=True).start()
        started.wait()
        """,
    "loops in threads": """
        def work():
            run(asyncio.sleep(0.01))
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
    "subprocesses": """
        async def main():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", "import time; time.sleep(0.05); print('child')", stdout=subprocess.PIPE)
            print(await process.communicate(), process.returncode)
            process = await asyncio.create_subprocess_shell("kill -9 $$")
            print(await process.wait())
        run(main())
        """,
    "a subprocess that is left": """
        async def main():
            return await asyncio.create_subprocess_exec("sleep", "0.2")
        left = run(main())
        """,
    "fork": """
        run(asyncio.sleep(0.01))
        pid = os.fork()
        if pid == 0:
            run(asyncio.sleep(0.01))
            sys.exit(6)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    "fork in a task": """
        async def main():
            pid = os.fork()
            if pid == 0:
                os._exit(7)
            await asyncio.sleep(0.01)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        run(main())
        """,
    "multiprocessing": """
        import multiprocessing
        def work(number):
            return run(asyncio.sleep(0.01, number * number))
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, range(5)))
        """,
    "executors": """
        import concurrent.futures
        async def main():
            loop = asyncio.get_running_loop()
            print(await asyncio.gather(*(loop.run_in_executor(None, time.sleep, 0.01) for _ in range(10))))
            loop.run_in_executor(None, time.sleep, 0.2)
        run(main())
        """,
    "tasks that are pending at the end": """
        async def forever():
            try:
                await asyncio.sleep(100)
            finally:
                print("cancelled")
        async def main():
            main.kept = [asyncio.create_task(forever()) for _ in range(3)]
            await asyncio.sleep(0)
        run(main())
        """,
    "a task that is pending when its loop is closed": """
        import gc
        async def forever():
            await asyncio.sleep(100)
        loop = new_loop()
        loop.create_task(forever(), name="left")
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        gc.collect()
        """,
    "an error of a task that nobody awaits": """
        import gc
        async def fails():
            raise ValueError("nobody sees this")
        async def main():
            asyncio.create_task(fails(), name="failing")
            await asyncio.sleep(0.01)
            gc.collect()
        run(main())
        """,
    "an async generator that is left": """
        async def numbers():
            try:
                yield 1
            finally:
                await asyncio.sleep(0)
                print("closed")
        async def main():
            main.kept = numbers()
            print(await anext(main.kept))
        run(main())
        """,
    "a peer that goes away": """
        async def main():
            near, far = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=near)
            far.close()
            try:
                for _ in range(20):
                    writer.write(b"x" * 10)
                    await asyncio.sleep(0)
                await writer.drain()
            except ConnectionError as error:
                print(type(error).__name__)
            writer.close()
        run(main())
        """,
    "a standard output that nobody reads": """
        async def main():
            os.close(1)
            os.open("/dev/full", os.O_WRONLY)
            await asyncio.sleep(0.01)
        run(main())
        """,
    "standard streams that are closed": """
        for fd in range(3):
            os.close(fd)
        async def main():
            time.sleep(0.3)
            await asyncio.sleep(0.01)
            raise SystemExit(8)
        run(main())
        """,
    "signal handlers": """
        async def main():
            loop, done = asyncio.get_running_loop(), asyncio.Event()
            loop.add_signal_handler(signal.SIGUSR1, done.set)
            os.kill(os.getpid(), signal.SIGUSR1)
            await done.wait()
            time.sleep(0.26)
        run(main())
        """,
    "a log file": """
        import tempfile
        with tempfile.NamedTemporaryFile("r") as file:
            logging.basicConfig(filename=file.name, level=logging.INFO)
            async def main():
                time.sleep(0.3)
                logging.getLogger("app").info("done")
            run(main())
            print(file.read())
        """,
    "asyncio's debug mode": """
        async def main():
            for _ in range(50):
                asyncio.get_running_loop().call_soon(time.sleep, 0.01)
            await asyncio.sleep(0.01)
            time.sleep(0.3)
        run(main(), debug=True)
        """,
    "a slow step in asyncio's debug mode": """
        async def main():
            asyncio.get_running_loop().slow_callback_duration = 0.4
            time.sleep(0.5)
            await asyncio.sleep(0)
            time.sleep(0.5)
        run(main(), debug=True)
        """,
}
#: Options of the interpreter, besides none.
OPTIONS = {
    "steps that block": ["-X", "dev"],
    "subprocesses": ["-X", "dev"],
    "executors": ["-W", "error"],
    "loops in threads": ["-X", "dev"],
}


def normal(text):
    """The text without addresses, numbers of processes, times, and places in asyncio and wakeloop."""
    text = re.sub(r"0x[0-9a-f]+", "0x…", text)
    text = re.sub(r"took [0-9.]+ seconds", "took … seconds", text)
    return re.sub(r"(?m)^  File .*\n(?:    .*\n)*", "", text)


def environment():
    """This one, without the variables that ask for something."""
    kept = {name: value for name, value in os.environ.items() if not re.fullmatch("WAKELOOP(?!_TEST).*", name)}
    return kept | {"PYTHONPATH": os.pathsep.join(sys.path)}


def outcome(loop, body, options):
    source = PRELUDE[loop] + BEGIN + textwrap.dedent(body)
    line = [sys.executable, *options, "-c", source]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=60)
    return done.returncode, normal(done.stdout), normal(done.stderr)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_prints_what_it_prints_on_asyncio(program):
    for options in ([], OPTIONS.get(program)):
        if options is not None:
            theirs = outcome("asyncio", PROGRAMS[program], options)
            assert outcome("wakeloop", PROGRAMS[program], options) == theirs


# -- servers, under load ---------------------------------------------------------------------------------------------

APPLICATION = """
import time
from fastapi import FastAPI

time.sleep(0.3)
app = FastAPI()

@app.get("/")
async def root():
    return {"fine": True}

@app.get("/slow")
async def slow():
    time.sleep(0.3)
    return {"fine": True}
"""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answer(port, path):
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def answer_when_up(port):
    end = time.monotonic() + 60
    while True:
        try:
            return answer(port, "/")
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("fastapi", "uvicorn"))), reason="needs FastAPI and uvicorn")
def test_a_fastapi_application_under_load_prints_nothing_of_its_own(tmp_path, workers):
    (tmp_path / "application.py").write_text(APPLICATION)
    printed = {}
    for loop, option in (("asyncio", "asyncio"), ("wakeloop", "wakeloop:new_event_loop")):
        port = free_port()
        line = [sys.executable, "-m", "uvicorn", "--workers", str(workers), "--loop", option, "--port", str(port)]
        server = subprocess.Popen(
            [*line, "application:app", "--no-access-log"],
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            answer_when_up(port)
            with concurrent.futures.ThreadPoolExecutor(8) as clients:
                list(clients.map(answer, [port] * 200, ["/"] * 200))
            for path in ("/slow", "/", "/slow"):
                assert b'{"fine":true}' in answer(port, path)
            server.send_signal(signal.SIGINT)
            out, err = server.communicate(timeout=30)
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.communicate()
        printed[loop] = (server.returncode, out, sorted(re.sub(r"\[\d+\]|:\d+", "", err).splitlines()))
    assert printed["wakeloop"] == printed["asyncio"]


AIOHTTP = """
    from aiohttp import ClientSession, web
    async def handle(request):
        if request.path == "/slow":
            time.sleep(0.3)
        return web.Response(text="fine")
    async def main():
        app = web.Application()
        app.router.add_get("/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        async def client(session, path):
            async with session.get(url + path) as response:
                assert await response.text() == "fine"
        async with ClientSession() as session:
            for _ in range(5):
                await asyncio.gather(*(client(session, "/slow" if number == 7 else "/") for number in range(100)))
        await runner.cleanup()
    run(main())
"""


@pytest.mark.skipif(not importlib.util.find_spec("aiohttp"), reason="needs aiohttp")
def test_an_aiohttp_server_and_its_clients_under_load_print_nothing():
    assert outcome("asyncio", AIOHTTP, []) == outcome("wakeloop", AIOHTTP, []) == (0, "", "")
