"""python -m wakeloop: what each command prints, and how it ends."""

import importlib.metadata
import importlib.util
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tomllib

import pytest

import wakeloop
from tests.support.builds import FREE_THREADED

pytestmark = pytest.mark.native


STARTUP = pathlib.Path(__file__).parents[2] / "python" / "startup" / "platlib"


def command(*arguments, cwd, **environment):
    return python("-m", "wakeloop", *arguments, cwd=cwd, **environment)


def python(*arguments, cwd, stdout=subprocess.PIPE, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
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
    done = command("info", cwd=tmp_path, WAKELOOP_WORKERS="many", WAKELOOP_TLS="none")
    found = facts(done)
    assert done.stderr == ""
    # The first one that is wrong is told: no loop is made before all are right.
    for line in ("engine", "TLS"):
        assert "WAKELOOP_TLS is 'none'; it can be native, sslobject, asyncio or auto" in found[line]
    found = facts(command("info", cwd=tmp_path, WAKELOOP_WORKERS="many", WAKELOOP_SPIN="on"))
    assert "cannot start: WAKELOOP_WORKERS is 'many'" in found["engine"]
    assert found["waits"].startswith("none: WAKELOOP_SPIN is 'on'")


@pytest.fixture
def installed(tmp_path):
    """The environment of a Python whose site-packages directory has what the wheel puts there."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(f"import site\nsite.addsitedir({str(STARTUP)!r})\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), *sys.path])}


def test_info_prints_build_default_loop_and_whether_children_are_reached(tmp_path, installed):
    found = facts(command("info", cwd=tmp_path, **installed))
    assert re.match(r"(release|debug) for \S+ by rustc \d+\.\d+", found["build"])
    assert "asyncio.unix_events._UnixSelectorEventLoop" in found["default"]
    assert found["children"] == "WAKELOOP=1 gives them wakeloop's event loop"
    assert found["GIL"].startswith("off" if FREE_THREADED else "on, as in every ordinary")
    assert "wakeloop.EventLoop" in facts(command("info", cwd=tmp_path, WAKELOOP="1"))["default"]


def test_info_reports_the_loops_of_a_command_and_of_its_children(tmp_path, installed):
    (tmp_path / "script.py").write_text(
        "import asyncio, subprocess, sys\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(asyncio.sleep(0))\n"
        "    asyncio.run(asyncio.sleep(0))\n"
        "    code = 'import asyncio, wakeloop; wakeloop.run(asyncio.sleep(0))'\n"
        "    subprocess.run([sys.executable, '-c', code], check=True)\n"
        "    print('done', *sys.argv[1:])\n"
    )
    theirs, ours = "asyncio.unix_events._UnixSelectorEventLoop", "wakeloop.EventLoop"
    for arguments, parent in [(["script.py"], theirs), (["-m", "script"], theirs), (["run", "script.py"], ours)]:
        done = command("info", *arguments, "--option", cwd=tmp_path, **installed)
        assert done.stdout.startswith("wakeloop ") and done.stdout.endswith("done --option\n"), done
        lines = re.findall(r"^wakeloop: process (\d+), child of (\d+), runs (\S+) \(", done.stderr, re.MULTILINE)
        [(first, _, loop), (_, second, childs_loop)] = lines
        assert (loop, childs_loop, second) == (parent, ours, first)


def test_info_refuses_what_is_neither_a_file_nor_a_command(tmp_path, installed):
    done = command("info", "no-such-command", cwd=tmp_path, **installed)
    assert done.returncode == 2
    assert "no-such-command is neither a file nor an installed command" in done.stderr


CHILDREN = """
import asyncio, multiprocessing, subprocess, sys
from concurrent.futures import ProcessPoolExecutor

def kind():
    loop = asyncio.new_event_loop()
    loop.close()
    return type(loop).__module__

def put(queue):
    queue.put(kind())

if __name__ == "__main__":
    for method in "spawn", "forkserver", "fork":
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=put, args=(queue,))
        process.start()
        print(method, queue.get(timeout=20))
        process.join()
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            print("pool", pool.submit(kind).result(timeout=20))
    code = "import asyncio; print('new', type(asyncio.new_event_loop()).__module__)"
    print(subprocess.run([sys.executable, "-Wignore", "-c", code], capture_output=True, text=True).stdout, end="")
