"""Random lives read the same on our loop and on asyncio: see `tests/support/lives`.

`LIVES` in the environment is how many of each kind (40); `make lives` runs very many.
"""

import asyncio
import gc
import os

import pytest

import wakeloop
from tests.support import lives

COUNT = int(os.environ.get("LIVES", 40))
FIRST = int(os.environ.get("FIRST_LIFE", 0))

#: asyncio's read pipe of the first 3.11s does not know whether it reads, and forgets that it was paused at its beginning.
FORGETFUL = "is_reading" not in vars(asyncio.unix_events._UnixReadPipeTransport)
READ_PIPE = pytest.param("read-pipe", marks=pytest.mark.skipif(FORGETFUL, reason="asyncio's forgets a pause"))


@pytest.mark.native
@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("debug", [False, True], ids=["", "debug"])
@pytest.mark.parametrize(
    "kind",
    [
        *("unix", "tcp", "datagrams", "server", READ_PIPE, "write-pipe"),
        *("sockets", "streams", "our-streams", "processes", "schedules"),
    ],
)
def test_a_random_life_reads_as_on_asyncio(kind, debug, asyncio_log):
    check(kind, debug=debug)


@pytest.mark.native
@pytest.mark.timeout(60 + COUNT)
@pytest.mark.parametrize("kind", ["tls-server", "tls-client"])
def test_a_random_life_with_tls_reads_as_on_asyncio(kind, tls, tls_engine, loop_name, asyncio_log):
    check(kind, tls=tls)


def check(kind, **options):
    gc.freeze()  # each life ends with a collection, which need not look at pytest
    try:
        for seed in range(FIRST, FIRST + COUNT):
            difference = lives.difference(kind, seed, wakeloop.new_event_loop, **options)
            assert difference is None, difference
    finally:
        gc.unfreeze()
