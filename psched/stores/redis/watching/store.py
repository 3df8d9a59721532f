"""The rows that the judge of expectations looks at, in Redis."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.core.alerts.watching import ActiveRows, Place, RowPage
from psched.core.model import Row
from psched.stores.redis import encoding, scripts
from psched.stores.redis.alert_store import AlertStore
from psched.stores.redis.encoding import Argument

_BATCH = 200
"""The most due rows, or rows by their keys, that one run of the script reads."""

_MOST_LEASED = 500
"""The most leased rows that it reads."""

_LARGEST_PAGE = 1000
"""About the most rows that it looks at for a page."""


class WatchStore(AlertStore):
    """A store in Redis that reads rows without their data, as `WatchesRows` describes."""

    def active_rows(self, after: Place | None, limit: int) -> ActiveRows:
        """Read what runs or is due, as `WatchesRows.active_rows` describes.

        More than one request is sent if there are many due rows. Of many leased rows, some are left
        out.
        """
        now, leased, due = 0.0, list[Row](), list[Row]()
        while True:
            most = min(_BATCH, limit - len(due))
            place = ("", "") if after is None else (after[0], encoding.text(after[1]))
            seconds, microseconds, held, found = self._watch("active", _MOST_LEASED, most, *place)
            if not due:
                now, leased = int(seconds) + int(microseconds) / 1e6, _rows(held)
            rows = _rows(found)
            due += rows
            if len(rows) < _BATCH or len(due) >= limit:
                return ActiveRows(now=now, leased=leased, due=due)
            after = rows[-1].next_run_time or 0, rows[-1].key

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
