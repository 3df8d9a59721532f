"""Rows as scripts are given and answer them."""

from collections.abc import Callable, Iterator, Sequence
from math import floor, isfinite
from typing import Any, Self

from psched.core.model import DEFAULT_TYPE, QUARANTINED, WAITING, Row, Settlement

Argument = bytes | str | int

PAGE = 200
"""Rows in one answer."""

_LARGEST = 2**63 - 1

_COMPLETE = 19
"""Elements of a row that could be read: its key, its time and its columns."""


def inserted(row: Row) -> Sequence[Argument]:
    """A new row, for `scripts.ADD`."""
    return (
        text(row.key),
        text(row.type),
        maybe(row.data),
        maybe(row.cron),
        maybe(row.timezone),
        row.delay,
        number(row.next_time),
        number(row.next_run_time),
        number(row.alive_time),
        maybe(row.options),
    )


def replaced(seen: Row, new: Row) -> Sequence[Argument]:
    """A changed row, and how it was, for `scripts.REPLACE`."""
    return (
        text(new.key),
        seen.version,
        seen.fence,
        text(seen.owner or ""),
        number(seen.next_run_time),
        text(seen.known_status or ""),
        text(new.type),
        maybe(new.data),
        maybe(new.cron),
        maybe(new.timezone),
        new.delay,
        number(new.next_time),
        number(new.next_run_time),
        text(new.status),
        maybe(new.reason),
        new.attempt,
        number(new.alive_time),
        maybe(new.options),
        number(new.created_at),
        number(new.retain_until),
    )


def settled(end: Settlement) -> Sequence[Argument]:
    """A settlement, for `scripts.SETTLE`."""
    return (
        text(end.key),
        text(end.token.owner),
        end.token.fence,
        end.version,
        text(end.seen_status or ""),
        number(end.next_time),
        end.not_before or 0,
        # The store's clock is read to the second that has begun.
        end.wait + 1 if end.wait else 0,
        int(end.rest),
        int(end.remove),
        number(end.retain),
        end.attempt,
        text(end.status),
        maybe(end.reason),
    )


def text(value: str) -> bytes:
    """A text that is there; half a character is no text, and stored nowhere."""
    return value.encode(errors="replace")


def maybe(value: str | bytes | None) -> bytes:
    """A text, or none."""
    if value is None:
        return b""
    return b"=" + (value if isinstance(value, bytes) else text(value))


def number(value: int | None) -> Argument:
    """A number, or none."""
    return "" if value is None else value


def row_of(answer: Sequence[Any]) -> Row:
    """A row as a script has read it; what cannot be read has its default."""
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
        cron=_maybe(cron),
        timezone=_maybe(timezone),
        delay=_whole(delay) or 0,
        next_time=_whole(next_time),
        next_run_time=_time(due),
        owner=_maybe(owner),
        fence=_whole(fence) or 0,
        settled_by=_maybe(settled_by),
        attempt=_whole(attempt) or 0,
        status=WAITING if status is None else _text(status),
        reason=_maybe(reason),
        version=1 if version is None else _whole(version) or 0,
        created_at=_whole(created_at),
        alive_time=_whole(alive_time),
        options=_payload(options),
        retain_until=_whole(retain_until),
    )


class Pages(Iterator[Row]):
    """Every row, those due first, those at rest last.

    Not a generator: when the store has been away, it goes on where it was.

    Args:
        read: asks for a page: the part, its size, and the time and the key after which it
            begins; answers rows, and whether they were the last.
    """

    def __init__(self, read: Callable[..., Any]) -> None:
        self._read = read
        self._parts = ["rest", "due"]
        self._after: tuple[Argument, Argument] = ("", "")
        self._page: list[Any] = []  # the last one comes first

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


def _maybe(stored: bytes | None) -> str | None:
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
