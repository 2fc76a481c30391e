"""Differential fuzzing: random scenarios that must look the same on asyncio and on another loop.

A scenario uses one transport, server, socket, stream, process or set of timers. Its seed decides what the program does,
both from outside and inside the protocol's callbacks, and what the peer does. The scenario records in order everything
that a program can observe. The same seed on two loops must give the same record. Where the loops are known to differ,
the scenario avoids the case, and a comment there says why.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import warnings

from ..leaks import take_failures
from .conversations import ConversationScenario
from .datagrams import DatagramScenario
from .pipes import ReadPipeScenario, WritePipeScenario
from .processes import ProcessScenario
from .schedules import ScheduleScenario
from .secure import SecureClient, SecureServer
from .servers import ServerScenario
from .sockets import SockScenario
from .streams import TcpScenario, UnixScenario
from .writes import DatagramWritesScenario, SecureWritesScenario, WritesScenario

KINDS = {
    "unix": UnixScenario,
    "tcp": TcpScenario,
    "tls-server": SecureServer,
    "tls-client": SecureClient,
    "datagrams": DatagramScenario,
    "server": ServerScenario,
    "read-pipe": ReadPipeScenario,
    "write-pipe": WritePipeScenario,
    "sockets": SockScenario,
    "processes": ProcessScenario,
    "schedules": ScheduleScenario,
    "streams": ConversationScenario,
    "writes": WritesScenario,
    "datagram-writes": DatagramWritesScenario,
    "tls-writes": SecureWritesScenario,
    "our-streams": functools.partial(ConversationScenario, ours=True),
}


def observe(kind, seed, loop_factory, debug=False, **options):
    """Runs the scenario of this seed, and returns what was observed as a list of tuples; None if it is not comparable."""
    loop = loop_factory()
    loop.set_debug(debug)
    loop.slow_callback_duration = 100
    scenario = KINDS[kind](seed, loop, **options)
    loop.set_exception_handler(scenario.handler_called)
    with logged(scenario), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loop.run_until_complete(scenario.run())
        except Exception as error:
            scenario.record("raised", scenario.describe(error))
        finally:
            loop.close()
            scenario.end()
            take_failures()
            gc.collect()
    if not scenario.comparable:
        return None
    return scenario.seen + [("warning", text) for one in caught if scenario.warns(text := scenario.cleaned(one.message))]


@contextlib.contextmanager
def logged(scenario):
    logger, handler = logging.getLogger("asyncio"), logging.Handler(logging.INFO)
    handler.emit = lambda record: scenario.record("log", record.levelname, scenario.cleaned(record.getMessage()).split("\n")[0])
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def difference(kind, seed, other, **options):
    """Compares a seed on asyncio and on another loop.

    Returns None, or a text with the common part of both records and how each continues. A seed that is not comparable
    on asyncio has no difference.
    """
    expected = observe(kind, seed, asyncio.SelectorEventLoop, **options)
    found = observe(kind, seed, other, **options)
    if expected is None or expected == found:
        return None
    found = found or [("not comparable",)]
    same = next(
        (n for n, (one, two) in enumerate(zip(expected, found)) if one != two), min(len(expected), len(found))
    )
    lines = [f"{kind}, seed {seed}", *map(str, expected[:same])]
    for name, one in ("asyncio continues", expected), ("ours continues", found):
        lines += [f"{name}:", *(f"    {line}" for line in one[same : same + 6])]
    return "\n".join(lines)
