"""A search for an order in which a program fails."""

from typing import assert_type

import wakeloop
from wakeloop import testing


class Account:
    balance = 100

    async def withdraw(self, amount: int) -> None:
        balance = self.balance
        await wakeloop.sleep(0)
        self.balance = balance - amount


async def main() -> None:
    account = Account()
    await account.withdraw(10)
    assert account.balance == 90


found = testing.explore(main, runs=10)
assert_type(found.failure, testing.Failure | None)
if found.failure is not None:
    assert_type(found.failure.seed, int)
    assert_type(found.failure.error, BaseException)
cancelled = testing.cancel_everywhere(main)
assert_type(cancelled.failures, list[testing.Cancellation])
