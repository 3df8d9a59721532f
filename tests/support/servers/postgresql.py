"""Private PostgreSQL servers, and replicas of them."""

import contextlib
import functools
import os
import pwd
import shutil
import signal
from pathlib import Path
from typing import Literal, Self

import psycopg

from support.servers.base import LOOPBACK, SqlServer, find_binary, run_tool
from support.servers.certificates import Certificates
from support.session_folders import drop_shared_memory
from support.waiting import wait_for_end, wait_until

ADMINISTRATOR = "postgres"

ACCESS = f"""\
host     all          {ADMINISTRATOR}  all  trust
host     replication  {ADMINISTRATOR}  all  trust
hostssl  all          +certificate     all  scram-sha-256 clientcert=verify-ca
host     all          +certificate     all  reject
hostssl  all          +tls             all  scram-sha-256
host     all          +tls             all  reject
host     all          all              all  scram-sha-256
"""
"""Who may log in, and how; see `PostgreSQL.create_user`."""


class PostgreSQL(SqlServer):
    """A PostgreSQL server, small; user postgres, no password.

    It does not sync to the disk. Committed data survive a kill of all its processes, as tests do
    it, but not a crash of the machine.

    Its process is the postmaster, with one child for each connection, and others. When the tests
    are killed, the kernel kills the postmaster, and its children notice and exit.

    Args:
        home: as for all servers.
        flags: appended to the server's command line: ``--max-connections=10``.
        certificates: as for all servers.
        primary: a running server; this one becomes its replica. None: this one has data of its own.
    """

    kind = "postgresql"

    PACKAGES = "postgresql"

    SMALL = (
        "--shared-buffers=16MB",
        # By default the shared memory is in /dev/shm, where it survives a server that is killed and
        # not started again.
        "--dynamic-shared-memory-type=mmap",
    )

    def __init__(
        self,
        home: Path,
        *flags: str,
        certificates: Certificates | None = None,
        primary: Self | None = None,
    ) -> None:
        self._home = home
        self._primary = primary
        super().__init__(home, *flags, certificates=certificates)

    def __exit__(self, *exception: object) -> None:
        self.kill()
        drop_shared_memory(self.data)
        super().__exit__(*exception)

    def url(self, database: str = "") -> str:
        """The url of a database on this server, for its administrator."""
        return f"postgresql+psycopg://{ADMINISTRATOR}@{LOOPBACK}:{self.port}/{database}"

    def create_user(
        self, name: str, password: str, *, proof: Literal["", "tls", "certificate"] = ""
    ) -> None:
        """Create a user with all rights, who logs in by password."""
        self.query(f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{password}'")
        if proof:
            self.query(f"GRANT {proof} TO {name}")

    def create_database(self, *, template: str = "template1") -> str:
        """Create a database with what is in another one; return its name."""
        name = self._new_name()
        self.query(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database; fail if a test has left a transaction open on it."""
        # A killed client may not be gone yet; clients that are merely connected are disconnected.
        transactions = (
            f"SELECT 1 FROM pg_stat_activity WHERE datname = '{name}'"  # noqa: S608
            " AND backend_type = 'client backend' AND xact_start IS NOT NULL"
        )
        wait_until(lambda: not self.query(transactions), what=f"the transactions on {name} to end")
        self.query(f"DROP DATABASE {name} WITH (FORCE)")

    def query(self, sql: str, *, database: str = "") -> list[tuple[object, ...]]:
        """Run one statement as the administrator, on a new connection; return its rows."""
        with psycopg.connect(
            host=LOOPBACK,
            port=self.port,
            user=ADMINISTRATOR,
            dbname=database or "postgres",
            autocommit=True,
            connect_timeout=60,
            options="-c statement_timeout=120s",
            sslmode="disable",
        ) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def stop(self) -> None:
        """Shut down cleanly, even if clients are connected, and wait for the end."""
        if self.running:
            # Signal 15 would make the server wait until its last client has left.
            self._process.send_signal(signal.SIGINT)
        super().stop()

    def kill(self) -> None:
        """Kill all of the server's processes with signal 9 and wait for their end."""
        children = self._stop_forking() if self.running else []
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        super().kill()
        for child in children:
            wait_for_end(child)

    # --- replicas --------------------------------------------------------------------

    def make_replica(self, *flags: str, certificates: Certificates | None = None) -> Self:
        """A replica of this server, not yet started.

        It lags by some milliseconds. If the primary was started with the flag
        ``--synchronous-standby-names=*``, no commit succeeds before a replica has it. So start the
        replica before anything is written.
        """
        return type(self)(self._home, *flags, certificates=certificates, primary=self)

    def promote(self) -> None:
        """Promote this replica to a primary, and wait until it is one."""
        assert self.query("SELECT pg_promote()") == [(True,)]

    # --- how it is made --------------------------------------------------------------

    @classmethod
    def _initialise(cls, data: Path) -> None:
        cls._make_folder(data)
        cls._run(
            "initdb",
            f"--pgdata={data}",
            f"--username={ADMINISTRATOR}",
            "--encoding=UTF8",
            "--locale=C",
            "--auth=trust",
            "--no-sync",
            "--wal-segsize=1",  # megabytes; two at least
        )
        (data / "pg_hba.conf").write_text(ACCESS)
        roles = "CREATE ROLE tls\nCREATE ROLE certificate\n"
        cls._run("postgres", "--single", f"-D{data}", "postgres", told=roles)

    def _fill(self, home: Path) -> None:
        if self._primary is None:
            super()._fill(home)
        else:
            self._make_folder(self.data)
            self._run(
                "pg_basebackup",
                f"--pgdata={self.data}",
                f"--host={LOOPBACK}",
                f"--port={self._primary.port}",
                f"--username={ADMINISTRATOR}",
                "--write-recovery-conf",
                "--checkpoint=fast",
                "--no-sync",
            )
        if self.certificates is not None:
            # PostgreSQL reads a key only if it owns the file.
            key = shutil.copy(self.certificates.key, self.data / "server.key")
            self._give_away(Path(key))

    def _command(self) -> list[str]:
        return [
            self._binary("postgres"),
            "-D",
            str(self.data),
            f"--port={self.port}",
            f"--listen-addresses={LOOPBACK}",
            "--unix-socket-directories=",
            "--fsync=off",
            *self.SMALL,
            *self._tls(),
            *self.flags,
        ]

    def _tls(self) -> list[str]:
        if self.certificates is None:
            return []
        return [
            "--ssl=on",
            f"--ssl-ca-file={self.certificates.authority}",
            f"--ssl-cert-file={self.certificates.certificate}",
            f"--ssl-key-file={self.data / 'server.key'}",
        ]

    def _answers(self) -> bool:
        try:
            return bool(self.query("SELECT 1"))
        except psycopg.OperationalError:
            return False

    def _stop_forking(self) -> list[int]:
        """Suspend the postmaster, so that it forks no more; return the children that it has."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except FileNotFoundError:
            return []
        return [int(pid) for pid in listed.split()]

    # --- as whom it runs -------------------------------------------------------------

    @classmethod
    def _privileges(cls) -> list[str]:
        """PostgreSQL refuses to run as root."""
        if os.geteuid() != 0:
            return []
        user = cls._user()
        ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"]
        return [*ids, "--clear-groups", "--inh-caps=-all"]

    @staticmethod
    @functools.cache
    def _user() -> pwd.struct_passwd:
        try:
            return pwd.getpwnam("postgres")
        except KeyError:
            return pwd.getpwnam("nobody")

    @classmethod
    def _make_folder(cls, folder: Path) -> None:
        folder.mkdir(0o700)
        cls._give_away(folder)

    @classmethod
    def _give_away(cls, path: Path) -> None:
        if os.geteuid() == 0:
            user = cls._user()
            os.chown(path, user.pw_uid, user.pw_gid)

    @classmethod
    def _run(cls, tool: str, *arguments: str, told: str = "") -> None:
        prefix = [find_binary("setpriv", "util-linux"), *cls._privileges(), "--"]
        run_tool([*prefix, cls._binary(tool), *arguments], told=told)

    @classmethod
    def _binary(cls, name: str) -> str:
        """All binaries are taken from one folder, because tools of another version do not work."""
        # Debian has a folder for each version, which is on nobody's PATH.
        versions = Path("/usr/lib/postgresql").glob("*/bin")
        newest_first = sorted(versions, key=lambda path: float(path.parent.name), reverse=True)
        server = Path(find_binary("postgres", cls.PACKAGES, folders=newest_first)).resolve()
        return find_binary(str(server.with_name(name)), cls.PACKAGES)
