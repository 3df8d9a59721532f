"""A row of PerfectSched's table, and what it is to psched."""

import zlib
from typing import Any, NamedTuple

from psched.base import payload
from psched.base.errors import InvalidError
from psched.core.columns import decode, encode, plain_text, raw_data
from psched.core.model import FINISHED, WAITING, Row, Token

NEVER = 2**31 - 1
"""In ``timeout``: the row rests. No instant of PerfectSched's may be this or later."""

LATEST = NEVER - 1
"""The last instant that the table's columns hold, in January 2038."""


class Stored(NamedTuple):
    """A row as it stands in the table; any client may have written it.

    Attributes:
        timeout: nobody may take the row before it; while leased, the end of the lease.
        next_time: scheduled time of the occurrence that is due or running.
        data: JSON, with the type inside.
        timezone: None is UTC.
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
        """Its time; below 0 if that is no number."""
        return _number(self.next_time)

    @property
    def until(self) -> int:
        """Nobody may take the row before it; below 0 if that is no number."""
        return _number(self.timeout)

    @property
    def version(self) -> int:
        """A number that is another for another definition."""
        written = (self.cron, self.delay, self.timezone, self.data)
        return zlib.crc32(repr(written).encode()) & NEVER

    @property
    def untouched(self) -> bool:
        """Whether nobody has leased this occurrence yet.

        Whoever moves on to an occurrence sets ``timeout`` to exactly this, and every lease, retry
        and release sets it to something else.
        """
        return self.until == self.occurrence + _number(self.delay)


def as_row(stored: Stored, token: Token | None = None, attempt: int = 0) -> Row:
    """What the row is to psched.

    Args:
        stored: the row.
        token: of our lease of it, if there is one.
        attempt: which try of its occurrence that lease is for.
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


def as_stored(row: Row) -> Stored:
    """The row for the table.

    Raises:
        InvalidError: a value does not fit; its ``field`` names it.
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
    return Stored(row.key, timeout, row.next_time, row.cron, row.delay, data, row.timezone)


def split_data(key: str, stored: str | bytes | None) -> tuple[str, str, str | None]:
    """Read the column ``data``: nothing in it is an error.

    Args:
        key: the row's.
        stored: JSON, or gzip of JSON; anything else is a payload that is not a JSON object.

    Returns:
        The type, the JSON text of the data without it, and how these carry the payload (see
        `psched.base.payload`). A row without a type takes it from its key up to the first dot.
    """
    data, form = _object(stored)
    named = data.pop("type", None) if form is None else None
    kind = named if isinstance(named, str) and named else key.partition(".")[0]
    return kind, encode("data", data), form


def join_data(kind: str, data: str | bytes | None) -> bytes:
    """The column ``data`` for a type and a payload; the type wins over one in the payload."""
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
    """The column ``data`` for a row, which may carry what is not a JSON object."""
    raw = raw_data(row)
    if raw == plain_text("data", row.data or "{}").encode():
        return join_data(row.type, row.data)
    kind, _, form = split_data(row.key, raw)
    if form is None:
        raise InvalidError("payload", "would be read as an object in PerfectSched's table")
    if kind != row.type:
        raise InvalidError(
            "type", "stands inside data in PerfectSched's table, and these are no JSON object"
        )
    return raw


def _number(value: object) -> int:
    # SQLite keeps a text in a column of numbers; nothing is scheduled before 1970.
    return value if isinstance(value, int) else -1


def _bytes(value: object) -> str | bytes | None:
    return value if isinstance(value, str | bytes) else None
