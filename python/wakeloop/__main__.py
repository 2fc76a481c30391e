"""``python -m wakeloop``: a runner for scripts, facts about the installation, an echo server, a scheduling demo."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import os
import platform
import runpy
import sys
from importlib.metadata import entry_points

import wakeloop
from wakeloop import _core, _tls


def demo(argv: list[str]) -> int:
    """show every scheduling step of two sleeping tasks on the Rust runtime"""
    argparse.ArgumentParser(prog="python -m wakeloop demo", description=demo.__doc__).parse_args(argv)
    _core.demo()
    return 0


def echo(argv: list[str]) -> int:
    """run the Rust echo server until Ctrl-C"""
    parser = argparse.ArgumentParser(prog="python -m wakeloop echo", description=echo.__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    options = parser.parse_args(argv)

    async def serve() -> None:
        server = await wakeloop.start_echo_server(options.host, options.port)
        print(f"echo server on {server.host}:{server.port}", flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            print(server.stats())
            server.close()
            await server.wait_closed()

    try:
        wakeloop.run(serve())
    except KeyboardInterrupt:
        pass
    return 0


def run(argv: list[str]) -> int:
    """run a script, module, command or coroutine function with wakeloop as the event loop"""
    parser = argparse.ArgumentParser(prog="python -m wakeloop run", description=run.__doc__)
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
    sys.argv = [target, *options.args]
    if options.module:
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    elif os.path.exists(target):
        if not sys.flags.safe_path:
            # As `python FILE` does it. `python -m` has put the current directory there.
            sys.path[0] = os.path.dirname(os.path.realpath(target))
        runpy.run_path(target, run_name="__main__")
    elif commands := entry_points(group="console_scripts", name=target):
        [command, *_] = commands
        sys.exit(command.load()())
    elif separator:
        function = getattr(importlib.import_module(module), name)
        if not inspect.iscoroutinefunction(function):
            parser.error(f"{target} is not a coroutine function")
        wakeloop.run(function())
    else:
        parser.error(f"{target} is neither a file nor an installed command")
    return 0


def info(argv: list[str]) -> int:
    """print the versions, and what the loop uses on this system"""
    argparse.ArgumentParser(prog="python -m wakeloop info", description=info.__doc__).parse_args(argv)
    for name, text in facts().items():
        print(f"{name:8} {text}")
    return 0


def facts() -> dict[str, str]:
    """The lines of `info`."""
    return {
        "wakeloop": wakeloop.__version__,
        "Python": f"{platform.python_version()} ({platform.python_implementation()})",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "engine": f"event loop and runtime in Rust, {workers()}",
        "kernel": ", ".join(kernel_features()),
        "TLS": tls_engine(),
    }


def workers() -> str:
    """How many worker threads the runtime has, which it knows when it has started."""

    async def start() -> None:
        await wakeloop.spawn_blocking(int)

    try:
        wakeloop.run(start())
    except OSError as error:
        return f"which cannot start: {error}"
    metrics = wakeloop.runtime_metrics()
    return f"up to {metrics['workers']} worker threads (WAKELOOP_WORKERS)" if metrics else "not started"


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
        engine = _tls.engine()
    except (RuntimeError, ValueError) as error:
        return f"none: {error}"
    problem = f"; not native: {_core.tls_problem()}" if engine == "sslobject" and _core.tls_problem() else ""
    return f"{engine}, {ssl.OPENSSL_VERSION} (WAKELOOP_TLS){problem}"


COMMANDS = {"run": run, "info": info, "echo": echo, "demo": demo}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m wakeloop",
        description=__doc__,
        epilog="\n".join(f"  {name:6} {function.__doc__}" for name, function in COMMANDS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    return COMMANDS[options.command](options.args)


if __name__ == "__main__":
    sys.exit(main())
