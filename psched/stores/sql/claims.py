"""Two ways to claim due rows; both guarantee that only one worker claims a row.

SKIP LOCKED is used on PostgreSQL. One statement claims the due rows, except the rows that another
worker has locked. So workers that claim at the same moment neither wait for one another nor try to
claim the same rows. MySQL and MariaDB do not support this statement, which contains an UPDATE
within a query. They would need a transaction, and its additional round trips take more time than
SKIP LOCKED saves, except when several workers claim many rows at a time. Besides, SKIP LOCKED is
useless in a Galera cluster, because a node ignores the row locks of the other nodes.

Compare-and-swap is used everywhere else. One statement reads the due rows, and a second statement
claims the rows that have not changed since. No lock is held between the statements. If two workers
read the same row, the slower worker does not get the row, because the faster worker has incremented
the row's fence. Compare-and-swap works on any database, even on SQLite and through several
nodes of a Galera cluster. If a value in a due row makes the SKIP LOCKED statement fail on
PostgreSQL, psched falls back to compare-and-swap, which finds this row and quarantines it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from sqlalchemy import TextClause
from typing_extensions import override

from psched.base.errors import StoreError, UnknownOutcomeError
from psched.base.lease_times import lease_time
from psched.core.model import Row, Token
from psched.core.store_protocol import Claimed, ClaimUnknownError, ExpiredLease
from psched.stores.observations import Lease
from psched.stores.sql import raw_execute
from psched.stores.sql.conditions import Request
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import InvalidValueError, UnsupportedStatementError
from psched.stores.sql.raw_execute import Columns
from psched.stores.sql.statements import (
    ALIVE_TIME,
    ATTEMPT,
    CLAIMED_AT,
    COLUMNS,
    DUE,
    FENCE,
    HELD_BY,
    HELD_UNTIL,
    KEY,
    NOW,
    OWNER,
    READ_ONLY,
    Statements,
    as_seen,
    unpacked,
)

_REPLACED = "\ufffd"
"""The character that replaces bytes that are not UTF-8 when a text is read."""


AT_ANY_TIME = -(2**63)
"""The earliest time that a row can have."""

Place = tuple[int, str]
"""The time and the key of a row, by which due rows are ordered."""


class Range(NamedTuple):
    """A part of the due rows.

    Attributes:
        after: the rows follow this place.
        until: the largest ``next_run_time``.
    """

    after: Place = (AT_ANY_TIME, "")
    until: int = 2**63 - 1

    @property
    def values(self) -> dict[str, Any]:
        """What a statement binds."""
        time, key = self.after
        return {"after": time, "after_id": key, "until": self.until}


EVERYWHERE = Range()


class Terms(NamedTuple):
    """What a claim is to do: most of the arguments of `psched.core.store_protocol.Store.claim`.

    Attributes:
        owner: a text that identifies this claim; no earlier claim has used it.
        limit: the most rows to claim.
        lease: ``alive_time`` and ``shortest``, by their names.
        horizon: the seconds from now within which to search for the next row to fall due.
        first: what is sent before the first statement of the claim, all or nothing; only if
            `Dialect.all_or_fail` has statements. SKIP LOCKED is in the same transaction.
    """

    owner: str
    limit: int
    lease: Mapping[str, int]
    horizon: float
    first: Sequence[Request] = ()

    @property
    def values(self) -> dict[str, Any]:
        """What a statement that reads rows binds."""
        return {"limit": self.limit, "horizon": ceil(self.horizon)}


class Strategy(Protocol):
    """A way to claim the due rows of one table."""

    name: str
    """The strategy's name in the setting ``claim_strategy``."""

    def claim(self, terms: Terms, within: Range = EVERYWHERE) -> Claimed:
        """Claim rows that are due, as `Store.claim` does, but only those ``within``."""
        ...


