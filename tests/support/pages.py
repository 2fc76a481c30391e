"""The code blocks of the Markdown pages, and a reader who does what a page says.

The words after a fence's language say how the block is tested. Readers do not see them. Without any, Python and shell
blocks run, in the order of the page, in one directory and in processes of their own:

    file=NAME          the reader saves the block in this file; it does not run by itself
    server=PORT        the command serves until the page ends; the page continues when the port answers
    output             what the block before has printed; `...` stands for anything
    output measured    the same, but decimals, and numbers of four digits and more, may be others
    output eventually  the same, but the block before asks a server for a state that comes: it is run until it prints this
    since=3.12         only on this Python and newer
    gil                only on a build of Python that has a GIL
    from=PATH          the block is a part of this file of the repository, which has tests of its own; with file=NAME, all
    not-run: REASON    the block does not run; the rest of the line says why

A comment on the first line names what a page needs: `<!-- needs: uvicorn, redis-server -->`, packages by the names under
which they are imported, programs by their own, and `gil`. Services of this list are started for the page. Port numbers of the page
are replaced by free ones.
"""

import contextlib
import doctest
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tests.support.builds import FREE_THREADED

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/README.md")),
    *sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts),
]

FENCE = re.compile(r"^( *)(`{3,})([^\n`]*)\n(.*?)^\1\2[ ]*$", re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"<!-- needs: (.*?) -->")
#: The ports that pages use; any other number is left as it is.
PORT = re.compile(r"(?<![\d.])(8000|8001|8443|8786|8787|5678|5432|6379|7000|9000)(?!\d)")
#: Numbers that are others in each run: times, and the numbers of threads and processes.
MEASURED = re.compile(r"\d+\.\d+|\d{4,}|(?<=\()\d+(?=\))")
#: Seconds that a command, or the start of a server, may take on a busy machine.
PATIENCE = 240


def name(page):
    return str(page.relative_to(ROOT))


@dataclass
class Block:
    line: int
    language: str
    marks: dict
    reason: str | None
    code: str

    @property
    def is_code(self):
        """False for Sphinx's directives."""
        return not self.language.startswith("{")


def blocks(page):
    text = page.read_text()
    for found in FENCE.finditer(text):
        indent, _, info, code = found.groups()
        info, separator, reason = info.partition("not-run:")
        language, *marks = info.split() or [""]
        code = re.sub(f"^{indent}", "", code, flags=re.MULTILINE)
        marks = dict(mark.partition("=")[::2] for mark in marks)
        line = text.count("\n", 0, found.start()) + 1
        yield Block(line, language, marks, reason.strip() if separator else None, code)


def needs(page):
    found = NEEDS.match(page.read_text())
    return found[1].replace(" ", "").split(",") if found else []


def missing(page):
    """What the page needs and this environment does not have."""
    return [need for need in needs(page) if not is_there(need)]


def is_there(need):
    if need == "gil":
        return not FREE_THREADED
    return shutil.which(need, path=search_path()) or (need.isidentifier() and importlib.util.find_spec(need))


def search_path():
    """The programs of this environment come first, as if the reader had activated it."""
    return os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"], *Services.DIRECTORIES])


def is_output(wanted, got, measured):
    if measured:
        wanted, got = MEASURED.sub("0", wanted), MEASURED.sub("0", got)
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)


