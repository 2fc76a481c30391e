"""``wakeloop``, or ``python -m wakeloop``: a runner for scripts, facts about the installation, a monitor, an echo
server, a demo."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import platform
import runpy
import shutil
import subprocess
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import Any

import wakeloop
from wakeloop import _core
from wakeloop._loop import settings
from wakeloop._net import tls
from wakeloop._observe import trace_file
from wakeloop._observe.client import WindowError, fetch
from wakeloop._observe.top import run as run_top

#: The longest trace, in bytes. A window keeps half a million events of the loops, and a quarter as many of each worker.
LONGEST_TRACE = 1 << 30
#: How the program was called.
PROGRAM = "wakeloop" if os.path.basename(sys.argv[0]) == "wakeloop" else "python -m wakeloop"


def parser_of(command: Any) -> argparse.ArgumentParser:
    """An empty parser for a command."""
    return argparse.ArgumentParser(prog=f"{PROGRAM} {command.__name__}", description=command.__doc__)


def fail(reason: object) -> int:
    """Says in one line why a command ends. Returns its exit code."""
    print(f"wakeloop: {reason}", file=sys.stderr)
    return 1


def demo(argv: list[str]) -> int:
    """show every scheduling step of two sleeping tasks on the Rust runtime"""
    parser_of(demo).parse_args(argv)
    _core.demo()
    return 0


def echo(argv: list[str]) -> int:
    """run the Rust echo server until Ctrl-C"""
    parser = parser_of(echo)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    options = parser.parse_args(argv)
    if not 0 <= options.port <= 65535:
        parser.error("the port must be between 0 and 65535")

    async def serve() -> int:
        try:
            server = await wakeloop.start_echo_server(options.host, options.port)
        except (OSError, UnicodeError) as error:
            # It is a UnicodeError if the name of the host cannot be encoded.
            return fail(getattr(error, "strerror", None) or error)
        print(f"echo server on {server.host}:{server.port}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print(server.stats())
            server.close()
            await server.wait_closed()
        return 0

    try:
        return wakeloop.run(serve())
    except KeyboardInterrupt:
        return 0


#: The package is on the path, but was not installed: the interpreter has not read `wakeloop_run.pth`.
NO_STARTUP = "child processes are not reached: wakeloop_run.pth is in no site-packages directory of this Python"


def run(argv: list[str]) -> int:
    """run a script, module, command or coroutine function, and its child processes, on wakeloop's event loop"""
    parser = parser_of(run)
    parser.add_argument("-m", dest="module", action="store_true", help="TARGET is a module, as in python -m")
    parser.add_argument(
        "target",
        help="a file, an installed command, or module:name of a coroutine function without arguments",
    )
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the program's own arguments")
    options = parser.parse_args(argv)
    target: str = options.target
    module, separator, name = target.partition(":")
    wakeloop.install()
    # Python processes that this one starts anew. Forked ones have what is installed here.
    os.environ["WAKELOOP"] = "1"
    if importlib.util.find_spec("_wakeloop_startup") is None:
        print(f"wakeloop: {NO_STARTUP}", file=sys.stderr)
    sys.argv = [target, *options.args]
    is_file = not options.module and os.path.exists(target)
    if not sys.flags.safe_path:
        # As `python FILE` and `python -m` do it.
        sys.path[0] = os.path.dirname(os.path.realpath(target)) if is_file else os.getcwd()
    try:
        if options.module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        elif is_file:
            runpy.run_path(target, run_name="__main__")
        elif commands := entry_points(group="console_scripts", name=target):
            [command, *_] = commands
            sys.exit(entry_point(command)())
        elif separator and module and not module.startswith("."):
            home = importlib.import_module(module)
            if not hasattr(home, name):
                # The module may raise the error itself, in a `__getattr__`.
                return fail(f"module {module!r} has no attribute {name!r}")
            function = getattr(home, name)
            if not inspect.iscoroutinefunction(function):
                parser.error(f"{target} is not a coroutine function")
            wakeloop.run(function())
        else:
            parser.error(f"{target} is neither a file nor an installed command")
    except (ImportError, AttributeError) as error:
        if is_raised_by_the_program(error):
            raise
        return fail(error)
    return 0


#: The modules that look for the program. An error that has passed no other one says that there is no such program.
FINDERS = {"runpy", "pkgutil", "importlib", "importlib._bootstrap", "importlib._bootstrap_external"}


