"""Files in binary and in text, by their modes."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import assert_type

import wakeloop
from wakeloop import fs


async def lines(path: Path) -> AsyncIterator[str]:
    async with wakeloop.open(path, encoding="utf-8") as file:
        async for line in file:
            yield assert_type(line, str).rstrip("\n")


async def copy(source: Path, target: Path) -> int:
    count = 0
    async with wakeloop.open(source, "rb") as reader, wakeloop.open(target, "wb") as writer:
        while piece := assert_type(await reader.read(1 << 16), bytes):
            count += await writer.write(piece)
        await writer.fsync()
    return count


async def main() -> None:
    async with fs.TemporaryDirectory() as folder:
        source = Path(folder, "source")
        await fs.write_text(source, "one\ntwo\n")
        print(await copy(source, Path(folder, "target")), [line async for line in lines(source)])
        assert_type(await fs.listdir(folder), list[str])


wakeloop.run(main())
