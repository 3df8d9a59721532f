"""Claiming due rows by compare-and-swap: read what is due, take what is still as it was read.

No lock is held between the two statements, and none is asked for: of two workers that read the
same row, the second finds its fence grown. This works on every database, on several servers of a
Galera cluster too, where row locks end at the node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed

from sqlalchemy import Connection, TextClause

from psched.backend import Claimed, ClaimUnknownError
from psched.backends.connector import Connector, UnfitError
from psched.backends.statements import Statements, as_seen
from psched.errors import StoreError, UnknownOutcomeError
from psched.model import Row

_REPLACED = "\ufffd"
"""Read in the place of what is not UTF-8."""


class Claims:
    """Claims rows of one table.

    Args:
        connector: the connection.
        sql: the table's statements.
    """

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """See `Backend.claim`.

        Args:
            owner: a text never used before.
            limit: at most that many rows.
            lease: the values ``alive_time`` and ``shortest``.
            horizon: how many seconds ahead to look for the next due row.
        """
        now, near = self._near(limit, horizon)
        if now is None:
            return Claimed()
        due = [row for row in near if row.next_run_time is not None and row.next_run_time <= now]
        next_due = near[len(due)].next_run_time if len(due) < len(near) else None
        more = len(due) == limit
        if not due:
            return Claimed(now=now, next_due=next_due)
        rows = self._take(owner, due, lease)
        taken = {row.key for row in rows}
        expired = frozenset(row.key for row in due if row.owner is not None and row.key in taken)
        return Claimed(rows=rows, expired=expired, now=now, next_due=next_due, more=more)

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """See `Backend.held`."""
        values = {"ids": [*keys], "owner": owner}
        return self._connector.read(
            lambda c: [Row(*columns) for columns in c.execute(self._sql.held, values)]
        )

    def _take(self, owner: str, due: Sequence[Row], lease: Mapping[str, int]) -> Sequence[Row]:
        """Claim rows that are still as they were seen; those that were won, in the same order.

        Raises:
            ClaimUnknownError: some of them may have been claimed.
            StoreError: none was, and that is no row's fault.
        """
        keys = [row.key for row in due]
        statement, values = self._sql.claim(owner, due)
        try:
            won = self._write(statement, {**values, **lease})
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, keys) from error
        except UnfitError as error:
            return self._take_one_by_one(owner, due, lease, error)
        if won == len(due):
            # Each was exactly as seen, so none needs to be read again.
            return [_claimed(row, owner) for row in due]
        try:
            held = {row.key: row for row in self.held(owner, keys)} if won else {}
        except StoreError as error:
            raise ClaimUnknownError(owner, keys) from error
        if any(_REPLACED in key and key not in held for key in keys):
            self._set_aside_what_has_no_name()
        return [held[key] for key in keys if key in held]

    def _take_one_by_one(
        self, owner: str, due: Sequence[Row], lease: Mapping[str, int], error: UnfitError
    ) -> Sequence[Row]:
        """The database refuses one of the rows: that one is set aside, the others are claimed."""
        if len(due) == 1:
            self._write(self._sql.set_aside, {**as_seen(due[0]), "reason": str(error)})
            return []
        try:
            return [row for each in due for row in self._take(owner, [each], lease)]
        except StoreError as stopped:
            raise ClaimUnknownError(owner, [row.key for row in due]) from stopped

    def _set_aside_what_has_no_name(self) -> None:
        """A key that is not UTF-8 cannot be written in a statement, but for its bytes."""
        found = self._connector.read(lambda c: c.execute(self._sql.due_keys).scalars().all())
        for key in found:
            try:
                bytes.fromhex(key).decode()
            except UnicodeDecodeError:
                values = {"hex": key, "reason": "id: is not UTF-8"}
                self._write(self._sql.set_aside_by_hex, values)

    def _near(self, limit: int, horizon: float) -> tuple[float | None, Sequence[Row]]:
        """The store's clock, and the rows that are due now or within the horizon."""

        def read(connection: Connection) -> tuple[float | None, Sequence[Row]]:
            found = connection.execute(self._sql.due, {"horizon": horizon, "limit": limit}).all()
            now = float(found[0][0]) if found else None
            return now, [Row(*columns[1:]) for columns in found]

        return self._connector.read(read)

    def _write(self, statement: TextClause, values: Mapping[str, object]) -> int:
        return self._connector.run(lambda c: c.execute(statement, values).rowcount)


def _claimed(row: Row, owner: str) -> Row:
    """The row as its claim has left it, but for its lease's end."""
    return changed(row, owner=owner, fence=row.fence + 1, attempt=row.attempt + 1)
