"""Two ways to claim due rows; both guarantee that only one worker claims a row.

SKIP LOCKED is used on PostgreSQL. One statement claims the rows; workers that claim at the same
moment neither wait for one another nor compete for rows. The statement contains an UPDATE within a
query, which MySQL and MariaDB do not support. These would need a transaction, whose round trips
cost more time than the lost races that SKIP LOCKED avoids, except when several workers claim many
rows at a time. Besides, in a Galera cluster, the other nodes ignore a node's row locks.

Compare-and-swap is used everywhere else. One statement reads the due rows, and a second statement
claims those that have not changed since. No lock is held between the statements. If two workers
read the same row, the slower one claims nothing, because the row's fence has grown. This works on
any database, even on SQLite and through several nodes of a Galera cluster. PostgreSQL uses
compare-and-swap if the database refuses the SKIP LOCKED statement because of a value in some due
row, because compare-and-swap finds that row.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Protocol

from sqlalchemy import TextClause
from typing_extensions import override

from psched.base.errors import StoreError, UnknownOutcomeError
from psched.base.lease_times import lease_time
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.stores.sql import raw_execute
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import InvalidValueError, UnsupportedStatementError
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.statements import (
    ALIVE_TIME,
    ATTEMPT,
    COLUMNS,
    DUE,
    FENCE,
    KEY,
    NOW,
    OWNER,
    READ_ONLY,
    Statements,
    as_seen,
)

_REPLACED = "\ufffd"
"""The character as which bytes that are not UTF-8 are read."""


class Strategy(Protocol):
    """A way to claim the due rows of one table."""

    name: str
    """The strategy's name in the setting ``claim_strategy``."""

    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        """Claim rows that are due, as `psched.core.store_protocol.Store.claim` does.

        Args:
            owner: a text never used before.
            limit: the most rows to claim.
            lease: the values ``alive_time`` and ``shortest``.
            horizon: the seconds from now within which to find the next due row.
        """
        ...


def choose(connector: Connector, sql: Statements, wanted: str) -> Strategy:
    """The best strategy that the server supports.

    Args:
        connector: the connection to the server.
        sql: the table's statements.
        wanted: the setting ``claim_strategy``: one strategy, or ``auto``.

    Raises:
        StoreUnavailableError: the server does not answer.
        StoreError: the server does not support the wanted strategy.
    """
    if connector.dialect.skips_locked and wanted != "cas":
        # A probe decides, not the server's name and version, because proxies and forks may differ.
        with suppress(UnsupportedStatementError):
            connector.read(lambda c: c.execute(sql.skip_locked_probe).close())
            return SkipLocked(connector, sql)
    if wanted == "skip_locked":
        raise StoreError("claim_strategy: the database cannot do skip_locked; set it to auto")
    return CompareAndSwap(connector, sql)


def rows_held_by(owner: str, connector: Connector, sql: Statements) -> Sequence[Row]:
    """The rows that an owner holds."""
    found = connector.read(lambda c: raw_execute.rows(c, sql.held, {"owner": owner}))
    return [Row(*columns) for columns in found]


class SkipLocked(Strategy):
    """Claims due rows in one statement, which skips rows that another session has locked."""

    name = "skip_locked"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql
        self._one_by_one = CompareAndSwap(connector, sql)

    @override
    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        values = {**lease, "owner": owner, "limit": limit, "horizon": ceil(horizon)}
        try:
            found = self._connector.run(
                lambda c: raw_execute.rows(c, self._sql.claim_unlocked, values)
            )
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, ()) from error
        except InvalidValueError:
            return self._one_by_one.claim(owner, limit, lease, horizon)
        now, next_due = float(found[0][0]), found[0][1]
        # If nothing was claimed, the result is one row without a key.
        leased = [columns[2:] for columns in found if columns[2] is not None]
        rows = [Row(*columns) for *columns, _was, _since in leased]
        expired = frozenset(columns[0] for columns in leased if columns[-2] is not None)
        return Claimed(
            rows=rows, expired=expired, now=now, next_due=next_due, more=len(rows) == limit
        )


