"""A schedule of the program's own."""

import asyncio

from wakeloop import testing


class Last(testing.Schedule):
    """Always takes the last of what is possible."""

    def draw(self, kind: str, count: int, weight: float | None = None) -> int:
        return count - 1


async def main() -> list[int]:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    await asyncio.gather(note(1), note(2))
    return order


print(testing.run(main, schedule=Last()), testing.run(main, seed=3))
