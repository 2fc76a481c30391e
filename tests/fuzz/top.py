"""Whatever is on a page, `python -m wakeloop top` shows it or raises PageError, and shows nothing but text."""

import ctypes
import json
import os
import sys

from rich.console import Console

from tests.fuzz import native
from tests.fuzz.choices import Choices
from tests.support.trace import refuse
from wakeloop import _core, metrics
from wakeloop._observe import page as _page, top

#: Where everything in a slot is.
PLACE = {name: place for name, place, _ in _core._page_layout()[2]}
#: The lines of these are followed.
FILES = {module.__file__ for module in (_page, top, metrics)}
HEADER, STARTED = 4096, PLACE["started"]
#: The words of a slot: the counters and the name, and the first slow callbacks.
PLACES = tuple(range(8, PLACE["records"] + 512, 8))
WORDS = (0, 1, 2, 3, 1 << 20, 1 << 40, (1 << 63) - 1, (1 << 63) + 1, (1 << 64) - 1, 0xFFFD_1B5B_0A41_C3A9)

address, size = native.lines
lines = (ctypes.c_uint8 * size).from_address(address)
fd = os.memfd_create("page")
console = Console(file=open(os.devnull, "w"), width=80)  # noqa: SIM115


def follow(frame, event, _argument):
    """Tells libFuzzer which lines are reached."""
    code = frame.f_code
    if event == "call" and code.co_filename not in FILES:
        return None
    place = hash((code.co_name, frame.f_lineno)) % size
    lines[place] = min(lines[place] + 1, 255)
    return follow


def page(before, data):
    """A page on which the fuzzer has changed some words."""
    changed, choices = bytearray(before), Choices(data)
    while choices:
        slot, kind = HEADER + choices.choice((0, 0, 1, 15)) * _page.SLOT, choices.getrandbits(6)
        if kind == 0:
            # The header is another version's, or that of no page.
            changed[choices.getrandbits(6)] ^= 1
        elif kind == 1:
            # The slot is another loop's, or that of none.
            changed[slot] += 1 if changed[slot] < 255 else -255
        else:
            at = slot + choices.choice(PLACES)
            word = choices.choice(WORDS).to_bytes(8, "little") if kind % 2 else choices.take(8)
            changed[at : at + 8] = word
    return bytes(changed)


def read(content):
    os.pwrite(fd, content, 0)
    os.ftruncate(fd, len(content))
    return _page.read(fd)


def show(before, now):
    shown = top.as_json(1, before, now)
    loops = json.loads(shown, parse_constant=refuse)["loops"]
    for loop in loops:
        assert 0 <= loop["utilization"] <= 1 and loop["busy"] >= 0 and loop["delay_p50"] <= loop["delay_p99"]
        assert len(loop["slow"]) <= 10 and all(slow["name"].isprintable() for slow in loop["slow"])
    assert all(line.isprintable() for line in top.plain(1, before, now).split("\n"))


def check(data):
    half = len(data) // 2
    blank = bytearray(_page.header(os.getpid(), "1.0").ljust(_page.SIZE, b"\0"))
    # The first slot is that of a loop, which runs.
    blank[HEADER] = blank[HEADER + STARTED] = 1
    first = page(blank, data[:half])
    second = page(first, data[half:])
    if len(data) % 32 == 1:
        second = second[: data[0] << 8]
    sys.settrace(follow)
    try:
        before, now = read(first), read(second)
        show(before, now)
        if len(data) % 16 == 2:
            console.print(top.screen(1, before, now))
    except _page.PageError:
        pass
    finally:
        sys.settrace(None)