"""


@pytest.mark.timeout(60)
def test_run_reaches_children_that_start_anew(tmp_path, installed):
    (tmp_path / "script.py").write_text(CHILDREN)
    done = command("run", "script.py", cwd=tmp_path, **installed)
    words = ["spawn", "pool", "forkserver", "pool", "fork", "pool", "new"]
    assert done.stdout.splitlines() == [f"{word} wakeloop" for word in words], done.stderr


@pytest.mark.skipif(importlib.util.find_spec("_wakeloop_startup") is not None, reason="wakeloop is installed here")
def test_run_says_that_it_does_not_reach_children_where_the_package_is_not_installed(tmp_path):
    (tmp_path / "script.py").write_text("print('done')")
    done = command("run", "script.py", cwd=tmp_path)
    assert done.stdout == "done\n"
    assert done.stderr.startswith("wakeloop: child processes are not reached: wakeloop_run.pth is in no site-packages")


KIND = "import asyncio; loop = asyncio.new_event_loop(); loop.close(); print(type(loop).__module__)"


@pytest.mark.parametrize("value", [None, "", "0"])
def test_without_the_variable_asyncio_keeps_its_own_loop(tmp_path, installed, value):
    set_to = {} if value is None else {"WAKELOOP": value}
    code = f"import sys; {KIND}; print('wakeloop' in sys.modules)"
    done = python("-c", code, cwd=tmp_path, **installed, **set_to)
    assert done.stdout == "asyncio.unix_events\nFalse\n", done.stderr


@pytest.mark.parametrize(
    "value, options", [(None, ()), ("", ()), ("0", ()), (" 0 ", ()), ("1", ("-E",))], ids=repr
)
def test_an_import_of_wakeloop_leaves_asyncio_its_own_loop(tmp_path, value, options):
    set_to = {} if value is None else {"WAKELOOP": value}
    # An interpreter that ignores its environment is not told of the path there.
    code = f"import sys; sys.path[:] = {sys.path!r}; import wakeloop; {KIND}"
    done = python(*options, "-c", code, cwd=tmp_path, **set_to)
    assert done.stdout == "asyncio.unix_events\n", done.stderr


@pytest.mark.parametrize("first", ["asyncio", "wakeloop", "asyncio.subprocess", "importlib.util; importlib.util.find_spec('asyncio')"])
def test_with_the_variable_asyncio_has_our_loop_whatever_is_imported_first(tmp_path, installed, first):
    done = python("-c", f"import {first}; {KIND}", cwd=tmp_path, **installed, WAKELOOP="1")
    assert (done.stdout, done.stderr) == ("wakeloop\n", "")


def test_a_process_that_does_not_import_asyncio_imports_nothing_of_ours(tmp_path, installed):
    code = "import sys; print([name for name in sys.modules if name.partition('.')[0] in ('asyncio', 'wakeloop')])"
    assert python("-c", code, cwd=tmp_path, **installed, WAKELOOP="1").stdout == "[]\n"


def test_a_process_without_wakeloop_runs_on_asyncio_and_says_so(tmp_path, installed):
    (tmp_path / "site" / "wakeloop.py").write_text("raise ImportError('built for another Python')")
    done = python("-c", KIND, cwd=tmp_path, **installed, WAKELOOP="1")
    assert done.stdout == "asyncio.unix_events\n"
    assert re.fullmatch(
        r"wakeloop: asyncio keeps its own event loop in process \d+: built for another Python\n", done.stderr
    )


def test_the_loop_of_a_program_that_chooses_one_itself_is_used(tmp_path, installed):
    code = f"import asyncio; asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy()); {KIND}"
    done = python("-Wignore", "-c", code, cwd=tmp_path, **installed, WAKELOOP="1")
    assert done.stdout == "asyncio.unix_events\n", done.stderr


def test_run_executes_a_script_with_its_arguments(tmp_path):
    (tmp_path / "script.py").write_text(
        "import asyncio, sys\n"
        "async def main(): print(type(asyncio.get_running_loop()).__module__, *sys.argv[1:])\n"
        "asyncio.run(main())\n"
    )
    done = command("run", "script.py", "one", "--two", cwd=tmp_path)
    assert done.stdout == "wakeloop one --two\n", done.stderr


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
    assert done.stdout == "__main__.py __main__\nwakeloop -m one\n", done.stderr


def test_run_executes_an_installed_command(tmp_path):
    done = command("run", "uvicorn", "--version", cwd=tmp_path)
    assert done.stdout.startswith("Running uvicorn"), done.stderr


def test_run_executes_a_command_whose_function_is_in_a_submodule(tmp_path):
    """As that of granian: its script imports `cli` from the package, which does not import it itself."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "package" / "cli.py").write_text("import sys\ndef main(): print('main', *sys.argv[1:])\n")
    (tmp_path / "package-1.dist-info").mkdir()
    (tmp_path / "package-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: package\nVersion: 1\n")
    (tmp_path / "package-1.dist-info" / "entry_points.txt").write_text("[console_scripts]\nhello = package:cli.main\n")
    done = command("run", "hello", "--world", cwd=tmp_path)
    assert done.stdout == "main --world\n", done.stderr


def test_run_refuses_what_is_neither_a_file_nor_a_command(tmp_path):
    done = command("run", "no-such-command", cwd=tmp_path)
    assert done.returncode == 2
    assert "no-such-command is neither a file nor an installed command" in done.stderr


def test_run_awaits_a_coroutine_function_of_a_module(tmp_path):
    (tmp_path / "app.py").write_text(
        "import asyncio\nasync def main(): print(type(asyncio.get_running_loop()).__module__)\nname = 1\n"
    )
    assert command("run", "app:main", cwd=tmp_path).stdout == "wakeloop\n"
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


