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
from psched.stores.sql.dialects.dialect import Dialect, Fault, Standing

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


def _begin_session(connection: Connection, _milliseconds: int) -> Standing:
    opened: Any = connection.connection.driver_connection
    # SQLite keeps text that is not UTF-8; a row with such must be read, to be set aside.
    # No function of ours: it is called for every text that is read.
    opened.text_factory = methodcaller("decode", "utf-8", "replace")
    # Every settled occurrence survives a power cut.
    connection.exec_driver_sql("PRAGMA synchronous = FULL").close()
    return Standing()


def _make_file(url: URL) -> None:
    """Create the folder and the file, if there are none; others may not read the file."""
    if not url.database or not _is_file(url.database):
        return
    file = Path(url.database)
    file.parent.mkdir(parents=True, exist_ok=True)
    # SQLite takes an empty file for a new database, and gives the files beside it its mode.
    # Only a new one may be opened here: closing it would end the locks that this process has on it.
    # What cannot be done is SQLite's to report.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))


def _is_file(database: str) -> bool:
    return database != ":memory:" and not database.startswith("file:")


class _Connection(sqlite3.Connection):
    """A connection to a file that is there, and knows whether it still is.

    A file that is missing is not created: it may have been moved away for a moment, and SQLite
    deletes a write-ahead log that it finds beside an empty file.
    """

    def __init__(self, database: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # the module's own
        self._file: Path | None = None
        if _is_file(database):
            self._file = Path(database).absolute()
            # What cannot be done is SQLite's to report.
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
    """See that what lies beside a database's file are files."""
    for suffix in "-wal", "-shm", "-journal":
        beside = file.with_name(file.name + suffix)
        # A task may have put something else there, with which SQLite would open no database.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(beside.lstat().st_mode):
                regular_files.clear(beside)


SQLITE = Dialect(
    # Julian days have a resolution of some 40 microseconds; 'now' itself has milliseconds, and a
    # second that has begun is not to seem to be still ahead.
    now="ROUND((julianday('now') - 2440587.5) * 86400.0, 3)",
    now_floor="CAST(strftime('%s', 'now') AS INTEGER)",
    exact="{}",
    integer="{}",
    # Its columns take numbers, too, and text that is none.
    payload="CAST({} AS BLOB)",
    packed=bytes,
    # Not CAST: through that, a pair is not looked up in an index.
    text="({} || '')",
    hex="HEX({})",
    after="({}, {}) > ({}, {})",
    rest_order="id",
    # Its own number: through the key it is an index more, of which each row is on another page.
    place="rowid",
    read_only="0",
    server="SELECT 'SQLite ' || sqlite_version()",
    isolation="SELECT 'serializable'",
    encryption="SELECT 'no need to, a file'",
    aborts=False,
    begin="BEGIN IMMEDIATE",
    catch_up=None,
    node_state=None,
    # Who takes over a lease looks at the clock twice.
    strategies=("cas",),
    host_clock=True,
    driver="",
    connect=lambda _arguments, _budget: None,
    # SQLite's own waiting is unfair: a writer can be passed over for seconds. The connection
    # layer waits instead (see `Connector`).
    connect_args=lambda _timeout, _tls: {"timeout": 0, "factory": _Connection},
    engine_args={},
    begin_session=_begin_session,
    is_astray=_is_astray,
    unreachable="does its folder exist, and may it be written? `psched init` makes it",
    mend="",
    unsuitable=None,
    prepare=_make_file,
    init_session=("PRAGMA journal_mode = WAL",),
    classify=_classify_sqlite,
    explain=str,
)
