"""The rows that the judge of expectations looks at, in Redis."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.core.alerts.watching import MOST_LEASED, ActiveRows, Place, RowPage
from psched.core.model import Row
from psched.stores.redis import encoding, scripts
from psched.stores.redis.alert_store import AlertStore
from psched.stores.redis.encoding import Argument

_BATCH = 200
"""The most rows that are due or leased, or rows by their keys, that one run of the script reads."""

_LARGEST_PAGE = 1000
"""About the most rows that it looks at for a page."""


class WatchStore(AlertStore):
    """A store in Redis that reads rows without their data, as `WatchesRows` describes."""

    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        """Read what runs or is due, as `WatchesRows.active_rows` describes.

        More than one request is sent for each kind of rows if there are many of them.
        """
        now, due = 0.0, list[Row]()
        while True:
            most = min(_BATCH, limit - len(due))
            place = ("", "") if after is None else (after[0], encoding.text(after[1]))
            seconds, microseconds, found = self._watch("due", most, *place)
            now = now or int(seconds) + int(microseconds) / 1e6
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

    def row_page(self, begin: object, limit: int, mentioning: str | None) -> RowPage:
        """Read a page of all rows in any order, as `WatchesRows.row_page` describes."""
        part, cursor = begin if isinstance(begin, tuple) else (b"due", b"0")
        following, cursor, found = self._watch(
            "page", part, cursor, min(limit, _LARGEST_PAGE), mentioning or ""
        )
        return RowPage(rows=_rows(found), following=(following, cursor) if following else None)

    def light_rows(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """Read rows without their data, as `WatchesRows.light_rows` describes."""
        found = dict[str, Row]()
        for start in range(0, len(keys), _BATCH):
            batch = map(encoding.text, keys[start : start + _BATCH])
            found |= {row.key: row for row in _rows(self._watch("keys", *batch))}
        return found

    def _watch(self, *arguments: Argument) -> Any:  # noqa: ANN401  # the answer of the script
        return self._connector.run(scripts.WATCH, *arguments, writing=False)


def _rows(found: Sequence[Any]) -> list[Row]:
    return [*map(encoding.row_of, found)]
