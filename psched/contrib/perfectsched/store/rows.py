"""Rows of PerfectSched's table, converted to and from psched's rows."""

import zlib
from typing import Any, NamedTuple

from psched.base import payload
from psched.base.errors import InvalidError
from psched.core.columns import decode, encode, plain_text, raw_data
from psched.core.model import FINISHED, WAITING, Row, Token

NEVER = 2**31 - 1
"""The ``timeout`` of a row at rest. PerfectSched has no instant from this one on."""

LATEST = NEVER - 1
"""The last instant that the table's columns can hold, in January 2038."""


class StoredRow(NamedTuple):
    """A row as the table has it; any client may have written any value.

    Attributes:
        timeout: no worker may claim the row before this; while it is leased, the lease's end.
        next_time: scheduled time of the occurrence that is due or running.
        data: JSON, with the type inside.
        timezone: a zone's name; None is UTC.
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
        """``next_time``; negative if that is no number."""
        return _number(self.next_time)

    @property
    def until(self) -> int:
        """``timeout``; negative if that is no number."""
        return _number(self.timeout)

    @property
    def version(self) -> int:
        """A checksum of the definition."""
        written = (self.cron, self.delay, self.timezone, self.data)
        return zlib.crc32(repr(written).encode()) & NEVER

    @property
    def never_leased(self) -> bool:
        """Whether no worker has leased the present occurrence yet.

        The settle that makes an occurrence the next one sets ``timeout`` to exactly ``next_time``
        plus ``delay``; every lease, retry and release sets ``timeout`` to something else.
        """
        return self.until == self.occurrence + _number(self.delay)


def as_row(stored: StoredRow, token: Token | None = None, attempt: int = 0) -> Row:
    """Convert a row of the table.

    Args:
        stored: the row.
        token: the token of this process's lease of the row, if it holds one.
        attempt: the attempt that this lease is for.
    """
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
    """Convert a row for the table.

    Raises:
        InvalidError: a value does not fit into the table; its ``field`` names the value.
    """
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
    """Read the column ``data``, which never fails.

    Args:
        key: the key of the row.
        stored: JSON, or gzip of JSON; anything else is a payload that is not a JSON object.

    Returns:
        The type, the JSON text of the data without the type, and how these data carry the payload
        (see `psched.base.payload`). If there is no type, it is the part of the key before the first
        dot.
    """
    data, form = _object(stored)
    named = data.pop("type", None) if form is None else None
    kind = named if isinstance(named, str) and named else key.partition(".")[0]
    return kind, encode("data", data), form


def join_data(kind: str, data: str | bytes | None) -> bytes:
    """The column ``data`` for a type and a payload; a type in the payload is replaced."""
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
    """The column ``data`` for a row; the row's payload need not be a JSON object."""
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
    # SQLite accepts text in a column of numbers. Nothing is scheduled before 1970.
    return value if isinstance(value, int) else -1


def _bytes(value: object) -> str | bytes | None:
    return value if isinstance(value, str | bytes) else None
