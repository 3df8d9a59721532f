"""The statements that read `psched.core.operations.overview.Overview`, as SQL text."""

from collections.abc import Callable, Sequence

from sqlalchemy import TextClause, text

from psched.core.model import PAUSED, RUNNING, Row
from psched.core.operations.overview import COUNTED, DUE, MOST_COUNTED, Overview, made_of
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.selecting import AT_REST


class OverviewStatements:
    """Each statement reads rows through one index, and never more than it returns or counts.

    Only `following` also reads past the leased rows.

    Args:
        table: the table's name, quoted for the database.
        columns: SQL for the columns of a row, without the payloads.
        dialect: contains the SQL fragments that differ between databases.
    """

    def __init__(self, table: str, columns: str, dialect: Dialect) -> None:
        now = dialect.now_floor
        select = f"SELECT {columns} FROM {table} WHERE"  # noqa: S608  # values are bound
        in_time = "ORDER BY next_run_time, id LIMIT :limit"
        self.leased = text(f"{select} leased_by IS NOT NULL LIMIT :limit")
        self.due = text(f"{select} next_run_time <= {now} {in_time}")
        # The column is hidden, so that the planner uses the index of times: most rows have no
        # owner.
        free = f"{dialect.exact.format('leased_by')} IS NULL"
        self.following = text(f"{select} next_run_time > {now} AND {free} {in_time}")
        self.paused = text(f"{select} status = '{PAUSED}' AND {AT_REST} ORDER BY id LIMIT :limit")
        conditions = [f"next_run_time <= {now}"]
        conditions += [f"status = '{status}' AND {AT_REST}" for status in COUNTED]
        counts = ", ".join(
            f"(SELECT COUNT(*) FROM (SELECT 1 FROM {table} WHERE {condition}"  # noqa: S608
            f" LIMIT {MOST_COUNTED}) AS counted{i})"
            for i, condition in enumerate(conditions)
        )
        self.counts = text(f"SELECT {dialect.now}, {counts}")

    def read(
        self, query: Callable[[TextClause, dict[str, int]], Sequence[Columns]], limit: int
    ) -> Overview:
        """Read the overview."""
        now, *counts = query(self.counts, {})[0]

        def rows(statement: TextClause, most: int) -> list[Row]:
            return [Row(*columns) for columns in query(statement, {"limit": most})]

        leased = rows(self.leased, MOST_COUNTED)
        numbers = {name: int(count) for name, count in zip((DUE, *COUNTED), counts, strict=True)}
        return made_of(
            float(now),
            leased=leased,
            due=rows(self.due, limit),
            following=rows(self.following, limit),
            paused=rows(self.paused, limit),
            counts={**numbers, RUNNING: len(leased)},
            limit=limit,
        )