def choose(connector: Connector, sql: Statements, wanted: str) -> Strategy:
    """Create the wanted strategy, or for ``auto`` the best one that the server supports."""
    if connector.dialect.skips_locked and wanted != "cas":
        # We try a statement instead of comparing versions, because the server might be a proxy or
        # a fork that supports less than its version promises.
        with suppress(UnsupportedStatementError):
            connector.read(lambda c: c.execute(sql.skip_locked_probe).close())
            return SkipLocked(connector, sql)
    if wanted == "skip_locked":
        raise StoreError("claim_strategy: the database cannot do skip_locked; set it to auto")
    return CompareAndSwap(connector, sql)


def rows_held_by(owner: str, connector: Connector, sql: Statements) -> Sequence[Row]:
    """Read the rows whose leases an owner still holds."""
    return [Row(*columns) for columns in connector.query(sql.held, {"owner": owner})]


class SkipLocked(Strategy):
    """Claims due rows in one statement, which skips rows that another session has locked."""

    name = "skip_locked"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql
        self._one_by_one = CompareAndSwap(connector, sql)

    @override
    def claim(self, terms: Terms, within: Range = EVERYWHERE) -> Claimed:
        values = {**terms.lease, "owner": terms.owner, **terms.values, **within.values}
        statement = self._sql.claim_unlocked
        try:
            if terms.first:
                found = self._connector.rows_after(terms.first, statement, values)
            else:
                found = self._connector.run(raw_execute.rows, statement, values)
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(terms.owner, ()) from error
        except InvalidValueError:
            if terms.first:
                raise
            return self._one_by_one.claim(terms, within)
        now, next_due = float(found[0][0]), found[0][1]
        # If nothing was claimed, the result is one row without a key, which is dropped here.
        leased = [columns[2:] for columns in found if columns[2] is not None]
        rows, expired = [], {}
        for *columns, owner_before, fell_due, claimed_before in leased:
            columns[DUE] = fell_due
            row = Row(*columns)
            rows.append(row)
            if owner_before is not None:
                expired[row.key] = ExpiredLease(Token(owner_before, row.fence - 1), claimed_before)
        return Claimed(
            rows=rows, expired=expired, now=now, next_due=next_due, more=len(rows) == terms.limit
        )


