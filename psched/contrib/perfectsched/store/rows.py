"""Converts rows of PerfectSched's table to psched's rows and back; the SQL statements on the table.

Only the table's name and the dialect's fragments are inserted into the SQL text; the configuration
restricts the name to a plain identifier. All other values are bound.
"""

import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import TextClause, bindparam, text

from psched.base import payload
from psched.base.errors import InvalidError
from psched.core.columns import decode, encode, plain_text, raw_data
from psched.core.model import FINISHED, WAITING, Row, Token
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.side_tables import rights_on

NEVER = 2**31 - 1
"""The ``timeout`` of a row that has no next run, so that no worker claims the row.

It is not used as a time, because the latest time is `LATEST`.
"""

LATEST = NEVER - 1  # the latest time that psched writes to a row, in Unix seconds: in January 2038


class StoredRow(NamedTuple):
    """A row of the table; any client can have written any value, even an invalid one."""

    id: str
    # The time from which workers claim the row; this is also the end of the lease if a worker holds
    # one.
    timeout: Any
    next_time: Any  # the scheduled time of the occurrence that is running or that runs next
    cron: Any
    delay: Any
    data: Any  # a JSON object; its field ``type`` is the schedule's type
    timezone: Any  # the name of a time zone; None means UTC

    @property
    def occurrence(self) -> int:
        """``next_time``; -1 if the column does not contain a whole number."""
        return _number(self.next_time)

    @property
    def until(self) -> int:
        """``timeout``; -1 if the column does not contain a whole number."""
        return _number(self.timeout)

    @property
    def version(self) -> int:
        """A checksum of the columns that define the schedule, used as ``Row.version``."""
        written = (self.cron, self.delay, self.timezone, self.data)
        return zlib.crc32(repr(written).encode()) & NEVER

    @property
    def never_leased(self) -> bool:
        """Whether no worker has leased the occurrence ``next_time`` yet.

        The settle that moves a row to its next occurrence sets ``timeout`` to exactly ``next_time``
        plus ``delay``; every lease, retry and release sets ``timeout`` to another time.
        """
        return self.until == self.occurrence + _number(self.delay)


def as_row(stored: StoredRow, token: Token | None = None, attempt: int = 0) -> Row:
    """Convert a row of the table to a row of psched."""
    kind, data, form = split_data(stored.id, _bytes(stored.data))
    resting = stored.timeout == NEVER
    return Row(
        key=stored.id,
        type=kind,
        data=data,
        cron=stored.cron,
        timezone="UTC" if stored.timezone is None else stored.timezone,
        delay=stored.delay,
        next_time=stored.occurrence,
        next_run_time=None if resting else stored.until,
        owner=None if token is None else token.owner,
        fence=0 if token is None else token.fence,
        attempt=attempt,
        status=FINISHED if resting else WAITING,
        version=stored.version,
        options=None if form is None else encode("options", {payload.OPTION: form}),
    )


def as_stored(row: Row) -> StoredRow:
    """Convert a row of psched to a row of the table."""
    for name in ("next_time", "next_run_time", "delay"):
        value = getattr(row, name)
        if value is not None and not 0 <= value <= LATEST:
            raise InvalidError(name, f"must be from 0 to {LATEST} in PerfectSched's table")
    for name, words, longest in (("cron", row.cron, 128), ("timezone", row.timezone, 255)):
        if words is not None and len(words) > longest:
            raise InvalidError(name, f"must have at most {longest} characters here")
    timeout = NEVER if row.next_run_time is None else row.next_run_time
    data = _joined(row)
    return StoredRow(row.key, timeout, row.next_time, row.cron, row.delay, data, row.timezone)


def split_data(key: str, stored: str | bytes | None) -> tuple[str, str, str | None]:
    """Split the column ``data`` into a type, a payload and its form; no value raises an error.

    The form says how the data wrap the payload (see `psched.base.payload`); None if they are the
    payload. If ``stored`` contains no type, it is the part of the key before the first dot.
    """
    data, form = _object(stored)
    named = data.pop("type", None) if form is None else None
    kind = named if isinstance(named, str) and named else key.partition(".")[0]
    return kind, encode("data", data), form


def join_data(kind: str, data: str | bytes | None) -> bytes:
    """The column ``data``: the payload's fields and the type, which replaces a field ``type``."""
    fields = decode("data", data, values=None) if data else {}
    return encode("data", {**fields, "type": kind}).encode()


def _object(stored: str | bytes | None) -> tuple[dict[str, Any], str | None]:
    if not stored:
        return {}, None
    try:
        return decode("data", stored, values=None), None
    except InvalidError:
        return payload.wrap(stored if isinstance(stored, bytes) else stored.encode())


def _joined(row: Row) -> bytes:
    """The column ``data`` for a row, whose payload need not be a JSON object."""
    raw = raw_data(row)
    if raw == plain_text("data", row.data or "{}").encode():
        return join_data(row.type, row.data)
    kind, _, form = split_data(row.key, raw)
    if form is None:
        raise InvalidError("payload", "would be read as an object in PerfectSched's table")
    if kind != row.type:
        raise InvalidError(
            "type", "is kept inside the data in PerfectSched's table, and these are no JSON object"
        )
    return raw


def _number(value: object) -> int:
    # SQLite accepts text in a column of numbers. Text is read as -1, which is no valid time.
    return value if isinstance(value, int) else -1


def _bytes(value: object) -> str | bytes | None:
    return value if isinstance(value, str | bytes) else None


