"""``python -m wakeloop``: the demo, the echo server, the load generator, and a runner for scripts."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import platform
import runpy
import sys

import wakeloop
from wakeloop import _core


def demo(argv: list[str]) -> int:
    """show every scheduling step of two sleeping tasks on the Rust runtime"""
    argparse.ArgumentParser(prog="python -m wakeloop demo", description=demo.__doc__).parse_args(argv)
    _core.demo()
    return 0


def bench(argv: list[str]) -> int:
    """serve real applications on asyncio, uvloop and wakeloop in turn and compare"""
    from wakeloop.demo.bench import main

    return main(argv)


def load(argv: list[str]) -> int:
    """put a checking load on a server"""
    from wakeloop.demo.load import main

    return main(argv)


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
            await server.close()

    try:
        wakeloop.run(serve())
    except KeyboardInterrupt:
        pass
    return 0


def run(argv: list[str]) -> int:
    """run a script, or module:coroutine, with wakeloop as the event loop"""
    parser = argparse.ArgumentParser(prog="python -m wakeloop run", description=run.__doc__)
    parser.add_argument("target", help="a file, or module:name of a coroutine function without arguments")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="the script's own arguments")
    options = parser.parse_args(argv)
    wakeloop.install()
    sys.argv = [options.target, *options.args]
    module, separator, name = options.target.partition(":")
    if not separator or options.target.endswith(".py"):
        runpy.run_path(options.target, run_name="__main__")
        return 0
    sys.path.insert(0, "")
    function = getattr(importlib.import_module(module), name)
    if not inspect.iscoroutinefunction(function):
        parser.error(f"{options.target} is not a coroutine function")
    wakeloop.run(function())
    return 0


def info(argv: list[str]) -> int:
    """say what is installed and what the loop will do here"""
    argparse.ArgumentParser(prog="python -m wakeloop info", description=info.__doc__).parse_args(argv)
    print(f"wakeloop {wakeloop.__version__}")
    print(f"Python   {platform.python_version()} ({platform.python_implementation()})")
    print(f"system   {platform.system()} {platform.release()}, {platform.machine()}")
    return 0


COMMANDS = {"demo": demo, "bench": bench, "echo": echo, "load": load, "run": run, "info": info}


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
