"""Reads a whole table page by page, so that queries are short and memory use stays small."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import TextClause
from typing_extensions import override

from psched.core.model import Row

PAGE = 500
"""The most rows that one query returns."""

FIRST_PAGE = 20
"""The most rows that the first query returns: few, because the size of a row is still unknown."""

_GROWTH = 4

SIZE = 4_000_000
"""The most bytes of payload that a page should have.

The number of rows of a page is estimated from the size of the rows of the previous page.
"""


def next_limit(limit: int, rows: Sequence[Row]) -> int:
    """The number of rows of the next page, given the limit and the rows of the last page."""
    if not rows:
        return limit
    size = 1 + sum(len(row.data or "") + len(row.options or "") for row in rows)
    return min(PAGE, _GROWTH * limit, max(1, SIZE * len(rows) // size))


Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""A function that sends a statement with its values, and returns the rows of its result."""


class Listing(Iterator[Row]):
    """Iterates over every row, one part of the table after the other.

    This class is not a generator, because an exception ends a generator. If a page cannot be read,
    ``next`` raises an exception, and the next call of ``next`` reads this page again.

    Args:
        read: sends a statement to the store; ``next`` passes on its exceptions.
        parts: two statements for each part of the table. The first reads the first page; the second
            reads the page after the row whose key is bound as ``:id`` and whose time, if it is not
            NULL, is bound as ``:time``. Both return the stored bytes of the key, the time, and the
            arguments of ``row_of``. The key is returned as bytes, because a key that is not UTF-8
            would be decoded to a different key, and the next page would begin at the wrong row.
        row_of: builds a row from the columns that were read.
    """

    def __init__(
        self,
        read: Read,
        parts: Sequence[tuple[TextClause, TextClause]],
        row_of: Callable[..., Row],
    ) -> None:
        self._read = read
        self._parts = deque(parts)
        self._row_of = row_of
        self._after: dict[str, Any] = {}
        self._page: list[Row] = []  # in reverse order: the next row is the last element
        self._limit = min(FIRST_PAGE, PAGE)

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> Row:
        while not self._page:
            if not self._parts:
                raise StopIteration
            self._read_page(*self._parts[0])
        return self._page.pop()

    def _read_page(self, first: TextClause, following: TextClause) -> None:
        statement, limit = following if self._after else first, self._limit
        found = self._read(statement, {**self._after, "limit": limit})
        self._page = [self._row_of(*columns) for _, _, *columns in reversed(found)]
        self._limit = next_limit(limit, self._page)
        if len(found) < limit:
            self._after = {}
            self._parts.popleft()
            return
        key, time, *_ = found[-1]
        self._after = {"id": key} if time is None else {"id": key, "time": time}
