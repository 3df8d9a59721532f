"""Writes many rows in as few statements as the database accepts."""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar

from sqlalchemy import Connection, TextClause, text

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreSlowError
from psched.core.model import Row
from psched.stores import pages
from psched.stores.sql import raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.errors import InvalidValueError

T = TypeVar("T")
R = TypeVar("R")

_log = logging.getLogger("psched.store")

BATCH = 200
"""The most rows that one statement claims, extends or settles.

The limit keeps the number of the statement's parameters and row locks small.
"""

INSERT_BATCH = 500
"""The most rows that one statement inserts.

Each row binds at most eleven values, so a statement binds at most 5500 values. SQLite accepts at
most 32766 values in a statement, and PostgreSQL at most 65535.
"""

INSERT_SIZE = 1_000_000
"""The most characters of payload that one statement inserts, unless a single row has more.

MySQL and MariaDB refuse a statement that is larger than their ``max_allowed_packet``, which is by
default at least 16 MB. Even with four bytes for each character, a statement stays below this size.
"""


def write_in_batches(
    items: Sequence[T],
    write: Callable[[Sequence[T]], Mapping[str, R]],
    *,
    clock: Clock,
    patience: float,
) -> dict[str, R]:
    """Write items a batch at a time; skip an item with a value that does not fit its column.

    If one item of a batch does not fit, or is locked by another session, the batch is repeated item
    by item, so that the other items are written. Any other error does not concern a single item, so
    the error is raised at once, and the caller does not learn the results of earlier batches.
    """
    answered: dict[str, R] = {}
    busy: StoreBusyError | None = None
    give_up_at = clock.monotonic() + patience

    def attempt(batch: Sequence[T]) -> bool:
        nonlocal busy
        try:
            answered.update(write(batch))
        except InvalidValueError as error:
            if len(batch) == 1:
                _log.error("%s", error)  # the text names the cause
            return False
        except StoreBusyError as error:
            busy = error
            answered.update(error.answered)
            return False
        return True

    for batch in pages.batched(items, BATCH):
        if attempt(batch) or len(batch) == 1:
            continue
        for item in batch:
            if clock.monotonic() >= give_up_at:
                busy = busy or StoreSlowError("no time was left to write every item by itself")
                break
            attempt([item])
    if busy is not None and len(answered) < len(items):
        raise type(busy)(str(busy), answered)
    return answered


def insert_batches(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Split rows, in order, into batches that are small enough for one statement each."""
    return split(rows, lambda row: len(row.data or "") + len(row.options or ""))


def split(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """Split items, in order, into parts within the limits `INSERT_BATCH` and `INSERT_SIZE`."""
    return pages.split(items, size_of, most=INSERT_BATCH, largest=INSERT_SIZE)


class Insertion:
    """Inserts rows into a table, or builds the statements that do.

    A database that can read JSON as a table gets all rows as one value. PostgreSQL needs three
    times as long to parse the thousands of values of the other form, and its driver longer still to
    convert them, or an array for each column.

    Args:
        columns: the columns that each row gives, with their SQL types.
        same: SQL for the values of further columns, which are the same in all rows.
        ignore: the end of a statement that leaves out rows that exist already.
    """

    def __init__(
        self,
        table: str,
        columns: Mapping[str, str],
        same: Mapping[str, str],
        dialect: Dialect,
        quote: Callable[[str], str] = str,
        *,
        ignore: str = "",
    ) -> None:
        names = [*map(quote, columns)]
        constants = "".join(f", {value}" for value in same.values())
        head = f"INSERT INTO {table} ({', '.join([*names, *map(quote, same)])})"
        self._names = tuple(columns)
        self._head = f"{head} VALUES "
        self._row = f"({', '.join(f':{name}{{0}}' for name in columns)}{constants})"
        self._ignore = ignore
        self._values = text(self._head), text(self._row.format(""))
        self._json = None
        if dialect.reads_json:
            given = ", ".join(f"given.{name}" for name in names)
            declared = ", ".join(map(" ".join, zip(names, columns.values(), strict=True)))
            self._json = text(
                f"{head} SELECT {given}{constants}"  # noqa: S608
                f" FROM json_to_recordset(CAST(:rows AS JSON)) AS given ({declared}) {ignore}"
            )

    def send(
        self,
        connection: Connection,
        rows: Sequence[Sequence[Any]],
        **values: Any,  # noqa: ANN401
    ) -> None:
        """Insert rows, all or none, by the connection's driver."""
        if self._json is not None or len(rows) == 1:
            raw_execute.count(connection, *self.request(rows, **values))
        else:
            raw_execute.insert_many(connection, *self._values, rows, values)

    def request(self, rows: Sequence[Sequence[Any]], **values: Any) -> Request:  # noqa: ANN401
        """A request that inserts rows, all or none.

        For many rows, `send` is faster, unless the database gets JSON.
        """
        if self._json is not None:
            given = [dict(zip(self._names, row, strict=True)) for row in rows]
            return self._json, {"rows": json.dumps(given, ensure_ascii=False), **values}
        names = numbered(self._names, len(rows))
        bound = dict(zip(names, chain.from_iterable(rows), strict=True))
        statement = _insert_text(self._head, self._row, len(rows), self._ignore)
        return statement, {**bound, **values}


@lru_cache(maxsize=32)
def numbered(names: Sequence[str], count: int) -> Sequence[str]:
    """The names of the values of ``count`` rows: each name is followed by the number of its row."""
    return [f"{name}{i}" for i in range(count) for name in names]


@lru_cache(maxsize=64)
def _insert_text(head: str, row: str, count: int, ignore: str) -> TextClause:
    return text(f"{head}{', '.join(row.format(i) for i in range(count))} {ignore}")
