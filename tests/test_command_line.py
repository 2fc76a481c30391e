"""python -m wakeloop: what each command prints, and how it ends."""

import os
import subprocess
import sys

import pytest

import wakeloop

pytestmark = pytest.mark.native


def command(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "wakeloop", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def facts(done):
    assert done.returncode == 0, done.stderr
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())


def test_info_prints_versions_workers_kernel_and_tls_engine(tmp_path):
    found = facts(command("info", cwd=tmp_path, WAKELOOP_WORKERS="3", WAKELOOP_TLS=""))
    assert found["wakeloop"] == wakeloop.__version__
    assert found["Python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert "up to 3 worker threads" in found["engine"]
    assert "epoll" in found["kernel"] or "kqueue" in found["kernel"]
    assert found["TLS"].startswith(("native, OpenSSL", "sslobject, ", "asyncio, "))
    assert "system" in found


def test_info_reports_settings_that_cannot_be_used(tmp_path):
    found = facts(command("info", cwd=tmp_path, WAKELOOP_WORKERS="many", WAKELOOP_TLS="none"))
    assert "cannot start: WAKELOOP_WORKERS must be a number" in found["engine"]
    assert found["TLS"].startswith("none: WAKELOOP_TLS is 'none'")


def test_run_executes_a_script_with_its_arguments(tmp_path):
    (tmp_path / "script.py").write_text(
        "import asyncio, sys\n"
        "async def main(): print(type(asyncio.get_running_loop()).__module__, *sys.argv[1:])\n"
        "asyncio.run(main())\n"
    )
    done = command("run", "script.py", "one", "--two", cwd=tmp_path)
    assert done.stdout == "wakeloop.loop one --two\n", done.stderr


def test_run_executes_a_script_that_imports_from_its_own_directory(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "beside.py").write_text("name = 'beside'")
    (tmp_path / "above.py").write_text("")
    (tmp_path / "app" / "main.py").write_text(
        "import beside\n"
        "try:\n"
        "    import above\n"
        "except ImportError:\n"
        "    print(beside.name)\n"
    )
    assert command("run", "app/main.py", cwd=tmp_path).stdout == "beside\n"
    assert "No module named 'beside'" in command("run", "app/main.py", cwd=tmp_path, PYTHONSAFEPATH="1").stderr


def test_run_executes_a_module_with_its_arguments(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__main__.py").write_text(
        "import asyncio, os, sys\n"
        "async def main(): print(type(asyncio.get_running_loop()).__module__, *sys.argv[1:])\n"
        "print(os.path.basename(sys.argv[0]), __name__)\n"
        "asyncio.run(main())\n"
    )
    done = command("run", "-m", "package", "-m", "one", cwd=tmp_path)
    assert done.stdout == "__main__.py __main__\nwakeloop.loop -m one\n", done.stderr


def test_run_executes_an_installed_command(tmp_path):
    done = command("run", "uvicorn", "--version", cwd=tmp_path)
    assert done.stdout.startswith("Running uvicorn"), done.stderr


def test_run_refuses_what_is_neither_a_file_nor_a_command(tmp_path):
    done = command("run", "no-such-command", cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such-command is neither a file nor an installed command" in done.stderr


def test_run_awaits_a_coroutine_function_of_a_module(tmp_path):
    (tmp_path / "app.py").write_text(
        "import asyncio\nasync def main(): print(type(asyncio.get_running_loop()).__module__)\nname = 1\n"
    )
    assert command("run", "app:main", cwd=tmp_path).stdout == "wakeloop.loop\n"
    done = command("run", "app:name", cwd=tmp_path)
    assert done.returncode == 2
    assert "app:name is not a coroutine function" in done.stderr


def test_demo_shows_the_scheduling_of_two_tasks(tmp_path):
    done = command("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "task A" in done.stdout and "task B" in done.stdout


@pytest.mark.parametrize("name", ["bench", "load"])
def test_benchmarks_are_no_commands_of_the_package(tmp_path, name):
    assert command(name, cwd=tmp_path).returncode == 2
