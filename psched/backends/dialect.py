"""All that psched knows of the differences between databases.

One `Dialect` value per database; statements elsewhere ask it and never look at a name.
"""

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, literal_column
from sqlalchemy.engine import URL

from psched.errors import ConfigError


class Fault(Enum):
    """What an error says about the request that met it."""

    NOT_APPLIED = "not applied"
    """Refused or rolled back for a reason that passes (a lock, a deadlock): ask again."""

    UNAVAILABLE = "unavailable"
    """Not applied, and the connection is no use: drop it, ask again later."""

    READ_ONLY = "read-only"
    """Not applied: the server has been demoted. Drop the connection, look for the primary."""

    UNKNOWN = "unknown"
    """The connection broke while the request was under way: it may have been applied."""

    SCHEMA = "schema"
    """The table, or a column of it, is not there."""

    DUPLICATE = "duplicate"
    """Not applied: a row with this key exists."""

    UNFIT = "unfit"
    """Not applied, and will not be: a value of this row does not fit, or breaks a constraint."""

    MISCONFIGURED = "misconfigured"
    """Not applied, and will not be while the server is configured as it is."""

    REFUSED = "refused"
    """Not applied, and will not be: rights, database name, whatever else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One database's ways.

    Attributes:
        name: SQLAlchemy's name for it.
        now: the store's clock as Unix seconds with a fraction; read once per statement, so
            never earlier than the moment the request was sent.
        now_floor: the same, whole seconds.
        payload: reads a column that holds bytes or text, as bytes; its name is put in.
        text: makes text again of what ``payload`` has made of text.
        connect_args: the driver's arguments for a timeout in seconds.
        set_up: prepares a new driver's connection.
        session: statements that make a new connection's session ours, whatever the server's
            settings are.
        unreachable: what to look at when it cannot be connected to, for people.
        mend: what to do about a server that is `Fault.MISCONFIGURED`, for people.
        prepare: makes what must be there before `init` can connect.
        init_session: statements `init` needs on top of the session's.
        classify: what a driver's exception says about its request.
        closes_before_fork: a connection must not be open while the process forks.
    """

    name: str
    now: ColumnElement[float]
    now_floor: ColumnElement[int]
    payload: str
    text: str
    connect_args: Callable[[float], Mapping[str, object]]
    set_up: Callable[[Any], None]
    session: tuple[str, ...]
    unreachable: str
    mend: str
    prepare: Callable[[URL], None]
    init_session: tuple[str, ...]
    classify: Callable[[BaseException], Fault]
    closes_before_fork: bool


# --- SQLite --------------------------------------------------------------------------


_SQLITE_FAULTS: Mapping[int, Fault] = {
    sqlite3.SQLITE_BUSY: Fault.NOT_APPLIED,
    sqlite3.SQLITE_LOCKED: Fault.NOT_APPLIED,
    sqlite3.SQLITE_SCHEMA: Fault.NOT_APPLIED,  # it has just changed: the statement is out of date
    sqlite3.SQLITE_FULL: Fault.UNAVAILABLE,
    sqlite3.SQLITE_IOERR: Fault.UNKNOWN,
    sqlite3.SQLITE_CANTOPEN: Fault.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: Fault.UNAVAILABLE,
    sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
    sqlite3.SQLITE_CONSTRAINT: Fault.UNFIT,  # a number grown beyond 64 bits is one of another type
    sqlite3.SQLITE_MISMATCH: Fault.UNFIT,
    sqlite3.SQLITE_TOOBIG: Fault.UNFIT,
    # "no such table" has no code of its own.
    sqlite3.SQLITE_ERROR: Fault.SCHEMA,
}


def _classify_sqlite(error: BaseException) -> Fault:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return Fault.REFUSED
    if code in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return Fault.DUPLICATE
    # The low byte is the primary code, the rest tells more: https://sqlite.org/rescode.html
    return _SQLITE_FAULTS.get(code & 0xFF, Fault.REFUSED)


def _read_any_text(connection: sqlite3.Connection) -> None:
    """SQLite keeps text that is not UTF-8; a row with such must be read, to be set aside."""
    connection.text_factory = lambda text: text.decode(errors="replace")


def _make_folder(url: URL) -> None:
    if url.database:
        Path(url.database).parent.mkdir(parents=True, exist_ok=True)


_SQLITE = Dialect(
    name="sqlite",
    # Julian days have a resolution of some 40 microseconds; 'now' itself has milliseconds.
    now=literal_column("(julianday('now') - 2440587.5) * 86400.0"),
    now_floor=literal_column("CAST(strftime('%s', 'now') AS INTEGER)"),
    # Its columns take numbers, too, and text that is none.
    payload="CAST({} AS BLOB)",
    text="CAST({} AS TEXT)",
    # SQLite's own waiting is unfair: a writer can be passed over for seconds. The connection
    # layer waits instead (see `Connector`).
    connect_args=lambda _timeout: {"timeout": 0},
    set_up=_read_any_text,
    session=(
        "PRAGMA busy_timeout = 0",
        # Every settled occurrence survives a power cut.
        "PRAGMA synchronous = FULL",
    ),
    unreachable="does its folder exist, and may it be written? `psched init` makes it",
    mend="",
    prepare=_make_folder,
    init_session=("PRAGMA journal_mode = WAL",),
    classify=_classify_sqlite,
    # SQLite keeps a process-wide list of open files and locks. A forked child inherits the
    # list but not the locks, and would open the same file believing that it holds them:
    # https://sqlite.org/howtocorrupt.html#_carrying_an_open_database_connection_across_a_fork
    closes_before_fork=True,
)


