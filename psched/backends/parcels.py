"""Many new rows, in statements that every database takes."""

from collections.abc import Iterator, Sequence

from psched.model import Row

ROWS = 500
"""In one statement at most. Each binds ten values; SQLite takes 32766 of them, PostgreSQL 65535."""

SIZE = 1_000_000
"""Characters of payload in one statement at most, unless one row has more: servers refuse what is
larger than their ``max_allowed_packet``, which is 16 MB or more."""


def in_parcels(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows in their order, as many at a time as may go into one statement."""
    start = size = 0
    for end, row in enumerate(rows):
        added = len(row.data or "") + len(row.options or "")
        if end > start and (end - start == ROWS or size + added > SIZE):
            yield rows[start:end]
            start, size = end, 0
        size += added
    if rows:
        yield rows[start:]
