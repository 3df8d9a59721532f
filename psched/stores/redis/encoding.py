"""Conversion of rows to arguments of scripts, and of the scripts' answers to rows."""

from collections.abc import Callable, Iterator, Sequence
from math import floor, isfinite
from typing import Any, Self

from psched.core.model import DEFAULT_TYPE, QUARANTINED, WAITING, Row, Settlement

Argument = bytes | str | int

PAGE = 200
"""The most rows that a script returns for a page."""

_LARGEST = 2**63 - 1

_COMPLETE = 19
"""The number of elements of a row in an answer: the key, next_run_time and the columns.

A row whose hash cannot be read has fewer.
"""


def add_arguments(row: Row) -> Sequence[Argument]:
    """The arguments of `scripts.ADD` for a new row."""
    return (
        text(row.key),
        text(row.type),
        optional_text(row.data),
        optional_text(row.cron),
        optional_text(row.timezone),
        row.delay,
        optional_number(row.next_time),
        optional_number(row.next_run_time),
        optional_number(row.alive_time),
        optional_text(row.options),
    )


def replace_arguments(seen: Row, new: Row) -> Sequence[Argument]:
    """The arguments of `scripts.REPLACE`: values of the row that was seen, and the new values."""
    return (
        text(new.key),
        seen.version,
        seen.fence,
        text(seen.owner or ""),
        optional_number(seen.next_run_time),
        text(seen.known_status or ""),
        text(new.type),
        optional_text(new.data),
        optional_text(new.cron),
        optional_text(new.timezone),
        new.delay,
        optional_number(new.next_time),
        optional_number(new.next_run_time),
        text(new.status),
        optional_text(new.reason),
        new.attempt,
        optional_number(new.alive_time),
        optional_text(new.options),
        optional_number(new.created_at),
        optional_number(new.retain_until),
    )


def settle_arguments(end: Settlement) -> Sequence[Argument]:
    """The arguments of `scripts.SETTLE` for a settlement."""
    return (
        text(end.key),
        text(end.token.owner),
        end.token.fence,
        end.version,
        text(end.seen_status or ""),
        optional_number(end.next_time),
        end.not_before or 0,
        # One second is added, because scripts read whole seconds, and the current one has begun.
        end.wait + 1 if end.wait else 0,
        int(end.rest),
        int(end.remove),
        optional_number(end.retain),
        end.attempt,
        text(end.status),
        optional_text(end.reason),
    )


def text(value: str) -> bytes:
    """A required text as bytes; half of a surrogate pair cannot be encoded and becomes ``?``."""
    return value.encode(errors="replace")


def optional_text(value: str | bytes | None) -> bytes:
    """A text as an argument: ``=`` and the text; None becomes the empty argument."""
    if value is None:
        return b""
    return b"=" + (value if isinstance(value, bytes) else text(value))


def optional_number(value: int | None) -> Argument:
    """A number as an argument; None becomes the empty argument."""
    return "" if value is None else value


def row_of(answer: Sequence[Any]) -> Row:
    """Convert a row in the answer of a script; a column that cannot be read gets its default."""
    key, due, *columns = answer
    if len(answer) < _COMPLETE:
        reason = f"its row {_text(columns[0])}"
        return Row(_text(key), next_run_time=_time(due), status=QUARANTINED, reason=reason)
    (
        kind, data, cron, timezone, delay, next_time, owner, fence, settled_by, attempt, status,
        reason, version, created_at, alive_time, options, retain_until,
    ) = columns  # fmt: skip
    return Row(
        key=_text(key),
        type=DEFAULT_TYPE if kind is None else _text(kind),
        data=_payload(data),
        cron=_optional_text(cron),
        timezone=_optional_text(timezone),
        delay=_whole(delay) or 0,
        next_time=_whole(next_time),
        next_run_time=_time(due),
        owner=_optional_text(owner),
        fence=_whole(fence) or 0,
        settled_by=_optional_text(settled_by),
        attempt=_whole(attempt) or 0,
        status=WAITING if status is None else _text(status),
        reason=_optional_text(reason),
        version=1 if version is None else _whole(version) or 0,
        created_at=_whole(created_at),
        alive_time=_whole(alive_time),
        options=_payload(options),
        retain_until=_whole(retain_until),
    )


class Pages(Iterator[Row]):
    """Iterates over all rows: first those that wait or are leased, then those without a next run.

    This is not a generator, because an exception would end a generator. After the store was
    unavailable, the next call resumes at the row where the error occurred.

    Args:
        read: runs `scripts.PAGE` with these arguments: the set, the size of a page, and the score
            and the key of the previous page's last row.
    """

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._parts = ["rest", "due"]
        self._after: tuple[Argument, Argument] = ("", "")
        self._page: list[Any] = []  # in reverse order

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while not self._page:
            if not self._parts:
                raise StopIteration
            rows, done = self._read(self._parts[-1], PAGE, *self._after)
            if done:
                self._parts.pop()
                self._after = ("", "")
            else:
                self._after = (rows[-1][1] or "0", rows[-1][0])
            self._page = rows[::-1]
        return row_of(self._page.pop())


def _text(stored: bytes) -> str:
    return stored.decode(errors="replace")


def _optional_text(stored: bytes | None) -> str | None:
    return None if stored is None else _text(stored)


def _payload(stored: bytes | None) -> str | bytes | None:
    try:
        return None if stored is None else stored.decode()
    except UnicodeDecodeError:
        return stored


def _whole(stored: bytes | None) -> int | None:
    try:
        return None if stored is None else int(stored)
    except ValueError:
        return None


def _time(score: bytes | None) -> int | None:
    if score is None:
        return None
    seconds = float(score)
    return floor(seconds) if isfinite(seconds) else _LARGEST if seconds > 0 else -_LARGEST