def test_without_a_command_the_help_is_printed(tmp_path):
    done = command(cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m wakeloop ") and "\n  info   print" in done.stdout


def test_the_version_is_printed(tmp_path):
    done = command("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"wakeloop {wakeloop.__version__}\n")


def test_info_prints_the_same_facts_as_json(tmp_path):
    done = command("info", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == facts(command("info", cwd=tmp_path))


def test_the_installed_command_is_the_module(tmp_path):
    project = tomllib.loads((STARTUP.parents[2] / "pyproject.toml").read_text())["project"]
    [(name, target)] = project["scripts"].items()
    script = importlib.metadata.EntryPoint(name, target, "console_scripts")
    assert script.load() is importlib.import_module("wakeloop.__main__").main
    # As the script of pip calls it, from its own directory.
    code = f"import sys; sys.path[0] = '/'; sys.argv[0] = '/bin/{name}'\n"
    code += f"from {script.module} import main; sys.exit(main())"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith(f"usage: {name} [-h]")
    (tmp_path / "beside.py").write_text("async def main(): print('ran')\n")
    for arguments in (["run", "beside:main"], ["run", "-m", "beside"]):
        assert python("-c", code, *arguments, cwd=tmp_path).returncode == 0


@pytest.fixture
def taken():
    """The port of a socket that listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run -m nomod", "wakeloop: No module named nomod"),
        (
            "run -m email",
            "wakeloop: No module named email.__main__; 'email' is a package and cannot be directly executed",
        ),
        ("run nomod:main", "wakeloop: No module named 'nomod'"),
        ("run json:main", "wakeloop: module 'json' has no attribute 'main'"),
        ("run concurrent.futures:main", "wakeloop: module 'concurrent.futures' has no attribute 'main'"),
        ("run :main", "python -m wakeloop run: error: :main is neither a file nor an installed command"),
        ("run .json:main", "python -m wakeloop run: error: .json:main is neither a file nor an installed command"),
        ("run empty", "wakeloop: can't find '__main__' module in 'empty'"),
        ("echo --port 99999", "python -m wakeloop echo: error: the port must be between 0 and 65535"),
        (
            "echo --port TAKEN",
            "wakeloop: error while attempting to bind on address ('127.0.0.1', TAKEN): address already in use",
        ),
        (
            "echo --host 203.0.113.1",
            "wakeloop: error while attempting to bind on address ('203.0.113.1', 0): cannot assign requested address",
        ),
        (
            f"echo --host {'x' * 64}",
            "wakeloop: 'idna' codec can't encode characters in position 0-63: label too long"
            if sys.version_info >= (3, 13)
            else "wakeloop: encoding with 'idna' codec failed (UnicodeError: label too long)",
        ),
        ("info ./data", "wakeloop: cannot run ./data: Exec format error"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line(arguments, said, tmp_path, taken, installed):
    (tmp_path / "empty").mkdir()
    (tmp_path / "data").write_text("no program")
    (tmp_path / "data").chmod(0o755)
    done = command(*arguments.replace("TAKEN", str(taken)).split(), cwd=tmp_path, **installed)
    assert done.returncode in (1, 2)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("usage: ")]
    assert lines == [said.replace("TAKEN", str(taken))]


@pytest.mark.parametrize("code", ["import nomod", "import json; json.nope", "raise ImportError"])
def test_an_error_of_the_program_has_its_traceback(code, tmp_path, installed):
    (tmp_path / "wrong.py").write_text(f"{code}\nasync def main(): pass\n")
    for arguments in (["-m", "wrong"], ["wrong.py"], ["wrong:main"]):
        done = command("run", *arguments, cwd=tmp_path, **installed)
        assert done.returncode == 1 and done.stderr.startswith("Traceback ") and "wrong.py" in done.stderr


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["demo"], ["echo"], ["--help"]])
def test_a_reader_that_has_gone_is_no_error_of_the_command(arguments, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as output:
        done = command(*arguments, cwd=tmp_path, stdout=output)
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["demo"], ["echo"], ["--help"], ["--version"]])
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_an_output_that_cannot_be_written_is_told_in_one_line(arguments, tmp_path):
    with open("/dev/full", "wb") as output:
        done = command(*arguments, cwd=tmp_path, stdout=output, PYTHONUNBUFFERED="")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("wakeloop: No space left on device")


@pytest.mark.parametrize("arguments", [["info"], ["info", "--json"], ["--version"], ["run", "--help"]])
def test_a_command_without_a_standard_output_is_no_error(arguments, tmp_path):
    line = [sys.executable, "-m", "wakeloop", *arguments]
    done = python("-c", f"import os; os.close(1); os.execv({line[0]!r}, {line!r})", cwd=tmp_path)
    assert done.returncode == 0 and "Traceback" not in done.stderr