class CompareAndSwap(Strategy):
    """Claims due rows by reading them, and then claiming those that have not changed since."""

    name = "cas"

    def __init__(self, connector: Connector, sql: Statements) -> None:
        self._connector = connector
        self._sql = sql

    @override
    def claim(self, terms: Terms, within: Range = EVERYWHERE) -> Claimed:
        request = self._sql.due, {**terms.values, **within.values}
        return self._claim(terms, *self._read_near(request, terms, self._sql.due_packed))

    def claim_among(self, keys: Sequence[str], terms: Terms) -> Claimed:
        """Claim those of some rows that are due, and that no rule pauses; see `claim`."""
        return self._claim(terms, *self._read_near(self._sql.due_among(keys), terms))

    def take_over(self, leases: Sequence[Lease], terms: Terms) -> Claimed:
        """Claim those of some leased rows that `claim` could claim, and that are as they were seen.

        Holds are ended instead, so that a claim, or another hold, finds the row free.
        """
        for hold in leases:
            if hold.fence is None:
                self._connector.write(self._sql.release_over, hold._asdict())
        seen = {lease[:4] for lease in leases if lease.fence is not None}
        if not seen:
            return Claimed()
        now, near = self._read_near(self._sql.over_among([key for key, *_ in seen]), terms)
        return self._claim(terms, now, [row for row in near if _lease_of(row) in seen])

    def _claim(self, terms: Terms, now: float | None, near: Sequence[Columns]) -> Claimed:
        """Claim those rows that are due, given what `_read_near` has returned."""
        if now is None:
            return Claimed()
        due = [columns for columns in near if columns[DUE] <= now]
        next_due = near[len(due)][DUE] if len(due) < len(near) else None
        more = len(due) == terms.limit
        if not due:
            return Claimed(now=now, next_due=next_due)
        won = self._swap(terms.owner, due, terms.lease)
        rows = [_claimed(columns, terms.owner) for columns in won]
        expired = {
            columns[KEY]: ExpiredLease(Token(columns[OWNER], columns[FENCE]), columns[CLAIMED_AT])
            for columns in won
            if columns[OWNER] is not None
        }
        return Claimed(rows=rows, expired=expired, now=now, next_due=next_due, more=more)

    def _read_near(
        self, reading: Request, terms: Terms, packed: TextClause | None = None
    ) -> tuple[float | None, Sequence[Columns]]:
        """Read the store's clock, and the rows that are due now or within the horizon.

        If there are no such rows, the first value of the result is None. ``packed`` is a faster
        query for the same rows, if there is one.
        """
        statement, values = reading
        if self._sql.checks_clock:
            values |= {**terms.lease, "since_step": self._connector.clock_steps.seconds_since()}
        sent = statement if packed is None else packed
        if terms.first:
            rows = self._connector.rows_after(terms.first, sent, values)
        else:
            rows = self._connector.read(raw_execute.rows, sent, values)
        if packed is not None and rows:
            rows = unpacked(rows) or self._connector.read(raw_execute.rows, statement, values)
        if not rows:
            return None, rows
        self._connector.refuse_read_only(rows[0][READ_ONLY])
        now = float(rows[0][NOW])
        if not self._sql.checks_clock:
            return now, rows
        # The leases are checked again, because somebody may have set the host's clock after the
        # first call of `seconds_since` and before the database read that clock.
        since_step = self._connector.clock_steps.seconds_since()
        return now, [
            columns
            for columns in rows
            if (columns[OWNER] is None and (columns[HELD_BY] is None or columns[DUE] > now))
            or lease_time(columns[ALIVE_TIME], **terms.lease) < since_step
        ]

    def _swap(
        self, owner: str, due: Sequence[Columns], lease: Mapping[str, int]
    ) -> Sequence[Columns]:
        """Claim those of the rows that have not changed since; return them as they were read."""
        keys = [columns[KEY] for columns in due]
        statement, values = self._sql.claim(owner, due)
        try:
            won = self._connector.write(statement, {**values, **lease})
        except UnknownOutcomeError as error:
            raise ClaimUnknownError(owner, keys) from error
        except InvalidValueError as error:
            return self._swap_one_by_one(owner, due, lease, error)
        if won == len(due):
            # All rows were claimed, so we need not read which ones.
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
        """Claim rows one by one, because the database has refused to claim them together.

        A row that the database refuses again is quarantined.
        """
        if len(due) == 1:
            values = {**as_seen(due[0]), "reason": str(error)}
            self._connector.write(self._sql.quarantine, values)
            return []
        try:
            return [won for each in due for won in self._swap(owner, [each], lease)]
        except StoreError as stopped:
            raise ClaimUnknownError(owner, [columns[KEY] for columns in due]) from stopped

    def _quarantine_keys_that_are_not_text(self) -> None:
        """Quarantine due rows whose keys are not UTF-8.

        Such keys cannot be bound as text, so the rows are selected by the bytes of their keys.
        """
        for (key,) in self._connector.query(self._sql.due_keys, {}):
            try:
                bytes.fromhex(key).decode()
            except UnicodeDecodeError:
                values = {"hex": key, "reason": "id: is not UTF-8"}
                self._connector.write(self._sql.quarantine_by_hex, values)


_lease_of = itemgetter(KEY, OWNER, FENCE, DUE)

_WHOLE = len(COLUMNS)


def _claimed(seen: Columns, owner: str) -> Row:
    """Build the claimed row from its columns as read; ``next_run_time`` remains the due time."""
    columns = [*seen[:_WHOLE]]
    columns[OWNER] = owner
    columns[FENCE] += 1
    columns[ATTEMPT] += 1
    columns[HELD_BY] = columns[HELD_UNTIL] = None
    return Row(*columns)
