"""Private servers: real binaries, on loopback, in folders that are thrown away.

A server is one process that belongs to the test process which started it. It needs no handler,
no atexit and no signal to go with it: the kernel kills it when its parent dies, however that
comes about. Its folder is in the session's home (see support.home), and goes with that.
"""

import abc
import contextlib
import itertools
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import pymysql

from support.waiting import wait_until

LOOPBACK = "127.0.0.1"


class MissingServerError(Exception):
    """A server's binaries are not on this machine; the text says what to install."""


# --- what all servers share ----------------------------------------------------------


def find_binary(name: str, packages: str) -> str:
    """The path of a server's binary, also where only root has its folder on the PATH."""
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingServerError(f"{name} is missing: install {packages}")
    return found


def free_port() -> int:
    """A port that nobody uses, from below the range that outgoing connections are given.

    Out of that range, another process could be given the port while its server is down, and a
    client that keeps knocking on a closed port could come to be connected to itself.
    """
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


class Server(abc.ABC):
    """A private server: its folder, its port and, between start and stop, its process.

    As a context manager it starts on entering and leaves nothing behind. Start it in the main
    thread: the kernel ties its life to the thread that started it.

    Args:
        home: the folder under which this one makes its own, and keeps a template of fresh data.
        flags: for the server's command line, after ours.
    """

    kind: ClassVar[str]

    STARTS: ClassVar[int] = 3

    def __init__(self, home: Path, *flags: str) -> None:
        self.flags = flags
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=home))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copytree(self._template(home), self.data)

    @classmethod
    @abc.abstractmethod
    def _initialise(cls, data: Path) -> None:
        """Make a data folder as the server wants it; it is copied for every instance."""

    @abc.abstractmethod
    def _command(self, port: int) -> list[str]:
        """The command line of a server in the foreground, logging to its standard error."""

    @abc.abstractmethod
    def _answers(self, port: int) -> bool:
        """Whether *this* server answers: another one may have been quicker to take the port."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        # Killed, not shut down: nobody will read its data again.
        self.kill()
        shutil.rmtree(self.folder)

    @property
    def pid(self) -> int:
        """The server's process while it runs."""
        assert self._process is not None, f"{self.kind} does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there; it need not answer."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, the first time on a free port, then always on the same, and wait for an answer."""
        for _ in range(self.STARTS):
            port = self.port or free_port()
            if self._launch(port):
                self.port = port
                return
        raise AssertionError(f"{self.kind} does not start:\n{self.log.read_text()}")

    def stop(self) -> None:
        """Shut down cleanly and wait for the end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout=30)

    def kill(self) -> None:
        """Kill with signal 9 and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop if it runs, and start again on the same port and data."""
        self.stop()
        self.start()

    def _launch(self, port: int) -> bool:
        """Start the process once; whether it lived to answer. The port may have been taken."""
        # A session of its own: an interrupt at the terminal is for the tests, which stop it.
        leash = [find_binary("setpriv", "util-linux"), "--pdeathsig", "KILL", "--"]
        with self.log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [*leash, *self._command(port)],
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(
                lambda: process.poll() is not None or self._answers(port),
                timeout=60,
                what=f"an answer of {self.kind}; its log is {self.log}",
            )
        except BaseException:
            self.kill()
            raise
        return self.running

    @classmethod
    def _template(cls, home: Path) -> Path:
        template = home / f"{cls.kind}-template"
        if not template.exists():
            with tempfile.TemporaryDirectory(dir=home) as unfinished:
                cls._initialise(Path(unfinished, "data"))
                Path(unfinished, "data").rename(template)
        return template


# --- MariaDB -------------------------------------------------------------------------


class MariaDB(Server):
    """A MariaDB server, durable as it comes, but small; user root, no password."""

    kind = "mariadb"

    PACKAGES = "mariadb-server-core and mariadb-client-core"

    SMALL = (
        "--innodb-buffer-pool-size=24M",
        "--innodb-log-file-size=4M",
        "--key-buffer-size=1M",
        "--aria-pagecache-buffer-size=1M",
    )

    def __init__(self, home: Path, *flags: str) -> None:
        super().__init__(home, *flags)
        self._numbers = itertools.count(1)

    def url(self, database: str = "") -> str:
        """What psched is told to reach a database on this server."""
        return f"mysql+pymysql://root@{LOOPBACK}:{self.port}/{database}"

    def create_database(self) -> str:
        """Create an empty database and return its name."""
        name = f"psched_{next(self._numbers)}"
        self.query(f"CREATE DATABASE {name}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database; fails where a test has left a transaction open on it."""
        self.query(f"DROP DATABASE {name}")

    def query(self, sql: str, *, port: int | None = None) -> list[tuple[object, ...]]:
        """Run one statement on a connection of its own and return its rows."""
        with (
            pymysql.connect(
                host=LOOPBACK,
                port=port or self.port,
                user="root",
                autocommit=True,
                connect_timeout=5,
                read_timeout=30,
                write_timeout=30,
                init_command="SET lock_wait_timeout = 10",
            ) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(sql)
            return list(cursor.fetchall())

    @classmethod
    def _initialise(cls, data: Path) -> None:
        for helper in "mariadbd", "my_print_defaults":  # without which installing fails obscurely
            find_binary(helper, cls.PACKAGES)
        install = subprocess.run(
            [
                find_binary("mariadb-install-db", cls.PACKAGES),
                "--no-defaults",
                *cls._as_ourselves(),
                f"--datadir={data}",
                # A starting server deletes the temporary tables of others that it finds.
                f"--tmpdir={data.parent}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                "--skip-name-resolve",
                "--force",  # a host that cannot look up its own name will do
                *cls.SMALL,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert install.returncode == 0, f"mariadb-install-db fails:\n{install.stdout}"

    def _command(self, port: int) -> list[str]:
        return [
            find_binary("mariadbd", self.PACKAGES),
            "--no-defaults",
            *self._as_ourselves(),
            f"--datadir={self.data}",
            # Relative to the data: an absolute path may be longer than a socket's can be.
            "--socket=mariadb.sock",
            f"--pid-file={self.folder / 'pid'}",
            f"--tmpdir={self.folder}",
            f"--bind-address={LOOPBACK}",
            f"--port={port}",
            "--skip-name-resolve",
            "--skip-ssl",  # MariaDB 11 makes itself a certificate at every start, slowly
            # Kernel resources for asynchronous I/O are few and shared with all other servers.
            "--skip-innodb-use-native-aio",
            *self.SMALL,
            *self.flags,
        ]

    def _answers(self, port: int) -> bool:
        try:
            [[data]] = self.query("SELECT @@datadir", port=port)
        except pymysql.err.OperationalError:
            return False
        return Path(str(data)) == self.data

    @staticmethod
    def _as_ourselves() -> list[str]:
        """MariaDB runs as root only where it is told so in words."""
        return ["--user=root"] if os.geteuid() == 0 else []


# --- one database for one test -------------------------------------------------------


@dataclass(frozen=True)
class Database:
    """A fresh, empty database: what the fixture ``database`` gives to a test."""

    kind: str
    url: str
    server: MariaDB | None
