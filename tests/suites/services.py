"""Starts the servers that suites talk to: real ones from the distribution's packages, on loopback and in a temporary
directory. If we are root they run as an unprivileged user, because PostgreSQL refuses anything else.
"""

import contextlib
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import time

from .environment import run

#: The user that runs the servers when we are root.
USER = "nobody"


class Missing(Exception):
    """A server program is not installed."""


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def unprivileged():
    """Returns the Popen arguments that drop root's privileges."""
    if os.geteuid():
        return {}
    account = pwd.getpwnam(USER)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


@contextlib.contextmanager
def serving(command, port, log_path):
    """Runs the server of `command`, and continues when its port answers. Its output goes into `log_path`."""
    with open(log_path, "wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **unprivileged())
    try:
        deadline = time.monotonic() + 20
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise Missing(f"{command[0]} did not start: {log_path.read_text()[-500:]}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def certificates(made):
    """Creates the files that redis-py's tests expect in a checkout: an authority, and one certificate for both ends."""
    files = made.tests / "dockers" / "standalone" / "tls"
    if not files.exists():
        files.mkdir(parents=True)
        run(made.python, "-m", "trustme", "--quiet", "--key-type", "RSA", "--dir", files)
        for name, copies in {"client.pem": ["ca.crt"], "server.pem": ["redis.crt", "client.crt"]}.items():
            for copy in copies:
                shutil.copy(files / name, files / copy)
        for copy in ("redis.key", "client.key"):
            shutil.copy(files / "server.key", files / copy)
    return files


@contextlib.contextmanager
def redis(directory, made):
    """Runs a Redis without persistence, with a plain and a TLS port. Gives pytest's arguments for it."""
    program = shutil.which("redis-server")
    if program is None:
        raise Missing("redis-server is not installed: apt-get install redis-server")
    port, tls_port = free_port(), free_port()
    tls = directory / "tls"
    shutil.copytree(certificates(made), tls)
    if not os.geteuid():
        for path in (tls, *tls.iterdir()):
            shutil.chown(path, USER)
    options = {"port": port, "bind": "127.0.0.1", "save": "", "appendonly": "no", "dir": "/tmp", "daemonize": "no"}
    # Tests of the DEBUG, MODULE and CONFIG commands are part of the suite.
    options |= {"enable-debug-command": "local", "enable-module-command": "local", "enable-protected-configs": "local"}
    options |= {"tls-port": tls_port, "tls-auth-clients": "optional", "tls-ca-cert-file": tls / "ca.crt"}
    options |= {"tls-cert-file": tls / "redis.crt", "tls-key-file": tls / "redis.key"}
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    with serving([program, *arguments], port, directory / "redis.log"):
        urls = {"--redis-url": f"redis://127.0.0.1:{port}/0", "--redis-ssl-url": f"rediss://localhost:{tls_port}"}
        yield [f"{name}={url}" for name, url in urls.items()], {}


@contextlib.contextmanager
def mariadb(directory, made):
    """Runs a MariaDB with the certificate from aiomysql's tests, on a port and on a socket."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    program, install = (shutil.which(name, path=path) for name in ("mariadbd", "mariadb-install-db"))
    if program is None or install is None:
        raise Missing("MariaDB's server is not installed: apt-get install mariadb-server")
    tls = directory / "tls"
    shutil.copytree(made.tests / "tests" / "ssl_resources" / "ssl", tls)
    home, port, password = directory / "mariadb", free_port(), "suites"
    home.mkdir()
    orders = home / "orders.sql"
    accounts = "root@localhost", "root@127.0.0.1"
    made_so = "CREATE OR REPLACE USER {0} IDENTIFIED BY '{1}';\nGRANT ALL ON *.* TO {0} WITH GRANT OPTION;\n"
    orders.write_text("".join(made_so.format(account, password) for account in accounts))
    if not os.geteuid():
        for path in (tls, *tls.iterdir(), home, orders):
            shutil.chown(path, USER)
    data = ["--no-defaults", f"--datadir={home / 'data'}"]
    run(install, *data, "--skip-test-db", **unprivileged())
    options = {"port": port, "bind-address": "127.0.0.1", "socket": home / "socket", "pid-file": home / "pid"}
    options |= {"ssl-ca": tls / "ca.pem", "ssl-cert": tls / "server-cert.pem", "ssl-key": tls / "server-key.pem"}
    options |= {"init-file": orders, "local-infile": 1, "innodb-flush-log-at-trx-commit": 0}
    command = [program, *data, "--skip-name-resolve", *(f"--{name}={value}" for name, value in options.items())]
    with serving(command, port, directory / "mariadb.log"):
        addresses = [f"--mysql-address=tcp=127.0.0.1:{port}", f"--mysql-unix-socket=unix={home / 'socket'}"]
        yield addresses, {"MYSQL_ROOT_PASSWORD": password}


#: Tests make and end their own clusters with these programs. If we are root, each runs as USER, after USER was made
#: the owner of what root's process has written into the cluster's directory.
WRAPPER = """#!/bin/sh
program={program}
next=
for word; do
    [ "$next" = D ] && directory=$word
    case $word in
        -D) next=D ;;
        -D?*) directory=${{word#-D}}; next= ;;
        *) next= ;;
    esac
done
[ -n "$directory" ] && [ -d "$directory" ] && chown -R {user}: "$directory"
exec setpriv --reuid={user} --regid="$(id -g {user})" --clear-groups -- "$program" "$@"
"""


@contextlib.contextmanager
def postgresql(directory, made):
    """Provides PostgreSQL's programs, for tests that make clusters. Ends the servers that they leave behind."""
    program = shutil.which("postgres")
    candidates = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    if candidates:
        program = candidates[-1] / "postgres"
    if program is None:
        raise Missing("PostgreSQL's server is not installed: apt-get install postgresql")
    programs = pathlib.Path(program).resolve().parent
    if not os.geteuid():
        wrappers = directory / "postgresql"
        wrappers.mkdir()
        for path in programs.iterdir():
            (wrappers / path.name).write_text(WRAPPER.format(program=path, user=USER))
            (wrappers / path.name).chmod(0o755)
        directory.chmod(0o1777)  # for the servers' sockets
        programs = wrappers
    try:
        yield [], {"PGINSTALLATION": str(programs)}
    finally:
        for file in directory.rglob("postmaster.pid"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                os.kill(int(file.read_text().split()[0]), signal.SIGQUIT)


@contextlib.contextmanager
def none(directory, made):
    yield [], {}


SERVICES = {"": none, "redis": redis, "mariadb": mariadb, "postgresql": postgresql}