# --- MySQL and MariaDB ---------------------------------------------------------------


_MYSQL_FAULTS: Mapping[int, Fault] = {
    **dict.fromkeys(
        (
            1020,  # record has changed since last read (innodb_snapshot_isolation)
            1205,  # lock wait timeout: the statement is undone
            1213,  # deadlock, or a lost certification on Galera
            1969,  # max_statement_time exceeded: the statement is undone
            3024,  # the same on MySQL
        ),
        Fault.NOT_APPLIED,
    ),
    **dict.fromkeys(
        (
            1021,  # disk full
            1040,  # too many connections
            1041,  # out of memory
            1047,  # Galera: not part of the primary component
            1114,  # table is full
            1129,  # host blocked after too many failed handshakes
            1203,  # too many connections of this user
            1226,  # a quota of this user
            2002,  # cannot connect through the socket
            2003,  # cannot connect
        ),
        Fault.UNAVAILABLE,
    ),
    **dict.fromkeys(
        (
            1290,  # running with --read-only
            1792,  # read-only transaction
            1836,  # read-only mode
        ),
        Fault.READ_ONLY,
    ),
    **dict.fromkeys(
        (
            1053,  # server shutdown in progress
            1180,  # error during COMMIT
            1317,  # query interrupted
            1927,  # connection was killed
            2006,  # server has gone away
            2013,  # lost connection during the query
            2014,  # commands out of sync
            2027,  # malformed packet
            2055,  # lost connection, with the system's reason
        ),
        Fault.UNKNOWN,
    ),
    **dict.fromkeys(
        (
            1054,  # unknown column
            1146,  # no such table
        ),
        Fault.SCHEMA,
    ),
    **dict.fromkeys(
        (
            1048,  # a column cannot be NULL
            1264,  # out of the column's range
            1265,  # truncated
            1292,  # an incorrect value, truncated
            1300,  # a text is not of its character set
            1365,  # division by zero
            1366,  # an incorrect value for the column
            1367,  # an illegal value
            1406,  # too long for the column
            1411,  # an incorrect value for the function
            1441,  # a time beyond what there is
            1690,  # out of the range of its type: a number grown beyond 64 bits
            3819,  # a check that somebody has added
            4025,  # the same on MariaDB
        ),
        Fault.UNFIT,
    ),
    1062: Fault.DUPLICATE,
    1665: Fault.MISCONFIGURED,  # READ COMMITTED cannot be written to a log of statements
}


def _classify_mysql(error: BaseException) -> Fault:
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if code in _MYSQL_FAULTS:
        return _MYSQL_FAULTS[code]
    # The server answers with numbers from 1000 on, and has then undone the statement; what
    # PyMySQL says by itself (0, or its own 2000s) comes from a connection in no known state.
    return Fault.UNKNOWN if code == 0 or 2000 <= code < 3000 else Fault.REFUSED  # noqa: PLR2004


_MYSQL = Dialect(
    name="mysql",
    # Not UNIX_TIMESTAMP(), which is NULL after 2038 on MariaDB 10.11, nor NOW(), which
    # follows the session's zone.
    now=literal_column("TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6"),
    now_floor=literal_column("TIMESTAMPDIFF(SECOND, '1970-01-01', UTC_TIMESTAMP())"),
    payload="{}",
    text="{}",
    # PyMySQL's connect_timeout does not cover the handshake, its read_timeout does.
    connect_args=lambda timeout: {
        "connect_timeout": timeout,
        "read_timeout": timeout,
        "write_timeout": timeout,
        "charset": "utf8mb4",
    },
    set_up=lambda _connection: None,
    session=(
        (
            "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION',"
            " time_zone = '+00:00', innodb_lock_wait_timeout = 1, lock_wait_timeout = 1"
        ),
        # No gap locks: two workers that claim neighbouring rows do not meet.
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    ),
    unreachable="is the server running, and are host, port, user and password right?",
    mend="set the server's binlog_format to MIXED or ROW",
    prepare=lambda _url: None,
    # An ALTER TABLE waits for the statements of running workers.
    init_session=("SET SESSION lock_wait_timeout = 60",),
    classify=_classify_mysql,
    closes_before_fork=False,
)

_DIALECTS: Mapping[str, Dialect] = {"sqlite": _SQLITE, "mysql": _MYSQL, "mariadb": _MYSQL}


def dialect_of(url: URL) -> Dialect:
    """The dialect for a database URL.

    Raises:
        ConfigError: psched does not know this kind of database.
    """
    name = url.get_backend_name()
    if name not in _DIALECTS:
        known = ", ".join(sorted(_DIALECTS))
        raise ConfigError(f"url: no support for {name!r} databases; psched knows {known}")
    return _DIALECTS[name]
