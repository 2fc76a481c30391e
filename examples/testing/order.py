"""Found by the search for an order: a balance that is read before a query, and written after it.

python examples/testing/order.py
"""

import asyncio

from wakeloop import testing


class Account:
    def __init__(self, balance: int) -> None:
        self.balance = balance

    async def withdraw(self, amount: int) -> None:
        balance = self.balance
        await asyncio.sleep(0)  # stands for a query
        self.balance = balance - amount


async def two_withdrawals() -> None:
    account = Account(100)

    async def later() -> None:
        for _ in range(3):
            await asyncio.sleep(0)  # stands for work
        await account.withdraw(20)

    async with asyncio.TaskGroup() as group:
        group.create_task(account.withdraw(10), name="now")
        group.create_task(later(), name="later")
    assert account.balance == 70, f"{account.balance} are left of 100 - 10 - 20"


if __name__ == "__main__":
    print(testing.explore(two_withdrawals).report())
