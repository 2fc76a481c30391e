"""The process in which one scenario runs on one loop. ``run.py`` and the demo start it; they exchange JSON lines.

A server scenario prints ``{"port": N}`` once it listens and serves until it is killed. The others print
``{"ready": true}``, then answer each line ``SECONDS`` on stdin with the operations done in about that time and
the CPU time of the whole process that they took. A scenario that fails prints ``{"fail": reason}``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial

from clients import CLIENTS
from inprocess import FACTORY_SCENARIOS, SCENARIOS
from loops import factory
from processes import die_with_parent, pin
from servers import SERVERS
from side_by_side.services import SERVICES


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def measure(batch: Callable[[], int], seconds: float) -> None:
    """Repeats the batch until the time is over, and reports."""
    gc.collect()
    operations = 0
    cpu, start = time.process_time(), time.perf_counter()
    while time.perf_counter() - start < seconds:
        operations += batch()
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    say(operations=operations, cpu=cpu, wall=wall)


def answer(batch: Callable[[], int]) -> None:
    batch()  # warm-up
    say(ready=True)
    for line in sys.stdin:
        measure(batch, float(line))


def work(arguments: argparse.Namespace) -> None:
    new_loop, name = factory(arguments.loop), arguments.scenario
    if name in FACTORY_SCENARIOS:
        answer(partial(FACTORY_SCENARIOS[name], new_loop))
        return
    with asyncio.Runner(loop_factory=new_loop) as runner:
        loop = runner.get_loop()
        asyncio.set_event_loop(loop)
        if name in SCENARIOS:
            answer(partial(SCENARIOS[name], loop))
        elif name in CLIENTS:
            answer(lambda: runner.run(CLIENTS[name](arguments.port)))
        else:
            listen = SERVERS[name].listen if name in SERVERS else SERVICES[name]
            port = runner.run(listen(arguments.path))
            say(port=port)
            loop.run_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", required=True)
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--port", type=int, default=0, help="client scenarios: where the peer listens")
    parser.add_argument("--path", default="", help="Unix-socket servers: where to listen")
    parser.add_argument("--cpu", type=int, default=-1, help="run on this core only")
    arguments = parser.parse_args()
    die_with_parent()
    pin(arguments.cpu)
    try:
        work(arguments)
    except KeyboardInterrupt:
        pass
    except Exception as error:
        say(fail=f"{type(error).__name__}: {error}")
        os._exit(1)


if __name__ == "__main__":
    main()
