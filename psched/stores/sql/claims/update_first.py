"""Claiming by owner and fence: take what is due first, then look at what was taken.

The update finds its rows itself, so workers who claim at the same time wait for one another for
the length of a statement and do not take each other's rows. Where a statement returns what it
has changed it is one round trip, elsewhere two.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from psched.base.errors import StoreError, UnknownOutcomeError
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.stores.sql import raw_execute
from psched.stores.sql.claims.compare import CompareAndSwap
from psched.stores.sql.claims.strategy import held_by
from psched.stores.sql.connector import Connector
from psched.stores.sql.failures import UnfitError
from psched.stores.sql.statements import Statements


class UpdateFirst:
    """Claims rows of one table.

    Args:
        connector: the connection.
        sql: the table's statements.
        returning: the server's updates can return what they have changed; else they can be
            limited.
    """

    name = "update_first"

    def __init__(self, connector: Connector, sql: Statements, *, returning: bool) -> None:
        self._connector = connector
        self._sql = sql
        self._returning = returning
        self._one_by_one = CompareAndSwap(connector, sql)

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """See `Strategy.claim`."""
        # An update takes locks, also where it finds nothing.
        now, is_due, next_due = self._peek(horizon)
        if not is_due:
            return Claimed(now=now, next_due=next_due)
        try:
            rows = self._take(owner, {**lease, "limit": limit})
        except UnfitError:
            return self._one_by_one.claim(owner, limit, lease, horizon)
        expired = frozenset(row.key for row in rows if _was_left(row))
        more = len(rows) == limit
        return Claimed(rows=rows, expired=expired, now=now, next_due=next_due, more=more)

    def _take(self, owner: str, values: Mapping[str, int]) -> Sequence[Row]:
        sql, bound = self._sql, {**values, "owner": owner}
        try:
            if self._returning:
                found = self._connector.run(
                    lambda c: raw_execute.rows(c, sql.take_returning, bound)
                )
                rows = [Row(*columns) for columns in found]
            elif self._connector.run(lambda c: raw_execute.count(c, sql.take_limited, bound)):
                rows = [*self._look(owner)]
            else:
                rows = []
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, ()) from error
        return sorted(rows, key=lambda row: (row.next_time or 0) + row.delay)

    def _look(self, owner: str) -> Sequence[Row]:
        try:
            return held_by(owner, self._connector, self._sql)
        except StoreError as error:
            raise ClaimUnknownError(owner, ()) from error

    def _peek(self, horizon: float) -> tuple[float, bool, int | None]:
        """The store's clock, whether anything is due, and when the next will be, if it is near."""
        values = {"horizon": ceil(horizon)}
        [(now, read_only, first, next_due)] = self._connector.read(
            lambda c: raw_execute.rows(c, self._sql.peek, values)
        )
        self._connector.refuse_read_only(read_only)
        return float(now), first is not None, next_due


def _was_left(row: Row) -> bool:
    """Whether a row that has just been claimed has had a lease that was never settled."""
    return row.fence > 1 and not (row.settled_by or "").endswith(f"#{row.fence - 1}")
