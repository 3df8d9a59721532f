"""The statements that claim rows by their keys, as SQL text.

As in `psched.stores.sql.statements`, only the table's name, which the configuration restricts to a
plain identifier, and fragments of SQL are interpolated; values are bound.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import TextClause, text

from psched.core.model import MARKS, Row
from psched.stores.sql.by_key.conditions import Request, by_keys, fulfils
from psched.stores.sql.dialects import Dialect

_MARKS = ", ".join(f"'{mark}'" for mark in MARKS)

# The owner is compared, too, because the holder of a lease that has ended can still settle the row,
# and perhaps leaves its other values as they are. `+ 0` keeps the planner from using the index of
# times.
_AS_SEEN = (
    "id = :id{0} AND fence = :fence{0} AND version = :version{0}"
    " AND COALESCE(owner, '') = :seen_owner{0} AND COALESCE(next_run_time + 0, -1) = :due{0}"
)


class FreeRow(NamedTuple):
    """A row that can be claimed.

    Attributes:
        row: the row as it was read.
        place: the value of the column `Dialect.place` when the row was read.
        attempt: the row's ``attempt`` during the lease.
    """

    row: Row
    place: object
    attempt: int


class KeyStatements:
    """The statements that read and claim rows of one table by their keys.

    Args:
        table: the table's name, quoted for the database.
        columns: SQL for the columns of a row.
        dialect: contains the SQL fragments that differ between databases.
        leased: the assignments of the columns that depend on the time of a claim.
    """

    def __init__(self, table: str, columns: str, dialect: Dialect, *, leased: str) -> None:
        self._free = (
            f"SELECT {columns}, {dialect.place}, {dialect.now}, {dialect.read_only} FROM {table}"
            f" WHERE status NOT IN ({_MARKS})"
            f" AND (owner IS NULL OR next_run_time + 0 <= {dialect.now_floor}) AND "
        )
        self._claim = f"UPDATE {table} SET owner = :owner, fence = fence + 1, {leased}, attempt = "
        self._attempt = dialect.integer.format(":attempt{0}")
        self._place = dialect.place

    def free(self, keys: Sequence[str]) -> Request:
        """A request that reads those rows that are neither leased nor marked.

        The rows have the same columns as those of `Statements.due`.
        """
        return by_keys(self._free, keys)

    def claim(self, owner: str, rows: Sequence[FreeRow]) -> Request:
        """A request that claims each given row that is still as it was read."""
        values: dict[str, Any] = {"owner": owner}
        for i, (row, place, attempt) in enumerate(rows):
            values |= {
                f"{self._place}{i}": place,
                f"id{i}": row.key,
                f"fence{i}": row.fence,
                f"version{i}": row.version,
                f"seen_owner{i}": row.owner or "",
                f"due{i}": -1 if row.next_run_time is None else row.next_run_time,
                f"attempt{i}": attempt,
            }
        return _claim_text(self._claim, self._attempt, len(rows), self._place), values


@lru_cache(maxsize=64)
def _claim_text(head: str, attempt: str, count: int, place: str) -> TextClause:
    attempts = " ".join(f"WHEN :{place}{i} THEN {attempt.format(i)}" for i in range(count))
    return text(f"{head}CASE {place} {attempts} END WHERE {fulfils(_AS_SEEN, count, place)}")
