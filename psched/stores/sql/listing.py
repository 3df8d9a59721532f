"""Reads a whole table page by page, so that queries are short and memory use stays small."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import TextClause

from psched.core.model import Row
from psched.stores.pages import Page, Pages

PAGE = 500
"""The most rows that one query returns."""

FIRST_PAGE = 20
"""The most rows that the first query returns: few, because the size of a row is still unknown."""

_GROWTH = 4

SIZE = 4_000_000
"""The most bytes of payload that a page should have.

The number of rows of a page is estimated from the size of the rows of the previous page.
"""


def next_limit(limit: int, rows: Sequence[Row]) -> int:
    """The number of rows of the next page, given the limit and the rows of the last page."""
    if not rows:
        return limit
    size = 1 + sum(len(row.data or "") + len(row.options or "") for row in rows)
    return min(PAGE, _GROWTH * limit, max(1, SIZE * len(rows) // size))


Read = Callable[[TextClause, Mapping[str, Any]], Sequence[Sequence[Any]]]
"""A function that sends a statement with its values, and returns the rows of its result."""


Parts = Sequence[tuple[TextClause, TextClause]]
"""Two statements for each part of a table.

The first reads the first page; the second reads the page after the row whose key is bound as
``:id`` and whose time, if it is not NULL, is bound as ``:time``. Both return the stored bytes of
the key, the time, and what makes a row. The key is returned as bytes, because a key that is not
UTF-8 would be decoded to a different key, and the next page would begin at the wrong row.
"""


def listing(read: Read, parts: Parts, row_of: Callable[..., Row]) -> Iterator[Row]:
    """Iterate over every row, one part of the table after the other; see `Pages`."""
    limit = min(FIRST_PAGE, PAGE)

    def page(place: Any, _most: int) -> Page[Row]:  # noqa: ANN401  # a part, and where it continues
        nonlocal limit
        part, after = place or (0, dict[str, Any]())
        first, following = parts[part]
        found = read(following if after else first, {**after, "limit": limit})
        is_last = len(found) < limit
        rows = [row_of(*columns) for _, _, *columns in found]
        limit = next_limit(limit, rows)
        if is_last:
            return Page(rows, (part + 1, {}) if part + 1 < len(parts) else None)
        key, time, *_ = found[-1]
        return Page(rows, (part, {"id": key} if time is None else {"id": key, "time": time}))

    return Pages(page, None, PAGE)
