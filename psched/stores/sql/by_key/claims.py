"""Claims rows by their keys, whether they are due or not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed

from psched.base.errors import StoreError, UnknownOutcomeError
from psched.base.lease_times import lease_time
from psched.core.attempts import while_borrowed
from psched.core.model import Row
from psched.core.store_protocol import ClaimUnknownError
from psched.stores.sql import raw_execute
from psched.stores.sql.batches import BATCH
from psched.stores.sql.by_key.statements import FreeRow
from psched.stores.sql.claims import rows_held_by
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import InvalidValueError
from psched.stores.sql.statements import COLUMNS, PLACE, READ_ONLY, Statements

_WHOLE = len(COLUMNS)


class KeyClaims:
    """Claims rows by their keys, as `psched.core.store_protocol.LeasesByKey` describes.

    One statement reads the rows, and a second statement claims those that have not changed since,
    as `psched.stores.sql.claims.CompareAndSwap` does. They are two statements on every database,
    because ``attempt`` during the lease is computed from the row.

    Args:
        connector: the connection to the server.
        sql: the table's statements.
    """

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql

    def claim(self, owner: str, keys: Sequence[str], lease: Mapping[str, int]) -> Sequence[Row]:
        """Claim those of the rows that are free."""
        won: list[Row] = []
        for start in range(0, len(keys), BATCH):
            try:
                free = self._read_free(keys[start : start + BATCH], lease)
                won += self._swap(owner, free, lease) if free else ()
            except StoreError as error:
                if not won:
                    raise
                raise ClaimUnknownError(owner, keys) from error
        return won

    def _read_free(self, keys: Sequence[str], lease: Mapping[str, int]) -> Sequence[FreeRow]:
        """Read those of the rows that can be claimed."""
        statement, values = self._sql.by_key.free(keys)
        found = self._connector.read(lambda c: raw_execute.rows(c, statement, values))
        if not found:
            return []
        self._connector.refuse_read_only(found[0][READ_ONLY])
        rows = [(Row(*columns[:_WHOLE]), columns[PLACE]) for columns in found]
        if self._connector.dialect.host_clock:
            # After a user has set the host's clock, a lease can seem to have ended although it has
            # not. So it counts as ended only if it is shorter than the time since then. This is
            # checked after the query, so that a clock that was set just before it is noticed.
            since_step = self._connector.clock_steps.seconds_since()
            rows = [
                (row, place)
                for row, place in rows
                if row.owner is None or lease_time(row.alive_time, **lease) < since_step
            ]
        free = ((row, place, while_borrowed(row)) for row, place in rows)
        return [FreeRow(row, place, attempt) for row, place, attempt in free if attempt is not None]

    def _swap(self, owner: str, free: Sequence[FreeRow], lease: Mapping[str, int]) -> Sequence[Row]:
        """Claim those of the rows that have not changed since they were read."""
        keys = [each.row.key for each in free]
        statement, values = self._sql.by_key.claim(owner, free)
        try:
            won = self._connector.run(
                lambda c: raw_execute.count(c, statement, {**values, **lease})
            )
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, keys) from error
        except InvalidValueError:
            # The fence of one of the rows cannot grow. That row is left out; a regular claim will
            # quarantine it.
            return self._swap_one_by_one(owner, free, lease) if len(free) > 1 else []
        if won < len(free):
            try:
                held = rows_held_by(owner, self._connector, self._sql) if won else ()
            except StoreError as error:
                raise ClaimUnknownError(owner, keys) from error
            keys = [row.key for row in held]
        return [
            changed(row, owner=owner, fence=row.fence + 1) for row, _, _ in free if row.key in keys
        ]

    def _swap_one_by_one(
        self, owner: str, free: Sequence[FreeRow], lease: Mapping[str, int]
    ) -> Sequence[Row]:
        try:
            return [won for each in free for won in self._swap(owner, [each], lease)]
        except StoreError as error:
            raise ClaimUnknownError(owner, [each.row.key for each in free]) from error
