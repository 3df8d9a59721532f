"""Claiming with SKIP LOCKED: nobody waits for a row that another is just taking."""

from collections.abc import Mapping
from math import ceil

from psched.base.errors import UnknownOutcomeError
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.stores.sql import raw_execute
from psched.stores.sql.claims.compare import CompareAndSwap
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import UnfitError
from psched.stores.sql.statements import Statements


class SkipLocked:
    """Claims rows of one table.

    Args:
        connector: the connection.
        sql: the table's statements.
    """

    name = "skip_locked"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql
        self._one_by_one = CompareAndSwap(connector, sql)

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """See `Strategy.claim`."""
        values = {**lease, "owner": owner, "limit": limit, "horizon": ceil(horizon)}
        try:
            found = self._connector.run(
                lambda c: raw_execute.rows(c, self._sql.take_unlocked, values)
            )
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, ()) from error
        except UnfitError:
            return self._one_by_one.claim(owner, limit, lease, horizon)
        now, next_due = float(found[0][0]), found[0][1]
        # One row without a key stands for none.
        leased = [columns[2:] for columns in found if columns[2] is not None]
        rows = [Row(*columns) for *columns, _was, _since in leased]
        expired = frozenset(columns[0] for columns in leased if columns[-2] is not None)
        return Claimed(
            rows=rows, expired=expired, now=now, next_due=next_due, more=len(rows) == limit
        )
