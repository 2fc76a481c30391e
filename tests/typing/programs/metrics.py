"""Figures of the loop and of the runtime, and their differences."""

import asyncio
from typing import assert_type

import wakeloop


def line(figures: wakeloop.LoopMetrics) -> str:
    delay: wakeloop.Histogram = figures.delay
    slow: tuple[wakeloop.SlowCallback, ...] = tuple(figures.last_slow_turns)
    return f"{figures.turns} turns, p99 {delay.percentile(99):.6f} s, {[each.name for each in slow]}"


async def main() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, wakeloop.EventLoop)
    loop.slow_turn_duration = 0.1
    earlier = loop.metrics()
    await wakeloop.sleep(0.01)
    print(line(assert_type(loop.metrics() - earlier, wakeloop.LoopMetrics)))
    if (runtime := wakeloop.runtime_metrics()) is not None:
        assert_type(runtime, wakeloop.RuntimeMetrics)
        assert_type([worker.busy_seconds for worker in runtime.per_worker], list[float])


wakeloop.run(main())
