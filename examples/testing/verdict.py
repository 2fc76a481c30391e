"""Found by the verdict on what is left: a task in the background that outlives the program.

python examples/testing/verdict.py
"""

import asyncio

from wakeloop import testing


class Client:
    def __init__(self) -> None:
        self.heartbeat = asyncio.create_task(self.beat(), name="heartbeat")

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(30)

    async def request(self) -> str:
        await asyncio.sleep(1)
        return "answer"

    async def close(self) -> None:
        pass  # the bug: the heartbeat goes on


async def one_request() -> None:
    client = Client()
    try:
        assert await client.request() == "answer"
    finally:
        await client.close()


if __name__ == "__main__":
    try:
        testing.run(one_request)
    except testing.LeftBehind as verdict:
        print(verdict)
