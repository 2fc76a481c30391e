"""Random lives of a transport, a socket, a stream or a process, to be compared between two loops.

A life is a seed: it decides what the program does with it, from outside and from inside of the protocol's calls, and
what the peer does, a plain socket. All that a program could see of it is written down in order. The same seed
on asyncio and on another loop must read the same; where it is known not to, the life does not go there, and the
comment on that place says why.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import warnings

from .conversations import ConversationLife
from .datagrams import DatagramLife
from .pipes import ReadPipeLife, WritePipeLife
from .processes import ProcessLife
from .schedules import ScheduleLife
from .secure import SecureClient, SecureServer
from .servers import ServerLife
from .sockets import SockLife
from .streams import TcpLife, UnixLife

KINDS = {
    "unix": UnixLife,
    "tcp": TcpLife,
    "tls-server": SecureServer,
    "tls-client": SecureClient,
    "datagrams": DatagramLife,
    "server": ServerLife,
    "read-pipe": ReadPipeLife,
    "write-pipe": WritePipeLife,
    "sockets": SockLife,
    "processes": ProcessLife,
    "schedules": ScheduleLife,
    "streams": ConversationLife,
    "our-streams": functools.partial(ConversationLife, ours=True),
}


def lived(kind, seed, loop_factory, debug=False, **options):
    """What was seen in the life of this seed: a list of tuples."""
    loop = loop_factory()
    loop.set_debug(debug)
    loop.slow_callback_duration = 100
    life = KINDS[kind](seed, loop, **options)
    loop.set_exception_handler(life.handler_called)
    with logged(life), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            loop.run_until_complete(life.live())
        except Exception as error:
            life.say("raised", life.words(error))
        finally:
            loop.close()
            life.end()
            gc.collect()
    return life.seen + [("warning", text) for one in caught if life.warns(text := life.cleaned(one.message))]


@contextlib.contextmanager
def logged(life):
    logger, handler = logging.getLogger("asyncio"), logging.Handler(logging.INFO)
    handler.emit = lambda record: life.say("log", record.levelname, life.cleaned(record.getMessage()).split("\n")[0])
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def difference(kind, seed, other, attempts=3, **options):
    """None, or what the two lives of a seed have in common and how each goes on. Only what differs each time counts:
    the kernel delivers a packet on loopback at once, but not on a machine that is short of time."""
    for _ in range(attempts):
        expected = lived(kind, seed, asyncio.SelectorEventLoop, **options)
        found = lived(kind, seed, other, **options)
        if expected == found:
            return None
    same = next(
        (n for n, (one, two) in enumerate(zip(expected, found)) if one != two), min(len(expected), len(found))
    )
    lines = [f"{kind}, seed {seed}", *map(str, expected[:same])]
    for name, one in ("asyncio goes on", expected), ("ours goes on", found):
        lines += [f"{name}:", *(f"    {line}" for line in one[same : same + 6])]
    return "\n".join(lines)
