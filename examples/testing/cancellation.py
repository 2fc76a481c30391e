"""Found by cancellation at each await point: a connection that is not returned to its pool.

python examples/testing/cancellation.py
"""

import asyncio

from wakeloop import testing


class Pool:
    def __init__(self) -> None:
        self.free = 2

    async def acquire(self) -> None:
        self.free -= 1
        await asyncio.sleep(0.1)  # stands for a ping that checks the connection

    def release(self) -> None:
        self.free += 1


async def query(pool: Pool) -> None:
    await pool.acquire()  # the bug: a cancellation during the ping loses the connection
    try:
        await asyncio.sleep(1)  # stands for a query
    finally:
        pool.release()


async def a_query() -> None:
    pool = Pool()
    try:
        await query(pool)
    finally:
        assert pool.free == 2, f"{pool.free} of 2 connections are in the pool"


if __name__ == "__main__":
    print(testing.cancel_everywhere(a_query).report())
