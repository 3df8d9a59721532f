"""Claiming due rows by compare-and-swap: read what is due, take what is still as it was read.

No lock is held between the two statements, and none is asked for: of two workers that read the
same row, the second finds its fence grown. This works on every database, on several servers of a
Galera cluster too, where row locks end at the node.
"""

from collections.abc import Mapping, Sequence
from math import ceil

from sqlalchemy import TextClause

from psched.base.errors import StoreError, UnknownOutcomeError
from psched.base.lease_times import lease_time
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.stores.sql import raw_execute
from psched.stores.sql.claim_statements import (
    ALIVE_TIME,
    ATTEMPT,
    COLUMNS,
    DUE,
    FENCE,
    KEY,
    NOW,
    OWNER,
    READ_ONLY,
    as_seen,
)
from psched.stores.sql.claims.strategy import held_by
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import UnfitError
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.statements import Statements

_REPLACED = "\ufffd"
"""Read in the place of what is not UTF-8."""


class CompareAndSwap:
    """Claims rows of one table.

    Args:
        connector: the connection.
        sql: the table's statements.
    """

    name = "cas"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql
        self._looks_twice = connector.dialect.host_clock

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """See `Strategy.claim`."""
        now, near = self._near(limit, horizon, lease)
        if now is None:
            return Claimed()
        due = [columns for columns in near if columns[DUE] <= now]
        next_due = near[len(due)][DUE] if len(due) < len(near) else None
        more = len(due) == limit
        if not due:
            return Claimed(now=now, next_due=next_due)
        won = self._take(owner, due, lease)
        rows = [taken(columns, owner) for columns in won]
        expired = frozenset(columns[KEY] for columns in won if columns[OWNER] is not None)
        return Claimed(rows=rows, expired=expired, now=now, next_due=next_due, more=more)

    def _take(
        self, owner: str, due: Sequence[Columns], lease: Mapping[str, int]
    ) -> Sequence[Columns]:
        """Claim rows that are due.

        Returns:
            Those that were won, as they were read, in the same order.

        Raises:
            ClaimUnknownError: some of them may have been claimed.
            StoreError: none was, and that is no row's fault.
        """
        keys = [columns[KEY] for columns in due]
        statement, values = self._sql.claim(owner, due)
        try:
            won = self._write(statement, {**values, **lease})
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, keys) from error
        except UnfitError as error:
            return self._take_one_by_one(owner, due, lease, error)
        if won == len(due):
            # Each was exactly as seen, so none needs to be read again.
            return due
        held = {row.key for row in self._look(owner, keys)} if won else set()
        if any(_REPLACED in key and key not in held for key in keys):
            self._set_aside_what_has_no_name()
        return [columns for columns in due if columns[KEY] in held]

    def _look(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        try:
            return held_by(owner, self._connector, self._sql)
        except StoreError as error:
            raise ClaimUnknownError(owner, keys) from error

    def _take_one_by_one(
        self, owner: str, due: Sequence[Columns], lease: Mapping[str, int], error: UnfitError
    ) -> Sequence[Columns]:
        """The database refuses one of the rows: that one is set aside, the others are claimed."""
        if len(due) == 1:
            self._write(self._sql.set_aside, {**as_seen(due[0]), "reason": str(error)})
            return []
        try:
            return [won for each in due for won in self._take(owner, [each], lease)]
        except StoreError as stopped:
            raise ClaimUnknownError(owner, [columns[KEY] for columns in due]) from stopped

    def _set_aside_what_has_no_name(self) -> None:
        """A key that is not UTF-8 cannot be written in a statement, but for its bytes."""
        found = self._connector.read(lambda c: raw_execute.rows(c, self._sql.due_keys, {}))
        for (key,) in found:
            try:
                bytes.fromhex(key).decode()
            except UnicodeDecodeError:
                values = {"hex": key, "reason": "id: is not UTF-8"}
                self._write(self._sql.set_aside_by_hex, values)

    def _near(
        self, limit: int, horizon: float, lease: Mapping[str, int]
    ) -> tuple[float | None, Sequence[Columns]]:
        """The store's clock, and the rows that are due now or within the horizon."""
        values: dict[str, float] = {"horizon": ceil(horizon), "limit": limit}
        if self._looks_twice:
            values |= {**lease, "even": self._connector.evenness.seconds()}
        rows = self._connector.read(lambda c: raw_execute.rows(c, self._sql.due, values))
        if not rows:
            return None, rows
        self._connector.refuse_read_only(rows[0][READ_ONLY])
        now = float(rows[0][NOW])
        if not self._looks_twice:
            return now, rows
        # The clock may have been set before the database looked at it.
        even = self._connector.evenness.seconds()
        return now, [
            columns
            for columns in rows
            if columns[OWNER] is None or lease_time(columns[ALIVE_TIME], **lease) < even
        ]

    def _write(self, statement: TextClause, values: Mapping[str, object]) -> int:
        return self._connector.run(lambda c: raw_execute.count(c, statement, values))


def taken(seen: Columns, owner: str) -> Row:
    """A row as its claim has left it, but for its lease's end."""
    columns = [*seen[:_WHOLE]]
    columns[OWNER] = owner
    columns[FENCE] += 1
    columns[ATTEMPT] += 1
    return Row(*columns)


_WHOLE = len(COLUMNS)
