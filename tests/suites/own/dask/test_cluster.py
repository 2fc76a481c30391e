"""Dask with worker processes: scheduler, nannies, workers and clients all on the loop that asyncio hands out."""

import asyncio
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import dask.array
import dask.bag
import numpy
import pytest
from distributed import Client, LocalCluster, Security, wait

ROOT = pathlib.Path(__file__).parents[4]
EXAMPLES = ROOT / "examples"
OURS = "wakeloop.EventLoop"


async def loop_name():
    loop = asyncio.get_running_loop()
    return f"{type(loop).__module__}.{type(loop).__qualname__}"


def name_here():
    loop = asyncio.new_event_loop()
    loop.close()
    return f"{type(loop).__module__}.{type(loop).__qualname__}"


def slow_square(number):
    time.sleep(0.05)
    return number * number


def eventually(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.05)


@pytest.fixture
def local(tmp_path):
    return {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "local_directory": str(tmp_path)}


@pytest.fixture
def client(local):
    with LocalCluster(**local) as cluster, Client(cluster) as client:
        yield client


def test_scheduler_workers_and_nannies_run_on_the_loop_of_this_process(client):
    expected = name_here()
    assert client.run_on_scheduler(loop_name) == expected
    for nanny in (False, True):
        names = client.run(loop_name, nanny=nanny)
        assert len(names) == 2 and set(names.values()) == {expected}
    pids = client.run(os.getpid).values()
    assert len({os.getpid(), *pids}) == 3


def test_an_array_computation_agrees_with_numpy(client):
    plain = numpy.random.default_rng(7).normal(size=(1200, 800))
    chunked = dask.array.from_array(plain, chunks=(300, 200))
    product, deviation = dask.compute(chunked.T @ chunked, chunked.std(axis=0))
    numpy.testing.assert_allclose(product, plain.T @ plain)
    numpy.testing.assert_allclose(deviation, plain.std(axis=0))


def test_words_are_counted_as_a_counter_counts_them(client):
    words = [f"word{number % 97}" for number in range(5000)]
    frequencies = dict(dask.bag.from_sequence(words, npartitions=20).frequencies().compute())
    assert frequencies == {f"word{n}": len(range(n, 5000, 97)) for n in range(97)}


def test_large_data_moves_between_the_workers(client):
    first, second = client.run(os.getpid)
    block = client.submit(numpy.full, 4_000_000, 3, workers=[first])
    copies = [client.submit(lambda data, n: int(data.sum()) + n, block, n, workers=[second]) for n in range(4)]
    assert client.gather(copies) == [12_000_000 + n for n in range(4)]
    assert (block.result() == 3).all()


def test_a_thousand_small_tasks_go_through(client):
    futures = client.map(lambda number: number + 1, range(1000))
    assert sum(client.gather(futures)) == sum(range(1001))


def test_a_killed_worker_costs_no_result_and_is_replaced(client):
    before = client.run(os.getpid)
    futures = client.map(slow_square, range(100))
    wait(futures[:10])
    victim = next(iter(before.values()))
    os.kill(victim, signal.SIGKILL)
    assert client.submit(sum, futures).result(timeout=60) == sum(n * n for n in range(100))
    eventually(lambda: len(pids := client.run(os.getpid, on_error="ignore")) == 2 and victim not in pids.values())
    assert set(client.run(loop_name).values()) == {name_here()}
    assert client.submit(slow_square, 12).result(timeout=60) == 144


def test_an_error_of_a_task_reaches_the_client(client):
    with pytest.raises(ZeroDivisionError):
        client.submit(lambda: 1 / 0).result()
    assert client.submit(slow_square, 3).result() == 9


def test_a_cluster_grows_and_shrinks(local):
    with LocalCluster(**local | {"n_workers": 1}) as cluster, Client(cluster) as client:
        cluster.scale(3)
        client.wait_for_workers(3, timeout=60)
        assert client.gather(client.map(slow_square, range(12))) == [n * n for n in range(12)]
        cluster.scale(1)
        eventually(lambda: len(client.scheduler_info()["workers"]) == 1)
        assert client.submit(slow_square, 5).result() == 25


def test_an_asynchronous_client_in_a_program_of_its_own(local):
    async def main():
        async with LocalCluster(asynchronous=True, **local) as cluster, Client(cluster, asynchronous=True) as client:
            futures = client.map(slow_square, range(20))
            assert await client.gather(futures) == [n * n for n in range(20)]
            return await client.run_on_scheduler(loop_name)

    assert asyncio.run(main()) == name_here()


def test_a_cluster_under_tls(local):
    security = Security.temporary()
    with LocalCluster(**local, security=security) as cluster, Client(cluster) as client:
        assert cluster.scheduler_address.startswith("tls://")
        block = client.submit(numpy.arange, 1_000_000)
        assert client.submit(lambda data: int(data.sum()), block).result() == 499_999_500_000
        assert (block.result() == numpy.arange(1_000_000)).all()


def plain_environment():
    """Removes the hook of these suites, so that the processes choose the loop themselves. They can import this module."""
    kept = {name: value for name, value in os.environ.items() if name != "WAKELOOP_SUITE_LOOP"}
    return kept | {"PYTHONPATH": os.path.dirname(__file__)}


def test_the_example_of_a_local_cluster_runs_on_wakeloop():
    command = [sys.executable, EXAMPLES / "dask_cluster.py"]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    scheduler, *workers, answer = done.stdout.splitlines()
    assert scheduler == f"scheduler: {OURS}"
    assert len(workers) == 2 and all(line.endswith(f": {OURS}") for line in workers)
    assert answer == "of the numbers up to 100000, 77031 takes longest to reach 1: 350 steps"


def test_the_program_in_the_readme_computes(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [program] = [block for block in blocks if "LocalCluster" in block]
    shown = program + "        print(client.run_on_scheduler(lambda: type(asyncio.get_running_loop()).__module__))\n"
    (tmp_path / "program.py").write_text("import asyncio\n" + shown)
    command = [sys.executable, tmp_path / "program.py"]
    done = subprocess.run(command, env=plain_environment(), capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["499500", "wakeloop"]


def test_the_example_of_separate_processes_runs_on_wakeloop(tmp_path):
    script = str(EXAMPLES / "dask_on_wakeloop.py")
    started = []

    def start(*arguments):
        log = open(tmp_path / f"{arguments[0]}.log", "w+")
        process = subprocess.Popen(
            [sys.executable, script, *arguments], env=plain_environment(), cwd=tmp_path, stdout=log, stderr=log
        )
        started.append((process, log))
        return pathlib.Path(log.name)

    try:
        log = start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        eventually(lambda: re.search(r"tcp://127.0.0.1:(\d+)", log.read_text()))
        address = re.search(r"tcp://127.0.0.1:\d+", log.read_text())[0]
        start("worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard")
        with Client(address) as client:
            client.wait_for_workers(2, timeout=60)
            assert client.run_on_scheduler(loop_name) == OURS
            assert set(client.run(loop_name).values()) == {OURS}
            assert client.gather(client.map(slow_square, range(10))) == [n * n for n in range(10)]
    finally:
        for process, log in reversed(started):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            log.close()
