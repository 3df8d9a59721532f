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
from psched.base.errors import MissingDatabaseError, StoreError
from psched.config.urls import Tls
from psched.stores.sql.dialects.dialect import Dialect, ServerInfo
from psched.stores.sql.errors import ErrorKind

_ERROR_KINDS: Mapping[int, ErrorKind] = {
    sqlite3.SQLITE_BUSY: ErrorKind.TRANSIENT,
    sqlite3.SQLITE_LOCKED: ErrorKind.TRANSIENT,
    sqlite3.SQLITE_SCHEMA: ErrorKind.TRANSIENT,  # the schema has changed since compilation
    sqlite3.SQLITE_FULL: ErrorKind.NO_ROOM,
    sqlite3.SQLITE_IOERR: ErrorKind.UNKNOWN,
    sqlite3.SQLITE_CANTOPEN: ErrorKind.UNAVAILABLE,
    sqlite3.SQLITE_NOMEM: ErrorKind.NO_ROOM,
    sqlite3.SQLITE_READONLY: ErrorKind.READ_ONLY,
    # A number that has grown beyond 64 bits becomes a float, which violates its column's type. So
    # this code means an invalid value.
    sqlite3.SQLITE_CONSTRAINT: ErrorKind.INVALID_VALUE,
    sqlite3.SQLITE_MISMATCH: ErrorKind.INVALID_VALUE,
    sqlite3.SQLITE_TOOBIG: ErrorKind.INVALID_VALUE,
    # SQLite has no special code for "no such table", but reports it by this general code.
    sqlite3.SQLITE_ERROR: ErrorKind.SCHEMA,
}


def _classify(error: BaseException) -> ErrorKind:
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return ErrorKind.REFUSED
    if code in (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE):
        return ErrorKind.DUPLICATE
    # Only the low byte is compared, because the other bytes give details of the error:
    # https://sqlite.org/rescode.html
    return _ERROR_KINDS.get(code & 0xFF, ErrorKind.REFUSED)


_MAY_NOT_WRITE = "run the command as a user who may write the file, such as with sudo -u psched"

_CONNECTING_FIXES: Mapping[int, str] = {
    sqlite3.SQLITE_CANTOPEN: (
        "give this user the right to write the file and its folder, or run the command as another"
        " user, such as with sudo -u psched"
    ),
    sqlite3.SQLITE_NOTADB: "name an SQLite file in url, or remove this one and run `psched init`",
    sqlite3.SQLITE_READONLY: _MAY_NOT_WRITE,
}
"""How to correct the cause of an error on connecting, by the low byte of its number."""


def _connecting_fix(error: BaseException, _tls: Tls | None) -> str | None:
    return _CONNECTING_FIXES.get(getattr(error, "sqlite_errorcode", 0) & 0xFF)


def _explain(error: BaseException) -> str:
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY:
        return f"{error}; {_MAY_NOT_WRITE}"
    return str(error)


def _begin_session(connection: Connection, _milliseconds: int) -> ServerInfo:
    opened: Any = connection.connection.driver_connection
    # SQLite accepts text that is not UTF-8. Invalid bytes are replaced on reading, so that such a
    # row can be read and quarantined. `methodcaller` is used because it is called for every text,
    # and is faster than a Python function.
    opened.text_factory = methodcaller("decode", "utf-8", "replace")
    # With FULL, a commit survives a power cut, so no finished run is forgotten and repeated.
    connection.exec_driver_sql("PRAGMA synchronous = FULL").close()
    return ServerInfo(replica=opened.read_only)


