"""Differential fuzzing: random scenarios look the same on our loop and on asyncio. See `tests/support/differential`.

The environment variable `SCENARIOS` says how many of each kind to run (default 40), and `FIRST_SEED` where to start
(default 0). `make fuzz` runs a thousand of each kind.
"""

import asyncio
import gc
import os

import pytest

import wakeloop
from tests.support import differential

COUNT = int(os.environ.get("SCENARIOS", 40))
FIRST = int(os.environ.get("FIRST_SEED", 0))

#: In early 3.11 releases asyncio's read pipe has no is_reading, and forgets a pause from before it starts reading.
FORGETS_PAUSE = "is_reading" not in vars(asyncio.unix_events._UnixReadPipeTransport)
READ_PIPE = pytest.param("read-pipe", marks=pytest.mark.skipif(FORGETS_PAUSE, reason="asyncio's read pipe forgets a pause"))


@pytest.mark.native
@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize(
    "kind",
    [
        *("unix", "tcp", "datagrams", "server", READ_PIPE, "write-pipe"),
        *("sockets", "streams", "our-streams", "processes", "schedules", "writes", "datagram-writes"),
    ],
)
def test_a_random_scenario_looks_the_same_as_on_asyncio(kind, debug, asyncio_log):
    check(kind, debug=debug)


@pytest.mark.native
@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("kind", ["tls-server", "tls-client", "tls-writes"])
def test_a_random_tls_scenario_looks_the_same_as_on_asyncio(kind, tls, tls_engine, loop_name, asyncio_log):
    check(kind, tls=tls)


def check(kind, **options):
    # Each scenario collects its own garbage, and need not look at everything else.
    gc.collect()
    gc.freeze()
    try:
        for seed in range(FIRST, FIRST + COUNT):
            difference = differential.difference(kind, seed, wakeloop.new_event_loop, **options)
            assert difference is None, difference
    finally:
        gc.unfreeze()
