"""Reads rows without their data in Redis: what runs, what is due and what is next."""

from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import override

from psched.core.alerts.watching import MOST_LEASED, ActiveRows, Place, ReadsLightly, RowPage
from psched.core.model import PAUSED, RUNNING, Row
from psched.core.operations.overview import COUNTED, DUE, MOST_COUNTED, Overview, made_of
from psched.stores.pages import batched
from psched.stores.redis import encoding
from psched.stores.redis.connector import Connector
from psched.stores.redis.encoding import Argument

_BATCH = 200
"""The most rows that are due or leased, or rows by their keys, that one run of the script reads."""

_MOST_READ = 500
"""The most leased rows, and the most resting rows, that `RedisGlances.overview` reads."""

_LARGEST_PAGE = 1000
"""About the most rows that the script looks at for a page."""


class RedisGlances(ReadsLightly):
    """Reads rows without their data, as `ReadsLightly` describes."""

    def __init__(self, connector: Connector) -> None:
        self._connector = connector

    @override
    def overview(self, limit: int) -> Overview:
        # There is no index of statuses. If many rows rest, the number of those with each status is
        # not known, and paused rows are left out.
        seconds, microseconds, held, due, resting, *found = self._connector.run(
            "overview", min(limit, _BATCH), _MOST_READ
        )
        leased, late, following, rest = ([*map(encoding.row_of, rows)] for rows in found)
        counts = {RUNNING: min(held, MOST_COUNTED), DUE: min(due, MOST_COUNTED)}
        if resting <= _MOST_READ:
            counts |= {each: sum(row.status == each for row in rest) for each in COUNTED}
        return made_of(
            encoding.seconds_of(seconds, microseconds),
            leased=leased,
            due=late,
            following=following,
            paused=[row for row in rest if row.status == PAUSED],
            counts=counts,
            limit=limit,
        )

    @override
    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        # More than one request is sent for each kind of rows if there are many of them.
        now, due = 0.0, list[Row]()
        while True:
            most = min(_BATCH, limit - len(due))
            place = ("", "") if after is None else (after[0], encoding.text(after[1]))
            seconds, microseconds, found = self._watch("due", most, *place)
            now = now or encoding.seconds_of(seconds, microseconds)
            rows = _rows(found)
            due += rows
            if len(rows) < _BATCH or len(due) >= limit:
                return ActiveRows(now=now, leased=self._leased(), due=due)
            after = rows[-1].next_run_time or 0, rows[-1].key

    def _leased(self) -> Sequence[Row]:
        # By their keys, because a row that gets another owner meanwhile can be on two pages.
        leased, place = dict[str, Row](), b""
        while len(leased) < MOST_LEASED:
            most = min(_BATCH, MOST_LEASED - len(leased))
            place, found = self._watch("leased", most, place)
            leased |= {row.key: row for row in _rows(found)}
            if not place:
                break
        return [*leased.values()]

    @override
    def row_page(self, begin: object, limit: int, mentioning: str | None) -> RowPage:
        part, cursor = begin if isinstance(begin, tuple) else (b"due", b"0")
        following, cursor, found = self._watch(
            "page", part, cursor, min(limit, _LARGEST_PAGE), mentioning or ""
        )
        return RowPage(rows=_rows(found), following=(following, cursor) if following else None)

    @override
    def light_rows(self, keys: Sequence[str]) -> Mapping[str, Row]:
        found = dict[str, Row]()
        for batch in batched(keys, _BATCH):
            rows = _rows(self._watch("keys", *map(encoding.text, batch)))
            found |= {row.key: row for row in rows}
        return found

    def _watch(self, *arguments: Argument) -> Any:  # noqa: ANN401  # the answer of the script
        return self._connector.run("watch", *arguments)


def _rows(found: Sequence[Any]) -> list[Row]:
    return [*map(encoding.row_of, found)]