def _make_file(url: URL) -> None:
    """Create the folder and the file if they are missing.

    Only the owner and the group of the file can read it. If root creates the file in a folder of
    another user, the file belongs to that user, because the folder's owner is the user of the
    service. SQLite itself gives the files beside the database's file to the owner of that file.
    """
    if not url.database or not _is_file(url.database):
        return
    file = Path(url.database)
    missing = [folder for folder in (file.parent, *file.parents[1:]) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        # Opened as a folder, because the parent's owner may have replaced it, for example by a link
        # to a file of root's. There are no hard links to folders.
        only_folder = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        _give_to_owner_of(folder.parent, os.open(folder, only_folder))
    # SQLite treats an empty file as a new database, and creates the files beside it with the same
    # mode. A file that exists must not be opened here, because closing it would release the locks
    # that this process holds on the file.
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(file, flags, 0o640)
    except OSError as error:
        if os.path.lexists(file):
            return  # SQLite reports what is wrong with a file that exists
        raise StoreError(
            f"cannot create the database {file}: {error.strerror}; run `psched init` as a user who"
            f" may write to {file.parent}, or name another file in url"
        ) from None
    _give_to_owner_of(file.parent, descriptor)


def _give_to_owner_of(folder: Path, made: int) -> None:
    """If this process is root's, give what it has created in a folder to the folder's owner."""
    try:
        found = folder.stat()
        if os.geteuid() == 0 and found.st_uid != 0:
            os.fchown(made, found.st_uid, found.st_gid)
    finally:
        os.close(made)


def _is_file(database: str) -> bool:
    return database != ":memory:" and not database.startswith("file:")


_READING = "mode=ro&readonly_shm=1"
"""The options of a url that opens a file for reading, and creates no files beside it."""

_READING_UNLOCKED = "mode=ro&immutable=1"
"""The options of a url that opens a file for reading, and neither locks it nor reads its log."""


class _Connection(sqlite3.Connection):
    """A connection to an existing file; detects that the file was moved, removed or replaced.

    A missing file is not created, because the file might only have been moved away for a moment.
    SQLite would delete the write-ahead log of the moved file if it found the log beside a new,
    empty file.

    If this user may read the file but not write it, the connection is read-only, and creates no
    files: the files that SQLite creates beside the database would belong to this user, and the
    service could not write them.

    Attributes:
        read_only: whether this user may not write the file.
    """

    def __init__(self, database: str, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  # the module's own
        self._file: Path | None = None
        self._unlocked = self.read_only = False
        if _is_file(database):
            self._file = Path(database).absolute()
            if _is_missing(self._file):
                raise MissingDatabaseError(
                    f"no database at {self._file}: run `psched init`, or correct url"
                )
            self.read_only = _may(self._file, os.R_OK) and not _may(self._file, os.W_OK)
            self._unlocked = self.read_only and _is_at_rest(self._file)
            if not self.read_only:
                # Errors are ignored, because SQLite reports them on connecting.
                with suppress(OSError):
                    _clear_beside(self._file)
            mode = _READING if self.read_only else "mode=rw"
            mode = _READING_UNLOCKED if self._unlocked else mode
            database, options["uri"] = f"{self._file.as_uri()}?{mode}", True
        super().__init__(database, *arguments, **options)
        self._opened = self._found()

    @property
    def astray(self) -> bool:
        """Whether the path no longer leads to the file that this connection has opened."""
        return self._found() != self._opened

    def _found(self) -> tuple[object, ...] | None:
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        if self._unlocked:
            # SQLite does not see what others write to a file that it reads without locks.
            return found.st_dev, found.st_ino, found.st_mtime_ns, _wal(self._file).exists()
        return found.st_dev, found.st_ino


def _is_astray(connection: Connection) -> bool:
    opened: Any = connection.connection.driver_connection
    return bool(opened.astray)


def _wal(file: Path) -> Path:
    """The write-ahead log of a database's file."""
    return file.with_name(f"{file.name}-wal")


def _is_missing(file: Path) -> bool:
    """Whether it is certain that there is no such file."""
    try:
        file.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # this user may not search the folder
    return False


def _may(file: Path, right: int) -> bool:
    return os.access(file, right, effective_ids=True)


def _is_at_rest(file: Path) -> bool:
    """Whether no other process has a database with a write-ahead log open.

    Then there is no index of the log beside the file. SQLite would create the log and its index
    even for a connection that only reads.
    """
    if file.with_name(f"{file.name}-shm").exists() or _wal(file).exists():
        return False
    try:
        # https://sqlite.org/fileformat.html#file_format_version_numbers
        with file.open("rb") as opened:
            return opened.read(19)[18:] == b"\2"
    except OSError:
        return False


def _clear_beside(file: Path) -> None:
    """Remove everything that prevents SQLite from creating its files beside the database's file.

    These files have the name of the database's file and a suffix. Regular files are kept.
    """
    for suffix in "-wal", "-shm", "-journal":
        beside = file.with_name(file.name + suffix)
        # A task may have created a directory or the like here, which would prevent SQLite from
        # opening the database.
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(beside.lstat().st_mode):
                regular_files.clear(beside)


SQLITE = Dialect(
    # SQLite's 'now' has milliseconds, but the Julian day is exact only to about 40 microseconds. So
    # the time is rounded to milliseconds; otherwise it could be just before a second that has
    # already begun.
    now="ROUND((julianday('now') - 2440587.5) * 86400.0, 3)",
    now_floor="CAST(strftime('%s', 'now') AS INTEGER)",
    now_milliseconds="CAST(ROUND((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)",
    exact="+{}",
    integer="{}",
    joined="({} || ({}))",
    # The column is cast to bytes, because a column of SQLite can also contain numbers, and text
    # that is not UTF-8.
    payload="CAST({} AS BLOB)",
    packed=bytes,
    # The key is converted without CAST, because with CAST the planner would not look up a pair in
    # an index.
    text="({} || '')",
    hex="HEX({})",
    after="({}, {}) > ({}, {})",
    newest_of_key=("{0} = {1}", "id DESC"),
    within_index=("{0} = {1}", ""),
    rest_order="id",
    # Rows are found by rowid. A search by key would be slower, because SQLite would first read the
    # index of keys, which is one more page for each row.
    place="rowid",
    read_only="0",
    server="SELECT 'SQLite ' || sqlite_version()",
    isolation="SELECT 'serializable'",
    encryption="SELECT 'no need to, a file'",
    aborts=False,
    begin="BEGIN IMMEDIATE",
    ignore_duplicate="ON CONFLICT ({0}) DO NOTHING",
    catch_up=None,
    node_state=None,
    skips_locked=False,
    host_clock=True,
    driver="",
    connect=lambda _arguments, _budget: None,
    # SQLite does not wait for a lock itself, because its wait is unfair: other writers can get the
    # lock first for seconds. `Connector` waits instead.
    connect_args=lambda _timeout, _tls: {"timeout": 0, "factory": _Connection},
    engine_args={},
    begin_session=_begin_session,
    is_file=True,
    is_astray=_is_astray,
    connecting_fix=_connecting_fix,
    other_fix="check the file with `sqlite3 FILE 'PRAGMA integrity_check'`",
    fix="",
    # The bytes of a text, which psched reads of keys and data, are in the encoding of the file.
    unsuitable=(
        "SELECT 'its encoding is ' || encoding || '; name another file in url'"
        " FROM pragma_encoding WHERE encoding <> 'UTF-8'"
    ),
    prepare=_make_file,
    locks=dict.fromkeys(
        ("table", "new index", "column", "drop", "row", "rename", "rows"),
        "the write lock of the file, for a moment",
    )
    | {"index": "the write lock of the file while the index is built: workers wait"},
    move_labels=(
        "UPDATE {0} SET label = json_extract(CAST(options AS TEXT), '$.label'), options ="
        " nullif(json_remove(CAST(options AS TEXT), '$.label'), '{{}}') WHERE CASE WHEN"
        " json_valid(CAST(options AS TEXT)) THEN json_type(CAST(options AS TEXT), '$.label') ="
        " 'text' AND length(json_extract(CAST(options AS TEXT), '$.label')) <= 255 END"
    ),
    # This wait for the lock is long, because busy workers can get the lock first for seconds.
    init_session=("PRAGMA busy_timeout = 60000", "PRAGMA journal_mode = WAL"),
    classify=_classify,
    explain=_explain,
)