COLUMNS = StoredRow._fields


class Statements:
    """All SQL statements that psched sends to one of PerfectSched's tables."""

    def __init__(self, table: str, dialect: Dialect) -> None:
        data = dialect.payload.format("data")
        columns = ", ".join(data if name == "data" else name for name in COLUMNS)
        read = f"SELECT {dialect.now}, {columns} FROM {table} WHERE "
        defined = (
            f"cron = :cron AND delay = :delay AND {data} = :data"
            " AND COALESCE(timezone, '') = :timezone"
        )
        held = "id = :id AND next_time = :next_time AND timeout = :timeout"

        self.now = text(f"SELECT {dialect.now}")
        # This statement reads no row, but fails if the table does not exist, or lacks a column.
        self.check = text(f"SELECT {columns} FROM {table} WHERE 1 = 0")
        self.count = text(f"SELECT COUNT(*) FROM {table}")
        self.rows = text(f"{read} id IN :ids").bindparams(bindparam("ids", expanding=True))
        # If the store uses this host's clock, and the clock was set forward, a running lease can
        # seem to have ended. So for the length of a lease after the clock was set, only rows that
        # were never leased are claimed.
        claimable = (
            " AND (timeout = next_time + delay OR :length < :even)" if dialect.host_clock else ""
        )
        self.due = text(
            f"SELECT {dialect.now}, {dialect.read_only}, {columns} FROM {table}"
            f" WHERE timeout <= {dialect.now_floor} + :horizon AND timeout < {NEVER}{claimable}"
            " ORDER BY timeout LIMIT :limit"
        )
        # Rows that may be leased are not counted if the store's clock is the host's, as above.
        free = " AND timeout = next_time + delay" if dialect.host_clock else ""
        self.backlog = text(
            f"SELECT timeout, {dialect.now} FROM {table}"
            f" WHERE timeout <= {dialect.now_floor} AND timeout < {NEVER}{free}"
            " ORDER BY timeout LIMIT :limit"
        )
        # `first` and `following` read all rows, page by page; see `psched.stores.sql.selecting`.
        place = f"{dialect.payload.format('id')}, timeout"
        page = f"SELECT {place}, {dialect.now}, {columns} FROM {table} WHERE"
        in_time = "ORDER BY timeout, id LIMIT :limit"
        beyond = dialect.after.format("timeout", "id", ":time", dialect.text.format(":id"))
        self.first = text(f"{page} 1 = 1 {in_time}")
        self.following = text(f"{page} {beyond} {in_time}")
        self.first_by_key = text(f"{page} 1 = 1 ORDER BY id LIMIT :limit")
        after_key = f"id > {dialect.text.format(':id')}"
        self.following_by_key = text(f"{page} {after_key} ORDER BY id LIMIT :limit")
        self.rights = rights_on(table, ", ".join(COLUMNS), "timeout")
        self.claim = text(f"UPDATE {table} SET timeout = :until WHERE {held}")
        self.settle = text(
            f"UPDATE {table} SET timeout = :until, next_time = :following"
            f" WHERE {held} AND {defined}"
        )
        self.remove = text(f"DELETE FROM {table} WHERE {held} AND {defined}")
        self.update_data = text(
            f"UPDATE {table} SET data = :new_data WHERE {held} AND {data} = :data"
        )
        definition = (
            f"UPDATE {table} SET cron = :new_cron, delay = :new_delay, data = :new_data,"
            " timezone = :new_timezone"
        )
        self.redefine = text(
            f"{definition} WHERE id = :id AND next_time = :next_time AND {defined}"
        )
        self.replace = text(
            f"{definition}, next_time = :new_next_time, timeout = :new_timeout"
            f" WHERE {held} AND {defined}"
        )
        self.delete = text(f"DELETE FROM {table} WHERE id = :id")
        self._extend = f"UPDATE {table} SET timeout = :until WHERE "
        self._held = "(id = :id{0} AND next_time = :next_time{0} AND timeout = :timeout{0})"
        self._insert = f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES "

    def extend(
        self, leases: Sequence[tuple[str, object, int]], until: int
    ) -> tuple[TextClause, dict[str, Any]]:
        """The statement that writes a new end of leases, and the statement's values."""
        values: dict[str, Any] = {"until": until}
        for i, (key, next_time, timeout) in enumerate(leases):
            values |= {f"id{i}": key, f"next_time{i}": next_time, f"timeout{i}": timeout}
        where = " OR ".join(self._held.format(i) for i in range(len(leases)))
        return text(self._extend + where), values

    def insert(self, rows: Sequence[StoredRow]) -> tuple[TextClause, dict[str, Any]]:
        """The statement that inserts all of the rows or none, and the statement's values."""
        values = {f"{n}{i}": v for i, row in enumerate(rows) for n, v in row._asdict().items()}
        each = (", ".join(f":{name}{i}" for name in COLUMNS) for i in range(len(rows)))
        return text(self._insert + ", ".join(f"({row})" for row in each)), values


def as_seen(row: StoredRow) -> dict[str, Any]:
    """The values for an SQL condition that is true if a row has not changed since it was read."""
    return {**row._asdict(), "timezone": row.timezone or ""}


def as_new(row: StoredRow) -> dict[str, Any]:
    """The values, named ``new_…``, for a statement by which this row replaces an existing row."""
    return {f"new_{name}": value for name, value in row._asdict().items()}