class CompareAndSwap(Strategy):
    """Claims due rows by reading them, and then claiming those that have not changed since."""

    name = "cas"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql
        self._checks_clock = connector.dialect.host_clock

    @override
    def claim(self, owner: str, limit: int, lease: Mapping[str, int], horizon: float) -> Claimed:
        now, near = self._read_near(limit, horizon, lease)
        if now is None:
            return Claimed()
        due = [columns for columns in near if columns[DUE] <= now]
        next_due = near[len(due)][DUE] if len(due) < len(near) else None
        more = len(due) == limit
        if not due:
            return Claimed(now=now, next_due=next_due)
        won = self._swap(owner, due, lease)
        rows = [_claimed(columns, owner) for columns in won]
        expired = frozenset(columns[KEY] for columns in won if columns[OWNER] is not None)
        return Claimed(rows=rows, expired=expired, now=now, next_due=next_due, more=more)

    def _read_near(
        self, limit: int, horizon: float, lease: Mapping[str, int]
    ) -> tuple[float | None, Sequence[Columns]]:
        """The store's clock, and the rows that are due now or within the horizon."""
        values: dict[str, float] = {"horizon": ceil(horizon), "limit": limit}
        if self._checks_clock:
            values |= {**lease, "since_step": self._connector.clock_steps.seconds_since()}
        rows = self._connector.read(lambda c: raw_execute.rows(c, self._sql.due, values))
        if not rows:
            return None, rows
        self._connector.refuse_read_only(rows[0][READ_ONLY])
        now = float(rows[0][NOW])
        if not self._checks_clock:
            return now, rows
        # The leases are checked again, because the host's clock may have been set after the first
        # call of `seconds_since` and before the database read that clock.
        since_step = self._connector.clock_steps.seconds_since()
        return now, [
            columns
            for columns in rows
            if columns[OWNER] is None or lease_time(columns[ALIVE_TIME], **lease) < since_step
        ]

    def _swap(
        self, owner: str, due: Sequence[Columns], lease: Mapping[str, int]
    ) -> Sequence[Columns]:
        """Claim those of the rows that have not changed since they were read.

        Returns:
            The claimed rows as they were read, in the order of ``due``.

        Raises:
            ClaimUnknownError: some of the rows may have been claimed.
            StoreError: no row was claimed, and no single row is the cause.
        """
        keys = [columns[KEY] for columns in due]
        statement, values = self._sql.claim(owner, due)
        try:
            won = self._write(statement, {**values, **lease})
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, keys) from error
        except InvalidValueError as error:
            return self._swap_one_by_one(owner, due, lease, error)
        if won == len(due):
            # All rows were claimed, so they need not be read again to find which ones were.
            return due
        try:
            rows = rows_held_by(owner, self._connector, self._sql) if won else ()
            held = {row.key for row in rows}
            if any(_REPLACED in key and key not in held for key in keys):
                self._quarantine_keys_that_are_not_text()
        except StoreError as error:
            raise ClaimUnknownError(owner, keys) from error
        return [columns for columns in due if columns[KEY] in held]

    def _swap_one_by_one(
        self, owner: str, due: Sequence[Columns], lease: Mapping[str, int], error: InvalidValueError
    ) -> Sequence[Columns]:
        """Claim rows one by one, because the database refuses one of them; quarantine that row."""
        if len(due) == 1:
            self._write(self._sql.quarantine, {**as_seen(due[0]), "reason": str(error)})
            return []
        try:
            return [won for each in due for won in self._swap(owner, [each], lease)]
        except StoreError as stopped:
            raise ClaimUnknownError(owner, [columns[KEY] for columns in due]) from stopped

    def _quarantine_keys_that_are_not_text(self) -> None:
        """Quarantine due rows whose keys are not UTF-8, and so cannot be bound as text.

        The rows are selected by the bytes of their keys.
        """
        found = self._connector.read(lambda c: raw_execute.rows(c, self._sql.due_keys, {}))
        for (key,) in found:
            try:
                bytes.fromhex(key).decode()
            except UnicodeDecodeError:
                values = {"hex": key, "reason": "id: is not UTF-8"}
                self._write(self._sql.quarantine_by_hex, values)

    def _write(self, statement: TextClause, values: Mapping[str, object]) -> int:
        return self._connector.run(lambda c: raw_execute.count(c, statement, values))


_WHOLE = len(COLUMNS)


def _claimed(seen: Columns, owner: str) -> Row:
    """The row after its claim, but ``next_run_time`` is still the due time, not the lease's end."""
    columns = [*seen[:_WHOLE]]
    columns[OWNER] = owner
    columns[FENCE] += 1
    columns[ATTEMPT] += 1
    return Row(*columns)