def is_raised_by_the_program(error: BaseException) -> bool:
    """Did an error come from the program, or is it about finding it?"""
    variables = (frame.f_globals for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(each is not globals() and each.get("__name__") not in FINDERS for each in variables)


def entry_point(command: EntryPoint) -> Any:
    """What the installed script of the command calls. `EntryPoint.load` does not import a submodule for it."""
    return attrgetter(command.attr)(__import__(command.module, fromlist=[command.attr.split(".")[0]]))


def info(argv: list[str]) -> int:
    """print the versions and what the loop uses here; with a COMMAND, run it and report which loops it really uses"""
    parser = parser_of(info)
    parser.add_argument("--json", action="store_true", help="print one object of JSON")
    parser.add_argument("-m", dest="module", action="store_true", help="COMMAND is a module, as in python -m")
    parser.add_argument(
        "command",
        nargs="?",
        help="a file, an installed command, or `run` with what follows `python -m wakeloop run`. It is run as it is, "
        "and a line on stderr names each kind of event loop that runs in it and in its child processes",
    )
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the arguments of the command")
    options = parser.parse_args(argv)
    if options.json:
        print(json.dumps(facts(), indent=2), flush=True)
    else:
        print("\n".join(f"{name:8} {text}" for name, text in facts().items()), flush=True)
    if options.command is None:
        return 0
    line = command_line(options.command, options.module)
    if line is None:
        parser.error(f"{options.command} is neither a file nor an installed command")
    if not reaches_children():
        parser.error(f"cannot look into a command: {NO_STARTUP}")
    try:
        os.execve(line[0], [*line, *options.args], {**os.environ, "WAKELOOP_REPORT": "1"})
    except OSError as error:
        return fail(f"cannot run {options.command}: {error.strerror}")


def command_line(command: str, module: bool) -> list[str] | None:
    """How a command is started; None if there is none of this name."""
    if module:
        return [sys.executable, "-m", command]
    if command == "run":
        return [sys.executable, "-m", "wakeloop", "run"]
    # The scripts of this environment, which need not be active.
    scripts = [sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    if found := shutil.which(command, path=os.pathsep.join(scripts)):
        return [found]
    return [sys.executable, command] if os.path.exists(command) else None


def reaches_children() -> bool:
    """Does a Python process that starts anew see WAKELOOP and WAKELOOP_REPORT?"""
    line = [sys.executable, "-c", "import sys; print('_wakeloop_startup' in sys.modules)"]
    done = subprocess.run(line, env={**os.environ, "WAKELOOP": "1"}, capture_output=True, text=True)
    return done.stdout == "True\n"


def facts() -> dict[str, str]:
    """The lines of `info`."""
    return {
        "wakeloop": wakeloop.__version__,
        "build": build(),
        "Python": f"{platform.python_version()} ({platform.python_implementation()}), {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "GIL": gil(),
        "engine": f"event loop and runtime in Rust, {workers()}",
        "kernel": ", ".join(kernel_features()),
        "waits": waits(),
        "TLS": tls_engine(),
        "default": default_loop(),
        "children": "WAKELOOP=1 gives them wakeloop's event loop" if reaches_children() else NO_STARTUP,
    }


def build() -> str:
    """How the extension module was built, and where it is."""
    return f"{_core.__build__}, {_core.__file__}"


def gil() -> str:
    """Whether one thread at a time runs Python code."""
    if sys.version_info < (3, 13) or not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "on, as in every ordinary build of Python"
    if sys._is_gil_enabled():
        return "on (WAKELOOP_GIL=1, PYTHON_GIL=1, or an extension module asked for it)"
    return "off (WAKELOOP_GIL)"


def default_loop() -> str:
    """Which event loop a program gets that asks asyncio for one."""
    try:
        with contextlib.closing(asyncio.new_event_loop()) as loop:
            kind = f"{type(loop).__module__}.{type(loop).__qualname__}"
    except (RuntimeError, ValueError) as error:
        return f"none: {error}"
    return f"asyncio.new_event_loop() makes {kind} (WAKELOOP)"


def workers() -> str:
    """How many worker threads the runtime has, which it knows when it has started."""

    async def start() -> None:
        await wakeloop.spawn_blocking(int)

    try:
        # Before the coroutine is made, which nobody would await.
        settings.read()
        wakeloop.run(start())
    except (OSError, ValueError) as error:
        return f"which cannot start: {error}"
    metrics = wakeloop.runtime_metrics()
    return f"up to {metrics.workers} worker threads (WAKELOOP_WORKERS)" if metrics else "not started"


def waits() -> str:
    """How a wait of the loop begins."""
    try:
        window = _core._spin_window()
    except ValueError as error:
        return f"none: {error}"
    if window:
        return f"spin for up to {window / 1e3:g} us where the next event is near (WAKELOOP_SPIN)"
    return "sleep at once (WAKELOOP_SPIN, or less than two processors)"


def kernel_features() -> list[str]:
    """The system interfaces that the loop and asyncio's child watchers use here."""
    if sys.platform != "linux":
        return ["kqueue"]
    features = ["epoll", "timerfd", "recvmmsg", "sendmmsg", "sendfile"]
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return features
    return [*features, "pidfd"]


def tls_engine() -> str:
    """The engine of new TLS connections, and the OpenSSL that it calls."""
    try:
        import ssl
    except ImportError:
        return "none: this Python has no ssl module"
    try:
        engine = tls.engine()
    except (RuntimeError, ValueError) as error:
        return f"none: {error}"
    problem = f"; not native: {_core.tls_problem()}" if engine == "sslobject" and _core.tls_problem() else ""
    return f"{engine}, {ssl.OPENSSL_VERSION} (WAKELOOP_TLS){problem}"


def top(argv: list[str]) -> int:
    """show the event loops of the processes that have a window (WAKELOOP_ADMIN=1), or of one and its workers"""
    parser = parser_of(top)
    parser.add_argument("pid", type=int, nargs="?", help="a process; without one, all of this user's")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between readings; 1 by default")
    parser.add_argument("--once", action="store_true", help="print the figures of one interval, and end")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each interval")
    options = parser.parse_args(argv)
    if not 0.01 <= options.interval <= 3600:
        parser.error("the interval must be between 0.01 and 3600 seconds")
    try:
        run_top(options.pid, interval=options.interval, once=options.once, as_json_lines=options.json)
    except (WindowError, ImportError) as error:
        return fail(error)
    except KeyboardInterrupt:
        pass
    return 0


def trace(argv: list[str]) -> int:
    """record the next seconds of a process that has a window (WAKELOOP_ADMIN=1), as a trace for Perfetto"""
    parser = parser_of(trace)
    parser.add_argument("pid", type=int, help="the process")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long to record; 1 by default")
    parser.add_argument("--output", default="trace.json", metavar="FILE", help="trace.json by default")
    options = parser.parse_args(argv)
    if not 0.01 <= options.seconds <= 60:
        parser.error("record for 0.01 to 60 seconds")
    try:
        trace_file.check(options.output)
        status, body = fetch(options.pid, f"/trace?seconds={options.seconds}", options.seconds + 30, LONGEST_TRACE)
        if status != 200:
            return fail(body.decode(errors="replace").strip())
        trace_file.write(options.output, lambda descriptor: write_all(descriptor, body))
    except KeyboardInterrupt:
        return 0
    except WindowError as error:
        return fail(error)
    except OSError as error:
        return fail(f"cannot write {options.output}: {error.strerror}")
    print(f"{options.output}: open it in https://ui.perfetto.dev")
    return 0


def write_all(descriptor: int, data: bytes) -> None:
    """Writes to a file, and waits while a pipe is full."""
    os.set_blocking(descriptor, True)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(data)


COMMANDS = {"run": run, "info": info, "top": top, "trace": trace, "echo": echo, "demo": demo}


def main() -> int:
    """Runs the command line in `sys.argv`."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Runs programs on wakeloop's event loop, and shows what it does.",
        epilog="\n".join(f"  {name:6} {function.__doc__}" for name, function in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wakeloop {wakeloop.__version__}")
    parser.add_argument("command", nargs="?", choices=COMMANDS)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    with output_may_fail():
        options = parser.parse_args()
        if options.command is None:
            parser.print_help()
            return 0
        if options.command != "run":
            return COMMANDS[options.command](options.args)
    # Its errors are the program's own.
    return run(options.args)


@contextlib.contextmanager
def output_may_fail() -> Iterator[None]:
    """Ends the process with code 1 if the block's output cannot be written. Says why, unless the reader has gone."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
        return
    except BrokenPipeError:
        pass
    except OSError as error:
        fail(error.strerror or error)
    # The interpreter must not fail when it flushes at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


if __name__ == "__main__":
    sys.exit(main())
