"""Converts rows of PerfectSched's table to psched's rows, and psched's rows to its rows."""

import zlib
from typing import Any, NamedTuple

from psched.base import payload
from psched.base.errors import InvalidError
from psched.core.columns import decode, encode, plain_text, raw_data
from psched.core.model import FINISHED, WAITING, Row, Token

NEVER = 2**31 - 1
"""The ``timeout`` of a row that has no next run, so that no worker claims the row.

It is not used as a time, because the latest time is `LATEST`.
"""

LATEST = NEVER - 1
"""The latest time that psched writes to a row, in Unix seconds: in January 2038."""


class StoredRow(NamedTuple):
    """A row of the table; any client can have written any value, even an invalid one.

    Attributes:
        timeout: the time from which workers claim the row; this is also the end of the lease if a
            worker holds one.
        next_time: the scheduled time of the occurrence that is running or that runs next.
        data: a JSON object; its field ``type`` is the schedule's type.
        timezone: the name of a time zone; None means UTC.
    """

    id: str
    timeout: Any
    next_time: Any
    cron: Any
    delay: Any
    data: Any
    timezone: Any

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
    for name, value, most in (
        ("next_time", row.next_time, LATEST),
        ("next_run_time", row.next_run_time, LATEST),
        ("delay", row.delay, LATEST),
    ):
        if value is not None and not 0 <= value <= most:
            raise InvalidError(name, f"must be from 0 to {most} in PerfectSched's table")
    for name, text, longest in (("cron", row.cron, 128), ("timezone", row.timezone, 255)):
        if text is not None and len(text) > longest:
            raise InvalidError(name, f"must have at most {longest} characters here")
    timeout = NEVER if row.next_run_time is None else row.next_run_time
    data = _joined(row)
    return StoredRow(row.key, timeout, row.next_time, row.cron, row.delay, data, row.timezone)


def split_data(key: str, stored: str | bytes | None) -> tuple[str, str, str | None]:
    """Split the value of the column ``data`` into a type and a payload; no value raises an error.

    Returns:
        The type, the JSON text of the data without the type, and the form. The form is the option
        that says how the data wrap the payload (see `psched.base.payload`), or None if the data are
        the payload. If ``stored`` contains no type, the type is the part of the key before the
        first dot.
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
