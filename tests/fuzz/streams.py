"""wakeloop.StreamReader does what asyncio.StreamReader does, in whichever pieces data arrives and is read."""

import asyncio

import wakeloop
from tests.fuzz.choices import Choices
from tests.streams.test_native import converse

loop = wakeloop.new_event_loop()


async def compare(data):
    looks_inside, data = bool(data) and data[0] % 2 == 0, data[1:]
    expected = await converse(asyncio.StreamReader, Choices(data), looks_inside)
    found = await converse(wakeloop.StreamReader, Choices(data), looks_inside)
    for step, (one, other) in enumerate(zip(expected[0], found[0], strict=False)):
        assert one == other, f"step {step}"
    assert found == expected, (found, expected)


def check(data):
    loop.run_until_complete(compare(data))
