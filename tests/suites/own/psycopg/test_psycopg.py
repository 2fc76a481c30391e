"""psycopg's asyncio interface against a PostgreSQL that the tests start."""

import asyncio
import contextlib
import os
import pathlib
import subprocess
import tempfile

import psycopg
import psycopg_pool
import pytest

PROGRAMS = pathlib.Path(os.environ["PGINSTALLATION"])


@pytest.fixture(scope="module")
def server():
    """Runs a cluster that listens only on a Unix socket. Gives the connection string."""
    with tempfile.TemporaryDirectory(prefix="pg-") as directory:
        data = pathlib.Path(directory, "data")
        data.mkdir()
        os.chmod(directory, 0o1777)

        def run(program, *arguments):
            command = [PROGRAMS / program, "-D", data, *arguments]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=60)

        run("initdb", "-A", "trust", "-U", "postgres", "--no-sync")
        run("pg_ctl", "-w", "-l", data / "log", "-o", f"-k {directory} -h '' -F", "start")
        try:
            yield f"host={directory} user=postgres dbname=postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")


@pytest.fixture
def connected(server):
    """`connected(function)`: runs the coroutine function with a connection on a new loop."""

    def run(function, **options):
        async def main():
            async with await psycopg.AsyncConnection.connect(server, autocommit=True, **options) as connection:
                return await function(connection)

        return asyncio.run(main())

    return run


def test_queries_and_their_parameters(connected):
    async def main(connection):
        cursor = await connection.execute("select %s::int + 1, %s::text", (41, "ä"))
        assert await cursor.fetchone() == (42, "ä")
        for number in range(200):
            cursor = await connection.execute("select %s::int", (number,))
            assert await cursor.fetchone() == (number,)

    connected(main)


def test_a_large_result_and_a_large_parameter(connected):
    async def main(connection):
        text = "x" * (8 << 20)
        cursor = await connection.execute("select %s::text, length(%s::text)", (text, text))
        assert await cursor.fetchone() == (text, len(text))
        cursor = await connection.execute("select generate_series(1, 100000)")
        assert sum([row[0] async for row in cursor]) == 100000 * 100001 // 2

    connected(main)


def test_copy_in_and_out(connected):
    async def main(connection):
        await connection.execute("create temp table numbers (number int, text text)")
        async with connection.cursor() as cursor:
            async with cursor.copy("copy numbers from stdin") as copy:
                for number in range(50000):
                    await copy.write_row((number, "text " * 10))
            total = 0
            async with cursor.copy("copy numbers to stdout") as copy:
                async for block in copy:
                    total += len(block)
        assert total > 50000 * 50
        cursor = await connection.execute("select count(*), max(number) from numbers")
        assert await cursor.fetchone() == (50000, 49999)

    connected(main)


def test_a_pipeline_of_queries(connected):
    async def main(connection):
        async with connection.pipeline():
            cursors = [await connection.execute("select %s::int", (number,)) for number in range(500)]
            assert [(await cursor.fetchone())[0] for cursor in cursors] == list(range(500))

    connected(main)


def test_a_server_side_cursor_in_a_transaction(connected):
    async def main(connection):
        async with connection.transaction(), connection.cursor("stepping") as cursor:
            await cursor.execute("select generate_series(1, 1000)")
            assert [row[0] for row in await cursor.fetchmany(10)] == list(range(1, 11))
            assert len(await cursor.fetchall()) == 990

    connected(main)


def test_notifications_reach_another_connection(connected, server):
    async def main(connection):
        await connection.execute("listen news")
        async with await psycopg.AsyncConnection.connect(server, autocommit=True) as other:
            for number in range(3):
                await other.execute("select pg_notify('news', %s)", (str(number),))
        return [note.payload async for note in connection.notifies(timeout=20, stop_after=3)]

    assert connected(main) == ["0", "1", "2"]


def test_notifications_that_do_not_come_are_waited_for_only_so_long(connected):
    async def main(connection):
        await connection.execute("listen news")
        return [note async for note in connection.notifies(timeout=0.05)]

    assert connected(main) == []


def test_a_query_that_is_cancelled_leaves_the_connection_usable(connected):
    async def main(connection):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await connection.execute("select pg_sleep(60)")
        cursor = await connection.execute("select 1")
        assert await cursor.fetchone() == (1,)
        task = asyncio.create_task(connection.execute("select pg_sleep(60)"))
        await asyncio.sleep(0.05)
        await connection.cancel_safe()
        with pytest.raises(psycopg.errors.QueryCanceled):
            await task

    connected(main)


def test_a_connection_that_the_server_ends_says_so(connected, server):
    async def main(connection):
        task = asyncio.create_task(connection.execute("select pg_sleep(60)"))
        await asyncio.sleep(0.05)
        async with await psycopg.AsyncConnection.connect(server, autocommit=True) as other:
            await other.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
        with pytest.raises(psycopg.OperationalError):
            await task
        assert connection.closed

    connected(main)


def test_a_server_that_is_not_there():
    async def main():
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect("host=/nonexistent user=nobody")
        with pytest.raises(psycopg.OperationalError):
            await psycopg.AsyncConnection.connect("host=127.0.0.1 port=1 user=nobody connect_timeout=5")

    asyncio.run(main())


def test_a_pool_shares_few_connections_among_many_tasks(server):
    async def work(pool, number):
        async with pool.connection() as connection:
            cursor = await connection.execute("select pg_sleep(0.001), %s::int", (number,))
            return (await cursor.fetchone())[1]

    async def main():
        async with psycopg_pool.AsyncConnectionPool(server, min_size=2, max_size=5, open=False) as pool:
            assert await asyncio.gather(*(work(pool, number) for number in range(300))) == list(range(300))
            victims = [asyncio.create_task(work(pool, number)) for number in range(50)]
            await asyncio.sleep(0.003)
            for task in victims[::2]:
                task.cancel()
            done = await asyncio.gather(*victims, return_exceptions=True)
            assert [result for result in done[1::2]] == list(range(1, 50, 2))
            assert await work(pool, 7) == 7

    asyncio.run(main())


def test_a_pool_replaces_a_connection_that_was_lost(server):
    async def main():
        async with psycopg_pool.AsyncConnectionPool(
            server, min_size=1, max_size=1, open=False, check=psycopg_pool.AsyncConnectionPool.check_connection
        ) as pool:
            async with pool.connection() as connection:
                first = connection.info.backend_pid
            async with await psycopg.AsyncConnection.connect(server, autocommit=True) as other:
                await other.execute("select pg_terminate_backend(%s)", (first,))
            async with pool.connection() as connection:
                assert connection.info.backend_pid != first

    asyncio.run(main())


def test_nothing_is_watched_any_more_when_connections_are_closed(connected):
    async def main(connection):
        loop, fd = asyncio.get_running_loop(), connection.fileno()
        await connection.execute("select 1")
        assert not loop.remove_reader(fd) and not loop.remove_writer(fd)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.execute("select pg_sleep(60)")
        assert not loop.remove_reader(fd) and not loop.remove_writer(fd)

    connected(main)
