"""Reading a whole table in pages: short queries, whatever its size, and little memory."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import TextClause

from psched.core.model import Row

PAGE = 500
"""Rows in one query at most."""

FIRST_PAGE = 20
"""Rows in the first one, when nobody knows yet how large they are."""

_GROWTH = 4

SIZE = 4_000_000
"""Bytes of payload that a page is to have at most, judged by the page before it."""

Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Sends a statement with its values; the rows that it returns."""


class Listing(Iterator[Row]):
    """Every row, part by part of the table.

    Not a generator: when the store has been away, it goes on where it was.

    Args:
        read: reads from the store; what it raises is passed on.
        parts: for each part of the table the statement for its first page, and that for the page
            after a row, which is given as ``:id`` and, if it has one, ``:time``. They return the
            key as it is stored (what is no text reads otherwise, and the next page would begin
            elsewhere), the time, and what `understand` takes.
        understand: makes a row of what was read of it.
    """

    def __init__(
        self,
        read: Read,
        parts: Sequence[tuple[TextClause, TextClause]],
        understand: Callable[..., Row],
    ) -> None:
        self._read = read
        self._parts = deque(parts)
        self._understand = understand
        self._after: dict[str, Any] = {}
        self._page: list[Row] = []  # the last one comes first
        self._limit = min(FIRST_PAGE, PAGE)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while not self._page:
            if not self._parts:
                raise StopIteration
            self._turn(*self._parts[0])
        return self._page.pop()

    def _turn(self, first: TextClause, following: TextClause) -> None:
        """Read a page, and find out which is the next."""
        statement, limit = following if self._after else first, self._limit
        found = self._read(statement, {**self._after, "limit": limit})
        self._page = [self._understand(*columns) for _, _, *columns in reversed(found)]
        if found:
            size = 1 + sum(len(row.data or "") for row in self._page)
            self._limit = min(PAGE, _GROWTH * limit, max(1, SIZE * len(found) // size))
        if len(found) < limit:
            self._after = {}
            self._parts.popleft()
            return
        key, time, *_ = found[-1]
        self._after = {"id": key} if time is None else {"id": key, "time": time}
