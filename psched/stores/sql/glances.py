"""Reads rows without their data, in a few cheap requests: what runs, what is due and what is next.

Each statement reads rows through one index, and never more than it returns or counts. There are two
exceptions: the statement of the rows that fall due later also reads past the leased rows, and those
of `SqlGlances.row_page` also read the rows that do not contain the wanted text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, text
from typing_extensions import override

from psched.core.alerts.watching import MOST_LEASED, ActiveRows, Place, ReadsLightly, RowPage
from psched.core.model import PAUSED, RUNNING, Row
from psched.core.operations.overview import COUNTED, DUE, MOST_COUNTED, Overview, made_of
from psched.stores.sql.conditions import by_keys
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.selecting import AT_REST
from psched.stores.sql.side_tables import Where, cached_text
from psched.stores.sql.statements import COLUMNS

_BATCH = 200
"""The most keys in one statement."""


class SqlGlances(ReadsLightly):
    """Reads rows without their data, as `ReadsLightly` describes."""

    def __init__(
        self,
        table: str,
        dialect: Dialect,
        query: Callable[[TextClause, Mapping[str, Any]], Sequence[Columns]],
    ) -> None:
        self._query = query
        now, key = dialect.now_floor, dialect.text.format
        light = dict.fromkeys(("data", "options"), "NULL")
        with_options = {**light, "options": dialect.payload.format("options")}
        shown, judged = (
            f"SELECT {', '.join(read.get(name, name) for name in COLUMNS)} FROM {table}"
            for read in (light, with_options)
        )
        leased, due = "WHERE leased_by IS NOT NULL LIMIT :limit", f"WHERE next_run_time <= {now}"
        in_time = "ORDER BY next_run_time, id LIMIT :limit"
        # The column is hidden, so that the planner uses the index of times: most rows have no
        # owner.
        free = f"{dialect.exact.format('leased_by')} IS NULL"
        resting = f"WHERE status = '{{}}' AND {AT_REST}".format
        self._leased = text(f"{shown} {leased}")
        self._due = text(f"{shown} {due} {in_time}")
        self._following = text(f"{shown} WHERE next_run_time > {now} AND {free} {in_time}")
        self._paused = text(f"{shown} {resting(PAUSED)} ORDER BY id LIMIT :limit")
        counts = ", ".join(
            f"(SELECT COUNT(*) FROM (SELECT 1 FROM {table} {condition}"
            f" LIMIT {MOST_COUNTED}) AS counted{i})"
            for i, condition in enumerate([due, *map(resting, COUNTED)])
        )
        self._counts = text(f"SELECT {dialect.now}, {counts}")

        self._now = text(f"SELECT {dialect.now}")
        self._judged = judged
        self._judged_leased = text(f"{judged} {leased}")
        self._first_due = text(f"{judged} {due} {in_time}")
        after = dialect.after.format("next_run_time", "id", ":time", key(":id"))
        self._due_after = text(f"{judged} {due} AND {after} {in_time}")
        self._begins, self._ends = f"id > {key(':begin')}", f"id <= {key(':end')}"
        # Converted to text, because SQLite finds nothing in bytes.
        self._mentions = f"{key('options')} LIKE :mentioned"
        # The stored bytes, because a key that is not UTF-8 would be decoded to a different key.
        self._keys = f"SELECT {dialect.payload.format('id')} FROM {table}"

    def _rows(self, statement: TextClause, **values: object) -> list[Row]:
        return [Row(*columns) for columns in self._query(statement, values)]

    @override
    def overview(self, limit: int) -> Overview:
        ((now, *counts),) = self._query(self._counts, {})
        leased = self._rows(self._leased, limit=MOST_COUNTED)
        numbers = {name: int(count) for name, count in zip((DUE, *COUNTED), counts, strict=True)}
        return made_of(
            float(now),
            leased=leased,
            due=self._rows(self._due, limit=limit),
            following=self._rows(self._following, limit=limit),
            paused=self._rows(self._paused, limit=limit),
            counts={**numbers, RUNNING: len(leased)},
            limit=limit,
        )

    @override
    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        ((now,),) = self._query(self._now, {})
        leased = self._rows(self._judged_leased, limit=MOST_LEASED)
        if after is None:
            due = self._rows(self._first_due, limit=limit)
        else:
            due = self._rows(self._due_after, limit=limit, time=after[0], id=after[1])
        return ActiveRows(now=float(now), leased=leased, due=due)

    @override
    def row_page(self, begin: object, limit: int, mentioning: str | None) -> RowPage:
        where = Where()
        where.add("1 = 1")
        where.add(self._begins, begin=begin)
        last = cached_text(f"{self._keys}{where} ORDER BY id LIMIT 1 OFFSET :skipped")
        ends = self._query(last, {**where.values, "skipped": limit - 1})
        following = ends[0][0] if ends else None
        where.add(self._ends, end=following)
        if mentioning is not None:
            where.add(self._mentions, mentioned=f"%{mentioning}%")
        found = self._rows(cached_text(f"{self._judged}{where}"), **where.values)
        return RowPage(rows=found, following=following)

    @override
    def light_rows(self, keys: Sequence[str]) -> Mapping[str, Row]:
        found = dict[str, Row]()
        for start in range(0, len(keys), _BATCH):
            statement, values = by_keys(f"{self._judged} WHERE ", keys[start : start + _BATCH])
            found |= {row.key: row for row in self._rows(statement, **values)}
        return found
