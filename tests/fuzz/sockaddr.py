"""Addresses mean what Python's `socket` means, in both directions."""

import os
import socket
import struct

from tests.fuzz.choices import Choices
from tests.fuzz.native import from_python, to_python

FAMILIES = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
HOSTS = ("127.0.0.1", "255.255.255.255", "::1", "fe80::1%lo", "::ffff:1.2.3.4", "1.2.3", "", "localhost", "0x7f.1")
NUMBERS = (0, 1, 80, 65535, 65536, 0xFFFFF, 0x100000, 0xFFFFFFFF, 1 << 32, -1, True, 1.0, "80", None)
#: A port before the address, and the flow information and scope around it.
V4, V6 = struct.Struct("=H2s4s8x"), struct.Struct("=H2sI16sI")


def text(choices):
    if choices.getrandbits(1):
        return choices.choice(HOSTS)
    return choices.take(choices.getrandbits(6)).decode("utf-8", "surrogateescape")


def address(choices, family):
    if family == socket.AF_UNIX:
        name = choices.take(choices.getrandbits(8) % 120)
        return choices.choice([bytes, bytearray, os.fsdecode, tuple])(name)
    numbers = [choices.choice(NUMBERS) for _ in range(choices.getrandbits(2))]
    return choices.choice([tuple, tuple, tuple, list])([text(choices), *numbers])


def expected_bytes(family, given):
    """The kernel's form of an address that names no host. Raises what Python raises if the address means nothing."""
    if family == socket.AF_UNIX:
        name = os.fsencode(given) if isinstance(given, str) else bytes(given)
        # An abstract name has no end. A path has one, which counts.
        abstract = name.startswith(b"\0") and isinstance(given, bytes)
        assert abstract or b"\0" not in name
        assert len(name) + (not abstract) <= 108
        return struct.pack("=H", family) + name + (b"" if abstract else b"\0")
    host, port, *more = given
    flow, scope = [*more, 0, 0][:2]
    packed = socket.inet_pton(family, host)
    network_port = struct.pack("!H", port)
    if family == socket.AF_INET:
        assert not more
        return V4.pack(family, network_port, packed)
    assert len(more) <= 2 and flow <= 0xFFFFF
    return V6.pack(family, network_port, socket.htonl(flow), packed, scope)


def expected_object(family, raw):
    if family == socket.AF_INET:
        _, port, packed = V4.unpack_from(raw)
        return socket.inet_ntop(family, packed), int.from_bytes(port, "big")
    if family == socket.AF_INET6:
        _, port, flow, packed, scope = V6.unpack_from(raw)
        return socket.inet_ntop(family, packed), int.from_bytes(port, "big"), socket.ntohl(flow), scope
    if family == socket.AF_UNIX:
        name = raw[2:]
        return name if name.startswith(b"\0") else os.fsdecode(name.partition(b"\0")[0])
    return None


def check(data):
    choices = Choices(data)
    while choices:
        if choices.getrandbits(1):
            family = choices.choice(FAMILIES)
            given = address(choices, family)
            raw = from_python(family, given)
            # Without one, Python's socket is asked.
            if raw is not None:
                assert raw == expected_bytes(family, given), given
                shown = to_python(raw)
                assert from_python(family, shown) in (raw, None), shown
        else:
            family = choices.choice((*FAMILIES, socket.AF_UNSPEC, 99))
            # As the kernel does, which has no shorter ones.
            least = {socket.AF_INET: V4.size, socket.AF_INET6: V6.size}.get(family, 2)
            size = max(least, choices.choice([2, 3, 16, 28, 110, 128]))
            raw = struct.pack("=H", family) + choices.take(size - 2)
            assert to_python(raw) == expected_object(family, raw), raw
