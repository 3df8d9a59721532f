"""SQL that inserts one row, or many with one statement."""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy import Connection, TextClause, text

from psched.stores.sql import raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.dialects import Dialect


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
