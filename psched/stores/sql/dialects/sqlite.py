"""SQLite: a file on this host."""

import os
import sqlite3
import stat
from collections.abc import Mapping
from contextlib import suppress
from operator import methodcaller
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from psched.base import regular_files
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[int, ErrorKind] = {
    sqlite3.SQLITE_BUSY: ErrorKind.TRANSIENT,
    sqlite3.SQLITE_LOCKED: ErrorKind.TRANSIENT,
    sqlite3.SQLITE_SCHEMA: ErrorKind.TRANSIENT,  # changed since the statement was compiled
    sqlite3.SQLITE_FULL: ErrorKind.UNAVAILABLE,
    sqlite3.SQLITE_IOERR: ErrorKind.UNKNOWN,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: ErrorKind.UNAVAILABLE,
    sqlite3.SQLITE_READONLY: ErrorKind.READ_ONLY,
    # A number that has grown beyond 64 bits becomes a float, which violates its column's type.
    sqlite3.SQLITE_CONSTRAINT: ErrorKind.INVALID_VALUE,
    sqlite3.SQLITE_MISMATCH: ErrorKind.INVALID_VALUE,
    sqlite3.SQLITE_TOOBIG: ErrorKind.INVALID_VALUE,
    # "No such table" has no code of its own.
    sqlite3.SQLITE_ERROR: ErrorKind.SCHEMA,
}


def _classify(error: BaseException) -> ErrorKind:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return ErrorKind.REFUSED
    if code in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return ErrorKind.DUPLICATE
    # The low byte is the primary code, the others give details: https://sqlite.org/rescode.html
    return _ERROR_KINDS.get(code & 0xFF, ErrorKind.REFUSED)


def _begin_session(connection: Connection, _milliseconds: int) -> ServerInfo:
    opened: Any = connection.connection.driver_connection
    # Bytes that are not UTF-8, which SQLite accepts in text, are replaced, so that such a row can
    # be read and quarantined. `methodcaller` is faster than a Python function, and is called for
    # every text.
    opened.text_factory = methodcaller("decode", "utf-8", "replace")
    # FULL, so that every settled occurrence survives a power cut.
    connection.exec_driver_sql("PRAGMA synchronous = FULL").close()
    return ServerInfo()


def _make_file(url: URL) -> None:
    """Create the folder and the file if they are missing; other users may not read the file."""
    if not url.database or not _is_file(url.database):
        return
    file = Path(url.database)
    file.parent.mkdir(parents=True, exist_ok=True)
    # SQLite takes an empty file for a new database, and gives the same mode to the files beside it.
    # A file that exists must not be opened here, because closing it would release the locks that
    # this process holds on it. SQLite itself reports what cannot be done.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))


def _is_file(database: str) -> bool:
    return database != ":memory:" and not database.startswith("file:")


class _Connection(sqlite3.Connection):
    """A connection to a file that exists; it notices when the file is moved, removed or replaced.

    A missing file is not created: it may have been moved away for a moment, and SQLite would delete
    the write-ahead log that it finds beside an empty file.
    """

    def __init__(self, database: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # the module's own
        self._file: Path | None = None
        if _is_file(database):
            self._file = Path(database).absolute()
            # SQLite itself reports what is wrong.
            with suppress(OSError):
                _clear_beside(self._file)
            database, options["uri"] = f"{self._file.as_uri()}?mode=rw", True
        super().__init__(database, *arguments, **options)
        self._opened = self._found()

    @property
    def astray(self) -> bool:
        """Whether the path leads to another file by now, or to none."""
        return self._found() != self._opened

    def _found(self) -> tuple[int, int] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def _is_astray(connection: Connection) -> bool:
    opened: Any = connection.connection.driver_connection
    return bool(opened.astray)


def _clear_beside(file: Path) -> None:
    """Remove anything but regular files from where SQLite expects the files beside a database."""
    for suffix in "-wal", "-shm", "-journal":
        beside = file.with_name(file.name + suffix)
        # A task may have put something else there, with which SQLite could not open the database.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(beside.lstat().st_mode):
                regular_files.clear(beside)


SQLITE = Dialect(
    # A Julian day has a resolution of some 40 microseconds, 'now' has milliseconds. Without
    # rounding, a second that has begun could still seem to be ahead.
    now="ROUND((julianday('now') - 2440587.5) * 86400.0, 3)",
    now_floor="CAST(strftime('%s', 'now') AS INTEGER)",
    exact="{}",
    integer="{}",
    # SQLite's columns may also hold numbers, and text that is not UTF-8.
    payload="CAST({} AS BLOB)",
    packed=bytes,
    # CAST is avoided, because with it the planner would not look up a pair in an index.
    text="({} || '')",
    hex="HEX({})",
    after="({}, {}) > ({}, {})",
    rest_order="id",
    # Rows are found by rowid, because a search by key would also read the index of keys, and there
    # another page for each row.
    place="rowid",
    read_only="0",
    server="SELECT 'SQLite ' || sqlite_version()",
    isolation="SELECT 'serializable'",
    encryption="SELECT 'no need to, a file'",
    aborts=False,
    begin="BEGIN IMMEDIATE",
    catch_up=None,
    node_state=None,
    skips_locked=False,
    host_clock=True,
    driver="",
    connect=lambda _arguments, _budget: None,
    # SQLite's own wait for a lock is unfair: a writer can be passed over for seconds. `Connector`
    # waits instead.
    connect_args=lambda _timeout, _tls: {"timeout": 0, "factory": _Connection},
    engine_args={},
    begin_session=_begin_session,
    is_astray=_is_astray,
    unreachable="does its folder exist, and may it be written? `psched init` makes it",
    fix="",
    unsuitable=None,
    prepare=_make_file,
    init_session=("PRAGMA journal_mode = WAL",),
    classify=_classify,
    explain=str,
)
