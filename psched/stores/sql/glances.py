"""Reads rows without their data, in a few cheap requests: what runs, what is due and what is next.

Each statement reads rows through one index, and never more than it returns or counts. There are two
exceptions: the statement of the rows that fall due later also reads past the leased rows, and those
of `SqlGlances.row_page` also read the rows that do not contain the wanted text.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause, text
from typing_extensions import override

from psched.base.clock import Clock
from psched.core.alerts.watching import MOST_LEASED, ActiveRows, Place, ReadsLightly, RowPage
from psched.core.model import PAUSED, RUNNING, Row
from psched.core.operations.overview import COUNTED, DUE, MOST_COUNTED, Overview, made_of
from psched.stores.pages import batched
from psched.stores.sql.claims import EVERYWHERE
from psched.stores.sql.conditions import by_keys
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.selecting import AT_REST
from psched.stores.sql.side_tables import Where, cached_text
from psched.stores.sql.statements import COLUMNS

_LONG, _PAUSE = 0.2, 20
"""If a search for due rows takes so many seconds, it begins there for so many times as long."""

_BATCH = 200
"""The most keys in one statement."""


class SqlGlances(ReadsLightly):
    """Reads rows without their data, as `ReadsLightly` describes."""

    def __init__(
        self,
        table: str,
        dialect: Dialect,
        query: Callable[[TextClause, Mapping[str, Any]], Sequence[Columns]],
        clock: Clock,
    ) -> None:
        self._query = query
        self._clock = clock
        self._front = EVERYWHERE.after
        self._next_look = 0.0
        now, key = dialect.now_floor, dialect.text.format
        light = dict.fromkeys(("data", "options"), "NULL")
        with_options = {**light, "options": dialect.payload.format("options")}
        shown, judged = (
            f"SELECT {', '.join(read.get(name, name) for name in COLUMNS)} FROM {table}"
            for read in (light, with_options)
        )
        after = dialect.after.format("next_run_time", "id", ":time", key(":id"))
        leased = "WHERE leased_by IS NOT NULL LIMIT :limit"
        due = f"WHERE next_run_time <= {now} AND {after}"
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

        # Just before the first due row, or else a little before the present time.
        self._place_of_due = text(
            f"SELECT COALESCE((SELECT next_run_time FROM {table} {due} ORDER BY next_run_time, id"
            f" LIMIT 1), {now} - 1) - 1"
        )
        self._now = text(f"SELECT {dialect.now}")
        self._judged = judged
        self._judged_leased = text(f"{judged} {leased}")
        self._judged_due = text(f"{judged} {due} {in_time}")
        self._begins, self._ends = f"id > {key(':begin')}", f"id <= {key(':end')}"
        # Converted to text, because SQLite finds nothing in bytes.
        self._mentions = f"{key('options')} LIKE :mentioned"
        # The stored bytes, because a key that is not UTF-8 would be decoded to a different key.
        self._keys = f"SELECT {dialect.payload.format('id')} FROM {table}"

    def _rows(self, statement: TextClause, **values: object) -> list[Row]:
        return [Row(*columns) for columns in self._query(statement, values)]

    def _front_of_due(self) -> Mapping[str, Any]:
        """The place after which all due rows are, as far as is known.

        A search from the beginning passes what the database keeps of rows that were due, see
        `psched.stores.sql.claim_range`. If that takes long, it is seldom repeated, so that a row
        which is given an early time meanwhile is seen late.
        """
        begun = self._clock.monotonic()
        if begun >= self._next_look:
            time, key = EVERYWHERE.after
            found = self._query(self._place_of_due, {"time": time, "id": key})
            took = self._clock.monotonic() - begun
            self._front = EVERYWHERE.after
            if took >= _LONG:
                self._front = found[0][0], ""
                self._next_look = begun + _PAUSE * took
        time, key = self._front
        return {"time": time, "id": key}

    @override
    def overview(self, limit: int) -> Overview:
        front = self._front_of_due()
        ((now, *counts),) = self._query(self._counts, front)
        leased = self._rows(self._leased, limit=MOST_COUNTED)
        numbers = {name: int(count) for name, count in zip((DUE, *COUNTED), counts, strict=True)}
        return made_of(
            float(now),
            leased=leased,
            due=self._rows(self._due, limit=limit, **front),
            following=self._rows(self._following, limit=limit),
            paused=self._rows(self._paused, limit=limit),
            counts={**numbers, RUNNING: len(leased)},
            limit=limit,
        )

    @override
    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        ((now,),) = self._query(self._now, {})
        leased = self._rows(self._judged_leased, limit=MOST_LEASED)
        place = self._front_of_due() if after is None else {"time": after[0], "id": after[1]}
        due = self._rows(self._judged_due, limit=limit, **place)
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
        for batch in batched(keys, _BATCH):
            statement, values = by_keys(f"{self._judged} WHERE ", batch)
            found |= {row.key: row for row in self._rows(statement, **values)}
        return found
