"""Claiming due rows as PerfectSched does: read some, take each that is still as it was read.

One row in one statement: two workers that try in the same second would write the same
``timeout``, so that only the answer to the statement tells which of them has the row. For the same
reason a claim whose answer is lost counts as not held: it runs out.
"""

import logging
from collections.abc import Sequence
from math import floor

from psched.base.clock import Clock
from psched.base.errors import (
    StoreBusyError,
    StoreSlowError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.contrib.perfectsched.store.leases import Leases
from psched.contrib.perfectsched.store.rows import Stored, as_row
from psched.contrib.perfectsched.store.statements import Statements, as_seen
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.stores.sql.connector import Connector
from psched.stores.sql.failures import UnfitError

_log = logging.getLogger("psched.store")

_MOST = 100
"""Rows in one claim; each costs a round trip."""

_SPARE = 4
"""Rows that are read beyond those wanted: others take some of them meanwhile."""


class Claims:
    """Claims rows of one table.

    Args:
        connector: the connection.
        sql: the table's statements.
        leases: where what is claimed is kept.
        clock: measures how long it takes.
        patience: seconds after which no further row of a claim is taken.
    """

    def __init__(
        self,
        connector: Connector,
        sql: Statements,
        leases: Leases,
        *,
        clock: Clock,
        patience: float,
    ) -> None:
        self._connector = connector
        self._sql = sql
        self._leases = leases
        self._clock = clock
        self._patience = patience
        self._looks_twice = connector.dialect.host_clock

    def claim(self, owner: str, limit: int, length: int, horizon: float) -> Claimed:
        """See `Backend.claim`; here all leases have the same length in seconds."""
        limit = min(limit, _MOST)
        now, near = self._near(limit + _SPARE, horizon, length)
        if now is None:
            return Claimed()
        due = [row for row in near if row.timeout <= now]
        next_due = near[len(due)].timeout if len(due) < len(near) else None
        rows, tried = self._take(owner, due, limit, floor(now), length)
        more = tried < len(due) or len(due) == limit + _SPARE
        # Whether a row was leased before or waits for a retry cannot be told: none is `expired`.
        return Claimed(rows=rows, now=now, next_due=next_due, more=more)

    def _near(
        self, limit: int, horizon: float, length: int
    ) -> tuple[float | None, Sequence[Stored]]:
        """The store's clock, and the rows that may be taken now or within the horizon."""
        values = {"horizon": horizon, "limit": limit}
        if self._looks_twice:
            values |= {"length": length, "even": self._connector.evenness.seconds()}
        found = self._connector.read(lambda c: c.execute(self._sql.due, values).all())
        if not found:
            return None, []
        self._connector.refuse_read_only(found[0][1])
        now, rows = float(found[0][0]), [Stored(*columns[2:]) for columns in found]
        # The clock may have been set before the database looked at it.
        if self._looks_twice and self._connector.evenness.seconds() <= length:
            rows = [row for row in rows if row.untouched]
        return now, rows

    def _take(
        self, owner: str, due: Sequence[Stored], limit: int, second: int, length: int
    ) -> tuple[Sequence[Row], int]:
        """Take rows that are due, until there are enough; these, and how many were tried.

        What is taken is never lost: when the store goes away, those are returned that we have. A
        row that somebody has locked is passed over.

        Args:
            owner: of their leases.
            due: rows that were due …
            second: … in this second.
            limit: at most that many.
            length: of their leases, seconds.
        """
        taken: list[Row] = []
        busy: StoreBusyError | None = None
        until = second + length + 1
        give_up_at = self._clock.monotonic() + self._patience
        for tried, row in enumerate(due):
            late = (taken or busy) and self._clock.monotonic() > give_up_at
            if len(taken) == limit or late:
                break
            try:
                won = self._won(row, until)
            except StoreBusyError as error:
                busy = error
                if isinstance(error, StoreSlowError):
                    break
                continue
            except TransientStoreError as error:
                if taken:
                    _log.warning("%s: %s", row.id, error)
                    return taken, tried
                if isinstance(error, UnknownOutcomeError):
                    raise ClaimUnknownError(owner, [row.id]) from error
                raise
            if won:
                lease = self._leases.begin(row, owner, until, second)
                taken.append(as_row(row, lease.token, lease.attempt))
        else:
            tried = len(due)
        if busy is not None and not taken:
            raise busy
        return taken, tried

    def _won(self, row: Stored, until: int) -> bool:
        values = {**as_seen(row), "until": until}
        try:
            return self._connector.run(lambda c: c.execute(self._sql.claim, values).rowcount) == 1
        except UnfitError as error:
            _log.error("%s: %s", row.id, error)  # its text says all
            return False
