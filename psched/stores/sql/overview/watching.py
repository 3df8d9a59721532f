"""The statements that read the rows of `psched.core.alerts.watching.WatchesRows`, as SQL text."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import TextClause, text

from psched.core.alerts.watching import MOST_LEASED, ActiveRows, Place, RowPage
from psched.core.model import Row
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns

Query = Callable[[TextClause, Mapping[str, Any]], Sequence[Columns]]
"""A function that sends a statement with its values; returns the rows of its result."""

_BATCH = 200
"""The most keys in one statement."""


class WatchingStatements:
    """Each statement reads rows through one index, and never more than it returns.

    Only `page` also reads the rows that do not contain the wanted text.

    Args:
        table: the table's name, quoted for the database.
        columns: SQL for the columns of a row, without its data.
        dialect: contains the SQL fragments that differ between databases.
    """

    def __init__(self, table: str, columns: str, dialect: Dialect) -> None:
        now = dialect.now_floor
        self._select = f"SELECT {columns} FROM {table} WHERE"  # noqa: S608  # values are bound
        select, in_time = self._select, "ORDER BY next_run_time, id LIMIT :limit"
        self.now = text(f"SELECT {dialect.now}")
        self.leased = text(f"{select} leased_by IS NOT NULL LIMIT {MOST_LEASED}")
        due = f"{select} next_run_time <= {now}"
        self.first_due = text(f"{due} {in_time}")
        after = dialect.after.format("next_run_time", "id", ":time", dialect.text.format(":id"))
        self.due = text(f"{due} AND {after} {in_time}")
        key = dialect.text.format
        self._begins, self._ends = f"id > {key(':begin')}", f"id <= {key(':end')}"
        # Converted to text, because SQLite finds nothing in bytes.
        self._mentions = f"{key('options')} LIKE :mentioned"
        # The stored bytes, because a key that is not UTF-8 would be decoded to a different key.
        place = dialect.payload.format("id")
        self._end = f"SELECT {place} FROM {table} WHERE {{}} ORDER BY id LIMIT 1 OFFSET :skipped"  # noqa: S608

    def active(self, query: Query, after: Place | None, limit: int) -> ActiveRows:
        """Read the rows that run or are due; see `WatchesRows.active_rows`."""
        ((now,),) = query(self.now, {})
        leased = _rows(query(self.leased, {}))
        if after is None:
            due = query(self.first_due, {"limit": limit})
        else:
            time, key = after
            due = query(self.due, {"limit": limit, "time": time, "id": key})
        return ActiveRows(now=float(now), leased=leased, due=_rows(due))

    def page(self, query: Query, begin: object, limit: int, mentioning: str | None) -> RowPage:
        """Read a page of all rows in the order of their keys; see `WatchesRows.row_page`."""
        values: dict[str, Any] = {}
        conditions = ["1 = 1"]
        if begin is not None:
            values["begin"] = begin
            conditions.append(self._begins)
        ends = query(_where(self._end, *conditions), {**values, "skipped": limit - 1})
        if ends:
            values["end"] = ends[0][0]
            conditions.append(self._ends)
        if mentioning is not None:
            values["mentioned"] = f"%{mentioning}%"
            conditions.append(self._mentions)
        found = query(_where(f"{self._select} {{}}", *conditions), values)
        return RowPage(rows=_rows(found), following=ends[0][0] if ends else None)

    def of_keys(self, query: Query, keys: Sequence[str]) -> Mapping[str, Row]:
        """Read the rows with these keys; see `WatchesRows.light_rows`."""
        found = dict[str, Row]()
        for start in range(0, len(keys), _BATCH):
            batch = keys[start : start + _BATCH]
            values = {f"id{number}": key for number, key in enumerate(batch)}
            statement = _of_keys(self._select, len(batch))
            found |= {row.key: row for row in _rows(query(statement, values))}
        return found


@lru_cache(maxsize=512)
def _of_keys(select: str, number: int) -> TextClause:
    return text(f"{select} id IN ({', '.join(f':id{each}' for each in range(number))})")


@lru_cache(maxsize=64)
def _where(statement: str, *conditions: str) -> TextClause:
    return text(statement.format(" AND ".join(conditions)))


def _rows(found: Sequence[Columns]) -> list[Row]:
    return [Row(*columns) for columns in found]
