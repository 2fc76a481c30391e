"""A function that blocks runs on the runtime's pool, with its own types."""

import hashlib
from collections.abc import Sequence
from typing import assert_type

import wakeloop


def digest(data: bytes, *, algorithm: str = "sha256") -> str:
    return hashlib.new(algorithm, data).hexdigest()


async def digests(pieces: Sequence[bytes]) -> list[str]:
    found: list[str] = []
    for piece in pieces:
        found.append(assert_type(await wakeloop.spawn_blocking(digest, piece, algorithm="sha1"), str))
    return found


print(wakeloop.run(digests([b"one", b"two"])))
