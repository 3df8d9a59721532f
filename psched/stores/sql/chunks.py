"""Many rows, in statements that every database takes."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from psched.core.model import Row

T = TypeVar("T")

ROWS = 500
"""In one statement at most. Each binds ten values; SQLite takes 32766 of them, PostgreSQL 65535."""

SIZE = 1_000_000
"""Characters of payload in one statement at most, unless one row has more: servers refuse what is
larger than their ``max_allowed_packet``, which is 16 MB or more."""


def in_chunks(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in their order, as many at a time as may go into one statement."""
    return divided(rows, lambda row: len(row.data or "") + len(row.options or ""))


def divided(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The same, of whatever holds a row whose payload has so many characters."""
    start = size = 0
    for end, item in enumerate(items):
        added = size_of(item)
        if end > start and (end - start == ROWS or size + added > SIZE):
            yield items[start:end]
            start, size = end, 0
        size += added
    if items:
        yield items[start:]
