"""A Dask cluster on this machine. Its scheduler and its worker processes run on wakeloop.

    pip install distributed
    python examples/dask_cluster.py

`wakeloop.install()` stands outside the `if`: Dask starts its worker processes with multiprocessing's "spawn", and
each of them imports this file again before it makes its loop.
"""

import asyncio
from typing import Any

import wakeloop
from distributed import Client, LocalCluster

wakeloop.install()


async def loop_name() -> str:
    loop = asyncio.get_running_loop()
    return f"{type(loop).__module__}.{type(loop).__qualname__}"


def collatz(number: int) -> int:
    """Returns how many steps `number` takes to 1."""
    steps = 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


def longest(numbers: range) -> tuple[int, int]:
    return max((collatz(number), number) for number in numbers)


def main() -> None:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster, Client(cluster) as client:
        print("scheduler:", client.run_on_scheduler(loop_name))
        names: Any = client.run(loop_name)
        for address, name in names.items():
            print(f"worker {address}: {name}")
        parts = client.map(longest, [range(start, start + 5000) for start in range(1, 100_000, 5000)])
        steps, number = client.submit(max, parts).result()
        print(f"of the numbers up to 100000, {number} takes longest to reach 1: {steps} steps")


if __name__ == "__main__":
    main()