class Reader:
    """Does what a page says, block by block, in a directory of its own."""

    def __init__(self, page, directory):
        self.page, self.directory = page, directory
        self.ports, self.servers, self.command, self.said = {}, {}, None, ""
        path = [str(ROOT / "python"), os.environ.get("PYTHONPATH")]
        if importlib.util.find_spec("_wakeloop_pytest") is None:
            # What the wheel puts into site-packages.
            site = self.directory / ".site"
            information = site / "wakeloop-0.dist-info"
            information.mkdir(parents=True)
            (site / "sitecustomize.py").write_text(
                f"import site\nsite.addsitedir({str(ROOT / 'python' / 'startup' / 'platlib')!r})\n"
            )
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            lines = (f"{name} = {module}\n" for name, module in project["entry-points"]["pytest11"].items())
            (information / "entry_points.txt").write_text("[pytest11]\n" + "".join(lines))
            (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wakeloop\nVersion: 0\n")
            path.insert(0, str(site))
        # IPython, gunicorn and others write into the home, and dask into its own folder below the temporary one.
        home = self.directory.with_name(f"{self.directory.name}-home")
        home.mkdir()
        self.environment = {
            **os.environ,
            "HOME": str(home),
            # A server that is ended leaves the socket of its window behind.
            "TMPDIR": str(home),
            "DASK_TEMPORARY_DIRECTORY": str(home),
            "PATH": search_path(),
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PYTHONUNBUFFERED": "1",
            "TERM": "dumb",
            "NO_COLOR": "1",
        }

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        for need in needs(self.page):
            if service := getattr(Services, need.replace("-", "_"), None):
                self.stack.enter_context(service(self))
        return self

    def __exit__(self, *_exception):
        with self.stack:
            for port in list(self.servers):
                self.stop(port)

    def free_port(self, port):
        """The port that stands for this one of the page."""
        if port not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as sock:
                self.ports[port] = str(sock.getsockname()[1])
        return self.ports[port]

    def do(self, block):
        where = f"{name(self.page)}, line {block.line}"
        code = PORT.sub(lambda found: self.free_port(found[1]), block.code)
        match block:
            case _ if "file" in block.marks:
                if "from" in block.marks:
                    assert block.code == (ROOT / block.marks["from"]).read_text(), f"{where}: is not that file"
                file = self.directory / block.marks["file"]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(code)
            case _ if "from" in block.marks:
                assert code.strip() in (ROOT / block.marks["from"]).read_text(), f"{where}: is not in that file"
            case _ if "output" in block.marks:
                deadline = time.monotonic() + PATIENCE
                while not (same := is_output(code, self.said, "measured" in block.marks)):
                    if "eventually" not in block.marks or time.monotonic() > deadline:
                        break
                    time.sleep(0.1)
                    self.said = self.run(self.command, where)
                assert same, f"{where}: printed {self.said!r}"
            case Block(language="sh", marks={"server": port}):
                self.serve(code, port, where)
            case Block(language="sh"):
                self.command = ["bash", "-euo", "pipefail", "-c", code]
                self.said = self.run(self.command, where)
            case Block(language="python"):
                # Warnings of other people's packages are theirs.
                strict = [] if set(needs(self.page)) - {"gil"} else ["-W", "error"]
                self.said = self.run([sys.executable, *strict, "-c", code], where, silent=bool(strict))
            case Block(language="toml"):
                tomllib.loads(code)
            case _:
                raise AssertionError(f"{where}: nothing says how this block is tested")

    def run(self, command, where, silent=False):
        with self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=PATIENCE)
            finally:
                end(process)
        log = "".join(f"\n{self.log(port)}" for port in self.servers)
        assert process.returncode == 0, f"{where}: exit status {process.returncode}\n{out}\n{err}{log}"
        assert not silent or err == "", f"{where}: {err}"
        return out

    def start(self, command, **streams):
        # A session of its own: a reader's terminal signals all of it, and nothing of it outlives the page.
        return subprocess.Popen(
            command, cwd=self.directory, env=self.environment, text=True, stdin=subprocess.DEVNULL, start_new_session=True,
            **streams,
        )  # fmt: skip

    def serve(self, code, port, where):
        """Starts a server; the one before it on this port ends first."""
        self.stop(port)
        with open(self.directory / f".log-{port}", "w") as log:
            process = self.start(["bash", "-euo", "pipefail", "-c", code], stdout=log, stderr=log)
        self.servers[port] = process
        until_it_answers(self.free_port(port), process, lambda: f"{where}: does not serve\n{self.log(port)}")

    def log(self, port):
        return (self.directory / f".log-{port}").read_text()

    def stop(self, port):
        """Presses Ctrl-C: the signal goes to the whole session of the server. How fast it ends is its own affair."""
        if process := self.servers.pop(port, None):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2)
            end(process)
            until_nothing_listens(self.free_port(port))


def end(process):
    """Ends what is left of a process's session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def until_it_answers(port, process, said):
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", int(port)), 1):
            return
        assert process.poll() is None and time.monotonic() < deadline, said()
        time.sleep(0.05)


def until_nothing_listens(port):
    """Killed worker processes hold the socket a little longer than their parent lives. The next server would seem to be up."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port)), 1).close()
        except ConnectionRefusedError:
            return
        except OSError:
            pass  # reset, by a process that ends just now
        assert time.monotonic() < deadline, f"port {port} is still in use"
        time.sleep(0.01)


class Services:
    """Databases on loopback, for pages that need one. If we are root they run as an unprivileged user."""

    #: Where Debian keeps PostgreSQL's programs.
    DIRECTORIES = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"))]

    @staticmethod
    @contextlib.contextmanager
    def postgres(reader):
        with tempfile.TemporaryDirectory() as directory:
            user = unprivileged(directory)
            programs = Path(shutil.which("postgres", path=search_path())).resolve().parent
            data = f"{directory}/data"
            make = [programs / "initdb", "--auth=trust", "--username=postgres", "--no-sync", "-D", data]
            subprocess.run(make, check=True, capture_output=True, cwd="/", **user)
            port = reader.free_port("5432")
            line = [programs / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", directory, "-F"]
            with service(line, port, user):
                yield

    @staticmethod
    @contextlib.contextmanager
    def redis_server(reader):
        port = reader.free_port("6379")
        with service(["redis-server", "--port", port, "--bind", "127.0.0.1", "--save", ""], port, {}):
            yield


@contextlib.contextmanager
def service(command, port, user):
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, cwd="/", start_new_session=True, **streams, **user)
    try:
        until_it_answers(port, process, lambda: f"{command[0]} did not start")
        yield
    finally:
        end(process)


def unprivileged(directory):
    """What makes a process of root's run as somebody else, who owns this directory."""
    if os.geteuid():
        return {}
    account = pwd.getpwnam("nobody")
    os.chown(directory, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}
