"""Private MariaDB servers."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

import pymysql

from support.servers.base import LOOPBACK, SqlServer, find_binary, run_tool

SOMEBODY_WAITS = (
    "SELECT 1 FROM information_schema.global_status"
    " WHERE variable_name = 'INNODB_ROW_LOCK_CURRENT_WAITS' AND variable_value > 0"
)
"""Has one row while a session of the server waits for the lock of a row.

InnoDB refreshes its tables of transactions and of waits in information_schema only if nobody has
read them for 100 ms, so that whoever polls them more often never sees a new wait. This counter is
always up to date.
"""


class MariaDB(SqlServer):
    """A MariaDB server, small; user root, no password.

    It does not sync to the disk. Committed data survive a kill of its process, as tests do it, but
    not a crash of the machine.
    """

    kind = "mariadb"

    PACKAGES = "mariadb-server-core and mariadb-client-core"

    SMALL = (
        "--innodb-buffer-pool-size=24M",
        "--innodb-log-file-size=4M",
        "--key-buffer-size=1M",
        "--aria-pagecache-buffer-size=1M",
        "--innodb-flush-method=nosync",
        "--innodb-flush-log-at-trx-commit=2",
    )

    PROOFS: ClassVar = {"": "NONE", "tls": "SSL", "certificate": "X509"}

    def url(self, database: str = "") -> str:
        """The url of a database on this server, for its administrator."""
        return f"mysql+pymysql://root@{LOOPBACK}:{self.port}/{database}"

    def create_user(
        self, name: str, password: str, *, proof: Literal["", "tls", "certificate"] = ""
    ) -> None:
        """Create a user with all rights, who logs in by password."""
        self.query(f"CREATE USER {name} IDENTIFIED BY '{password}' REQUIRE {self.PROOFS[proof]}")
        self.query(f"GRANT ALL ON *.* TO {name}")

    def drop_database(self, name: str) -> None:
        """Drop a database; fail if a test has left a transaction open on it."""
        self.query(f"DROP DATABASE {name}")

    def query(self, sql: str, *, database: str = "") -> list[tuple[object, ...]]:
        """Run one statement as the administrator, on a new connection; return its rows."""
        return self.execute([sql], database=database)

    def execute(self, statements: Sequence[str], *, database: str = "") -> list[tuple[object, ...]]:
        """Run statements as the administrator, on a new connection; return the rows of the last."""
        with (
            pymysql.connect(
                host=LOOPBACK,
                port=self.port,
                user="root",
                database=database or None,
                autocommit=True,
                ssl_disabled=True,  # to make a context for TLS takes longer than the statement
                connect_timeout=60,
                read_timeout=120,
                write_timeout=120,
                init_command="SET lock_wait_timeout = 10",
            ) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    @classmethod
    def _initialise(cls, data: Path) -> None:
        for helper in "mariadbd", "my_print_defaults":  # without it, installing fails obscurely
            find_binary(helper, cls.PACKAGES)
        run_tool(
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
                "--force",  # for hosts that cannot look up their own name
                *cls.SMALL,
            ]
        )

    def _command(self) -> list[str]:
        return [
            *self._plain_command(self.data),
            f"--bind-address={LOOPBACK}",
            f"--port={self.port}",
            *self._tls(),
            *self.flags,
        ]

    @classmethod
    def _plain_command(cls, data: Path) -> list[str]:
        """A server's command line, without the options for the network."""
        return [
            find_binary("mariadbd", cls.PACKAGES),
            "--no-defaults",
            *cls._as_ourselves(),
            f"--datadir={data}",
            # The path is relative to the data folder, because an absolute one may be too long for a
            # socket.
            "--socket=mariadb.sock",
            f"--pid-file={data.parent / 'pid'}",
            f"--tmpdir={data.parent}",
            "--skip-name-resolve",
            # Asynchronous I/O is off, because the kernel's resources for it are few, and shared by
            # all servers.
            "--skip-innodb-use-native-aio",
            *cls.SMALL,
        ]

    def _tls(self) -> list[str]:
        if self.certificates is None:
            return ["--skip-ssl"]  # MariaDB 11 creates a certificate at every start, slowly
        return [
            "--ssl",
            f"--ssl-ca={self.certificates.authority}",
            f"--ssl-cert={self.certificates.certificate}",
            f"--ssl-key={self.certificates.key}",
        ]

    def _answers(self) -> bool:
        try:
            return bool(self.query("SELECT 1"))
        except pymysql.err.OperationalError:
            return False

    @staticmethod
    def _as_ourselves() -> list[str]:
        """The option with which MariaDB agrees to run as root."""
        return ["--user=root"] if os.geteuid() == 0 else []
