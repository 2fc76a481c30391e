"""The watchdog and the flight recorder."""

import sys
import time
from typing import assert_type

import wakeloop


async def main() -> None:
    time.sleep(0.01)


with wakeloop.watchdog("100ms", file=sys.stderr) as watchdog:
    assert_type(watchdog, wakeloop.Watchdog)
    with wakeloop.record("/dev/null", size=1 << 16) as recorder:
        assert_type(recorder, wakeloop.Recorder)
        wakeloop.run(main())
    print(watchdog.limit, recorder.events, recorder.dropped)
