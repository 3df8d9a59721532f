"""Reading a whole table in pages: short queries, whatever its size, and little memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from sqlalchemy import TextClause

from psched.backends.statements import Statements
from psched.model import Row

PAGE = 500
"""Rows in one query."""

Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""Sends a statement with its values; the rows that it returns."""


class Listing(Iterator[Row]):
    """Every row, those due first, those at rest last.

    Not a generator: when the store has been away, it goes on where it was.

    Args:
        read: reads from the store; what it raises is passed on.
        sql: the table's statements.
    """

    def __init__(self, read: Read, sql: Statements) -> None:
        self._read = read
        self._sql = sql
        self._next: TextClause | None = sql.first_timed
        self._at: dict[str, Any] = {}
        self._page: list[Row] = []  # the last one comes first

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        while not self._page:
            if self._next is None:
                raise StopIteration
            self._turn(self._next)
        return self._page.pop()

    def _turn(self, statement: TextClause) -> None:
        """Read a page, and find out which is the next."""
        sql = self._sql
        found = self._read(statement, {**self._at, "limit": PAGE})
        self._page = [Row(*columns) for _, *columns in reversed(found)]
        timed = statement in (sql.first_timed, sql.timed)
        if len(found) == PAGE:
            self._at = {"id": found[-1][0]}
            if timed:
                self._at["time"] = self._page[0].next_run_time
            self._next = sql.timed if timed else sql.resting
        else:
            self._at, self._next = {}, sql.first_resting if timed else None
