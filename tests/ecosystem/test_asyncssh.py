"""asyncssh, whose processes are redirected to files of wakeloop."""

import asyncio
import os

import pytest

import wakeloop
from tests.ecosystem.support import need

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("open_file", [wakeloop.open, "aiofiles"], ids=["wakeloop.open", "aiofiles.open"])
def test_a_process_reads_and_writes_files(run, runtime, tmp_path, open_file):
    asyncssh, aiofiles = need("asyncssh", "aiofiles")
    open_file = aiofiles.open if open_file == "aiofiles" else open_file
    data = os.urandom(2_000_000)
    (tmp_path / "in").write_bytes(data)
    key = asyncssh.generate_private_key("ssh-ed25519")

    async def copy(process):
        async for piece in process.stdin:
            process.stdout.write(piece)
        await process.stdout.drain()
        process.exit(0)

    class Server(asyncssh.SSHServer):
        def begin_auth(self, username):
            return False

    async def main():
        options = {"server_factory": Server, "process_factory": copy, "encoding": None, "server_host_keys": [key]}
        server = await asyncssh.listen("127.0.0.1", 0, **options)
        try:
            async with asyncssh.connect(
                "127.0.0.1", server.get_port(), known_hosts=None, config=None, username="user", client_keys=[]
            ) as connection:
                async with open_file(tmp_path / "in", "rb") as source, open_file(tmp_path / "out", "wb") as target:
                    done = await connection.run("copy", stdin=source, stdout=target, encoding=None)
                    assert done.exit_status == 0
        finally:
            server.close()
            await server.wait_closed()

    run(asyncio.wait_for(main(), 60))
    assert (tmp_path / "out").read_bytes() == data
