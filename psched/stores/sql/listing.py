"""Reading a whole table page by page, with short queries and little memory whatever its size."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import TextClause
from typing_extensions import override

from psched.core.model import Row

PAGE = 500
"""Rows in one query at most."""

FIRST_PAGE = 20
"""Rows in the first query, because the size of the rows is not known yet."""

_GROWTH = 4

SIZE = 4_000_000
"""Bytes of payload that a page should have at most, as estimated from the page before it."""

Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Sends a statement with its values, and returns the rows of its result."""


class Listing(Iterator[Row]):
    """Every row, one part of the table after the other.

    Not a generator, so that it can continue after the store was unavailable for a while.

    Args:
        read: reads from the store; what it raises is passed on.
        parts: for each part of the table the statement for its first page, and the statement for
            the page after a row, which is given as ``:id`` and, if it has a time, ``:time``. Both
            return the stored bytes of the key, the time, and the arguments of ``row_of``. (A key
            that is not text would be read as a different key, and the next page would begin
            elsewhere.)
        row_of: makes a row of what was read of it.
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
        self._page: list[Row] = []  # in reverse: the next row is popped from its end
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
        if found:
            size = 1 + sum(len(row.data or "") for row in self._page)
            self._limit = min(PAGE, _GROWTH * limit, max(1, SIZE * len(found) // size))
        if len(found) < limit:
            self._after = {}
            self._parts.popleft()
            return
        key, time, *_ = found[-1]
        self._after = {"id": key} if time is None else {"id": key, "time": time}
