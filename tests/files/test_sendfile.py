"""`File.sendfile` over TLS, which reads on a thread, when it is cancelled: the file is read and written as if alone."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.files import CONTENT, content_path  # noqa: F401
from tests.support.tls_pair import finish, secure_pair

pytestmark = pytest.mark.usefixtures("runtime")

wakeloop = pytest.importorskip("wakeloop", reason="files are wakeloop's; the control group has none")


class Held(ThreadPoolExecutor):
    """Each call waits until it may go on: before it, or in its middle, with the file in use."""

    def __init__(self, middle=False):
        super().__init__(1)
        self.begun, self.may_go_on, self.middle = threading.Event(), threading.Event(), middle

    def submit(self, function, *arguments):
        def call():
            if not self.middle:
                self.wait()
                return function(*arguments)
            raw = function.__self__._raw
            function.__self__._raw = Waiting(raw, self)
            return function(*arguments)

        return super().submit(call)

    def wait(self):
        self.begun.set()
        self.may_go_on.wait()


class Waiting:
    """An io.FileIO whose read takes long."""

    def __init__(self, raw, held):
        self._raw, self._held, self.seek = raw, held, raw.seek

    def readinto(self, buffer):
        self._held.wait()
        return self._raw.readinto(buffer)


@pytest.mark.parametrize("middle", [False, True])
def test_a_cancelled_sendfile_moves_no_later_read_or_write(run, path, tls, middle):
    async def main():
        near, far = await secure_pair(tls)
        held = Held(middle)
        asyncio.get_running_loop().set_default_executor(held)
        async with wakeloop.open(path, "rb+") as file:
            sending = asyncio.ensure_future(file.sendfile(near.transport, 70))
            while not held.begun.is_set():
                await asyncio.sleep(0.001)
            sending.cancel()
            await asyncio.wait([sending])
            assert sending.cancelled()
            following = asyncio.gather(file.tell(), file.seek(7), file.read(7), file.write(b"written"))
            for _ in range(5):
                await asyncio.sleep(0)
            # The thread still reads the file, or has yet to see that it must not.
            assert following.done() is not middle
            held.may_go_on.set()
            assert await following == [70, 7, b"line 1\n", 7]
            assert await file.tell() == 21
        assert path.read_bytes() == CONTENT[:14] + b"written" + CONTENT[21:]
        await finish(near, far)

    run(main())


def test_a_sendfile_over_tls_that_ends_leaves_the_position_behind_what_was_sent(run, path, tls):
    async def main():
        near, far = await secure_pair(tls)
        async with wakeloop.open(path, "rb") as file:
            await file.read(3)
            assert await file.sendfile(near.transport, 70, 100_000) == 100_000
            assert await file.tell() == 100_070 and await file.read(5) == CONTENT[100_070:100_075]
        near.transport.close()
        await far.lost
        await near.lost
        assert bytes(far.data) == CONTENT[70:100_070]

    run(main())
