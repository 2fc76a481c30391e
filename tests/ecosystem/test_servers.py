"""Servers that start their workers as processes: each is run as its users run it, and says which loop it has."""

import asyncio
import contextlib
import os
import pathlib
import signal
import sys

import pytest

from tests.ecosystem.support import environment, free_port, need_installed, raw_load, until_listening

pytestmark = [pytest.mark.native, pytest.mark.timeout(90)]

STARTUP = pathlib.Path(__file__).parent.parent.parent / "python" / "startup" / "platlib"
APPLICATION = "tests.ecosystem.support:application"


@pytest.fixture
def installed(tmp_path):
    """The environment of a Python whose site-packages directory has what the wheel puts there, and of an empty home:
    gunicorn and IPython write into it.
    """
    (tmp_path / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(STARTUP)!r})\n")
    variables = environment()
    path = [str(tmp_path), variables["PYTHONPATH"], *sys.path]
    home = tmp_path / "home"
    home.mkdir()
    return {**variables, "PYTHONPATH": os.pathsep.join(path), "HOME": str(home)}


@contextlib.asynccontextmanager
async def server(variables, *command):
    """Runs `python -m COMMAND`, in which PORT is a free port, and gives the port."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-Wignore", "-m", *(argument.replace("PORT", str(port)) for argument in command),
        env=variables, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    output = b""
    try:
        try:
            await until_listening(port)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            output, _ = await asyncio.wait_for(process.communicate(), 20)
    except BaseException as error:
        error.add_note(output.decode())
        raise
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def loop_of(port):
    """The module of the class of the event loop that answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /bytes/1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    [line] = [line for line in answer.lower().splitlines() if line.startswith(b"x-loop: ")]
    return line.removeprefix(b"x-loop: ").decode()


def check(run, variables, *command):
    async def main():
        async with server(variables, *command) as port:
            assert await loop_of(port) == "wakeloop"
            await raw_load("127.0.0.1", port, total=400, clients=10)

    run(main())


def test_gunicorn_runs_our_uvicorn_worker(run, installed):
    need_installed("gunicorn", "uvicorn_worker")
    worker = "wakeloop.gunicorn.UvicornWorker"
    check(run, installed, "gunicorn", "-k", worker, "-w", "2", "-b", "127.0.0.1:PORT", APPLICATION)


def test_gunicorn_runs_our_worker_on_the_one_that_uvicorn_has_itself(run, installed, tmp_path):
    need_installed("gunicorn", "uvicorn")
    (tmp_path / "uvicorn_worker.py").write_text("raise ImportError")
    worker = "wakeloop.gunicorn.UvicornWorker"
    check(run, installed, "gunicorn", "-k", worker, "-b", "127.0.0.1:PORT", APPLICATION)


def test_run_reaches_the_spawned_worker_of_hypercorn(run, installed):
    need_installed("hypercorn")
    check(run, installed, "wakeloop", "run", "hypercorn", "-b", "127.0.0.1:PORT", APPLICATION)


@pytest.mark.parametrize("loop", ["asyncio", "auto"])
def test_run_reaches_the_spawned_worker_of_granian(run, installed, loop, tmp_path):
    need_installed("granian")
    # What `auto` prefers.
    for name in "uvloop", "rloop":
        (tmp_path / f"{name}.py").write_text("raise ImportError")
    options = ["--interface", "asgi", "--loop", loop, "--host", "127.0.0.1", "--port", "PORT"]
    check(run, installed, "wakeloop", "run", "granian", *options, APPLICATION)


def test_granian_takes_our_loop_by_its_registry(run, installed, tmp_path):
    need_installed("granian")
    (tmp_path / "serve_on_wakeloop.py").write_text(
        "import asyncio, sys, wakeloop\n"
        "from granian import Granian, loops\n"
        "@loops.register('auto')\n"
        "def build_loop():\n"
        "    asyncio.set_event_loop(loop := wakeloop.new_event_loop())\n"
        "    return loop\n"
        "if __name__ == '__main__':\n"
        f"    Granian({APPLICATION!r}, port=int(sys.argv[1]), interface='asgi').serve()\n"
    )
    check(run, installed, "serve_on_wakeloop", "PORT")
