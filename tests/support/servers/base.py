"""What all private servers share: a folder, a port, and a process that dies with the tests."""

import abc
import contextlib
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Self

from support.servers.certificates import Certificates
from support.waiting import HANG_TIMEOUT, wait_until

LOOPBACK = "127.0.0.1"

REACHABLE = 0o711
"""The mode of a folder that holds a folder of the other user that a server may run as."""


class MissingServerError(Exception):
    """A server's binaries are not on this machine; the text says what to install."""


def find_binary(name: str, packages: str, *, folders: Sequence[Path] = ()) -> str:
    """The path of a server's binary, even if only root has the binary's folder on the PATH.

    Args:
        name: the binary's name.
        packages: the packages to install if it is missing.
        folders: where it may be if it is not on the PATH, best first.

    Raises:
        MissingServerError: the binary is not on this machine.
    """
    path = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
    found = shutil.which(name, path=os.pathsep.join([path, *map(str, folders)]))
    if found is None:
        raise MissingServerError(f"{name} is missing: install {packages}")
    return found


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port within this context, even while nobody listens on it.

    The port is low enough for a Redis Cluster's server, which also uses the port 10,000 above its
    own.
    """
    with _bound() as holder:
        # Set after binding, this option lets a server that sets it, too, bind to the port, while
        # the kernel gives the port to nobody who asks for any free one.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield holder.getsockname()[1]


def _bound() -> socket.socket:
    while True:
        holder = socket.socket()
        try:
            holder.bind((LOOPBACK, 20_000 + secrets.randbelow(10_000)))
        except OSError:
            holder.close()
        else:
            return holder


class Block(abc.ABC):
    """A context manager for something that runs within the block, and leaves nothing behind."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    @abc.abstractmethod
    def __exit__(self, *exception: object) -> None: ...

    @abc.abstractmethod
    def start(self) -> None:
        """Start; a failure may leave it half started."""


def run_tool(command: Sequence[str], *, told: str = "") -> str:
    """Run one of a server's tools to its end; return its output.

    Args:
        command: the tool and its arguments.
        told: the tool's standard input.

    Raises:
        AssertionError: the tool failed; the text has its output.
    """
    done = subprocess.run(
        command,
        cwd="/",
        input=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command} fails:\n{done.stdout}"
    return done.stdout


class Server(Block):
    """A private server: its folder, its port and, between start and stop, its process.

    The port belongs to the server during the whole block, whether the server runs or not.

    As a context manager it starts on entering and leaves nothing behind. Start it in the main
    thread: the kernel ties its life to the thread that started it.

    Args:
        home: the folder under which this one makes its own, and keeps a template of fresh data.
        flags: appended to the server's command line.
        certificates: for TLS, which clients may then use; None: no TLS.
    """

    kind: ClassVar[str]

    START_TIME: ClassVar[int] = 120

    def __init__(self, home: Path, *flags: str, certificates: Certificates | None = None) -> None:
        self.flags = flags
        self.certificates = certificates
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.kind}-", dir=home))
        self.folder.chmod(REACHABLE)
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self._reserved = contextlib.ExitStack()
        self.port = self._reserve_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._fill(home)

    @classmethod
    @abc.abstractmethod
    def _initialise(cls, data: Path) -> None:
        """Make the template of a data folder, which is copied for every instance."""

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """The command line of a server in the foreground, logging to its standard error."""

    @abc.abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers."""

    @classmethod
    def _privileges(cls) -> list[str]:
        """The options of setpriv that set the server's user and privileges."""
        return []

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    def __exit__(self, *_: object) -> None:
        # The server is killed, not shut down, because nobody will read its data again.
        self.kill()
        shutil.rmtree(self.folder)
        self._reserved.close()

    @property
    def pid(self) -> int:
        """The server's process while it runs."""
        assert self._process is not None, f"{self.kind} does not run"
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; it need not answer."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and wait for an answer.

        Raises:
            AssertionError: the server ended, or did not answer in time; the text has its output.
        """
        told = self.log.stat().st_size if self.log.exists() else 0
        if not self._launch():
            said = self.log.read_bytes()[told:].decode(errors="replace")
            limit = f"or not within {self.START_TIME} s"
            raise AssertionError(f"{self.kind} does not start, {limit}:\n{said}")

    def stop(self) -> None:
        """Shut down cleanly, even if clients are connected, and wait for the end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(HANG_TIMEOUT)

    def kill(self) -> None:
        """Kill with signal 9 and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within the block, the server's process is stopped: it exists, but does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Stop if it runs, and start again on the same port and data."""
        self.stop()
        self.start()

    def _reserve_port(self) -> int:
        """Reserve a port for this server."""
        return self._reserved.enter_context(reserved_port())

    def _launch(self) -> bool:
        """Start the process; whether it lived to answer."""
        # A session of its own: an interrupt at the terminal is for the tests, which stop it.
        prefix = [find_binary("setpriv", "util-linux"), "--pdeathsig", "KILL", *self._privileges()]
        with self.log.open("ab") as log:
            process = self._process = subprocess.Popen(
                [*prefix, "--", *self._command()],
                cwd=self.folder,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(
                lambda: process.poll() is not None or self._answers(),
                timeout=self.START_TIME,
                what="an answer",
            )
        except AssertionError:
            self.kill()
        except BaseException:
            self.kill()
            raise
        return self.running

    def _fill(self, home: Path) -> None:
        """Make this server's data, by cp, which is several times faster than shutil."""
        run_tool(["cp", "-a", str(self._template(home)), str(self.data)])

    @classmethod
    def _template(cls, home: Path) -> Path:
        template = home / f"{cls.kind}-template"
        if not template.exists():
            with tempfile.TemporaryDirectory(dir=home) as unfinished:
                Path(unfinished).chmod(REACHABLE)
                cls._initialise(Path(unfinished, "data"))
                Path(unfinished, "data").rename(template)
        return template


class SqlServer(Server):
    """A server on which each test has a database of its own."""

    def __init__(self, home: Path, *flags: str, certificates: Certificates | None = None) -> None:
        super().__init__(home, *flags, certificates=certificates)
        self._numbers = itertools.count(1)

    @abc.abstractmethod
    def url(self, database: str = "") -> str:
        """The url of a database on this server, for its administrator."""

    @abc.abstractmethod
    def query(self, sql: str, *, database: str = "") -> list[tuple[object, ...]]:
        """Run one statement as the administrator, on a new connection; return its rows.

        Args:
            sql: the statement.
            database: the database; default: none in particular.
        """

    @abc.abstractmethod
    def create_user(
        self, name: str, password: str, *, proof: Literal["", "tls", "certificate"] = ""
    ) -> None:
        """Create a user with all rights, who logs in by password.

        Args:
            name: the user's name.
            password: the user's.
            proof: what the server requires besides: a connection by TLS, or a client's certificate.
        """

    @abc.abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database; fail if a test has left a transaction open on it."""

    def create_database(self) -> str:
        """Create an empty database and return its name."""
        name = self._new_name()
        self.query(f"CREATE DATABASE {name}")
        return name

    def _new_name(self) -> str:
        return f"psched_{next(self._numbers)}"


@dataclass(frozen=True)
class Database:
    """A fresh, empty database: what the fixture ``database`` gives to a test."""

    kind: str
    url: str
    server: SqlServer | None
