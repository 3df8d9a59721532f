"""Claims rows, and sends the requests of a lease's holder: extend, settle, replace the data.

The leases that this process holds are kept in memory, because the table has no columns for tokens.
Every write is conditional: it changes a row only if the row has not changed since it was read.

**A claim** reads some due rows and then writes one row per statement. Two workers that claim a
row in the same second would write the same ``timeout``. So only the answer to a statement about
this one row shows which worker has claimed the row. If that answer is lost, the worker treats the
row as not claimed; if the claim did succeed, its lease expires.

**The holder's requests** first read the rows and the store's clock. If the answer to an earlier
request was lost, the rows show whether that request was applied. Every new time is computed from
the store's clock and written as a literal.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

from sqlalchemy import TextClause

from psched.base.clock import Clock
from psched.base.errors import (
    StoreBusyError,
    StoreSlowError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.contrib.perfectsched.store.rows import (
    LATEST,
    NEVER,
    Statements,
    StoredRow,
    as_row,
    as_seen,
    join_data,
)
from psched.core.history.records import RunRecord
from psched.core.model import QUARANTINED, Row, Settlement, Token
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import InvalidValueError

_CAPACITY = 10_000  # the number of leases in memory from which on settled leases are forgotten


@dataclass(slots=True)
class Lease:
    """A lease, and what this process has written to its row in the table."""

    token: Token  # the token that the lease's holder sends in every request
    next_time: object  # the row's ``next_time`` when it was claimed: the time of the occurrence
    # 1 if nobody has leased the occurrence before, else 2, because the table does not count
    # attempts.
    attempt: int
    timeout: int  # the end of the lease that was written last, as far as the store has answered
    # The latest second of the store's clock from which an end of the lease was computed.
    second: int
    # Ends of the lease that were sent in requests without an answer so far.
    unconfirmed: set[int] = field(default_factory=set)
    # For each settle that was sent, the ``next_time`` and the ``timeout`` that the settle writes;
    # None for a settle that deletes the row.
    results: list[tuple[object, int] | None] = field(default_factory=list)
    settled: bool = False  # whether one of the settles in ``results`` is known to have been applied

    def note_extension(self, timeout: int, second: int) -> None:
        """Record a new end of the lease before it is sent."""
        self.unconfirmed.add(timeout)
        self.second = max(self.second, second)

    def confirm_extension(self, timeout: int) -> None:
        """Record that the row in the table has this end of the lease as its ``timeout``."""
        self.timeout = timeout
        self.unconfirmed.clear()

    def holds(self, row: StoredRow, now: float) -> bool:
        """Whether the lease is still held: the row has the values that this process wrote.

        If the row's ``timeout`` is an end from an unanswered extend, this extend was applied, and
        the lease is held. After the previous end of the lease, this conclusion is not certain,
        because another worker might have claimed the row and written the same end. So from then on
        the result is False.
        """
        if self.settled or row.next_time != self.next_time:
            return False
        if row.timeout == self.timeout:
            return True
        if row.timeout in self.unconfirmed and now < self.timeout:
            self.confirm_extension(row.timeout)
            return True
        return False

    def has_left(self, row: StoredRow | None) -> bool:
        """Whether one of this lease's settles has left the row in its present state."""
        return (None if row is None else (row.next_time, row.timeout)) in self.results


class HeldLeases:
    """The leases of one store in one process, by the keys of their rows."""

    def __init__(self) -> None:
        self._by_key: dict[str, Lease] = {}

    def add(self, row: StoredRow, owner: str, timeout: int, second: int) -> Lease:
        """Record that a row was claimed."""
        if len(self._by_key) >= _CAPACITY:
            self._by_key = {key: each for key, each in self._by_key.items() if not each.settled}
        attempt = 1 if row.never_leased else 2
        # The fence contains the second and the occurrence, so that each claim of a row has another
        # fence: two occurrences of a row can be claimed in the same second, but no occurrence is
        # claimed twice in one second.
        fence = second << 31 | max(row.occurrence, 0)
        lease = Lease(Token(owner, fence), row.next_time, attempt, timeout, second)
        self._by_key[row.id] = lease
        return lease

    def get(self, key: str, token: Token) -> Lease | None:
        """The lease of this row with this token; None if this process holds no such lease."""
        lease = self._by_key.get(key)
        return lease if lease is not None and lease.token == token else None

    def keys_of(self, owner: str) -> Iterator[str]:
        """The keys of the rows whose leases this owner holds and has not settled."""
        for key, lease in self._by_key.items():
            if lease.token.owner == owner and not lease.settled:
                yield key

    def as_row(self, stored: StoredRow, now: float) -> Row:
        """Convert a row of the table; if this process holds its lease, add the lease's values."""
        lease = self._by_key.get(stored.id)
        if lease is None or not lease.holds(stored, now):
            return as_row(stored)
        return as_row(stored, lease.token, lease.attempt)

    def drop(self, key: str) -> None:
        """Forget the lease of this row, because it was lost."""
        self._by_key.pop(key, None)


def may_be_leased(row: StoredRow, now: float, longest: float) -> bool:
    """Whether a worker, psched's or PerfectSched's, might hold a lease of this row.

    The result is True for a row that waits for a retry, because the table does not distinguish such
    a row from a leased one. A row is not leased before its ``next_time``, unless its ``timeout`` is
    even earlier, because its first run was given an earlier time; nor if its ``timeout`` is more
    than ``longest`` seconds from now.
    """
    may_run = row.occurrence <= now or row.until < row.occurrence
    return may_run and now < row.until <= now + longest and not row.never_leased


_log = logging.getLogger("psched.store")

_CLAIM_LIMIT = 100
"""The largest number of rows in one claim. It is limited, because each row costs a round trip."""

_SPARE = 4
"""Rows that a claim reads beyond its limit, because other workers claim some of the rows first."""

_ROUNDS = 5  # how often a request is tried, at most, while other clients keep changing its rows

_CLOCK_STEP = 5
"""Seconds that a run is delayed at most if the store's clock was set back; see `_times_after`."""

_PUT_OFF = 3600
"""Seconds by which an invalid row is put off, because no column can mark it as quarantined."""


Settle = Callable[[TextClause, Mapping[str, Any], Sequence[RunRecord]], bool]


class LeaseWriter:
    """Writes the leases of one table's rows."""

    def __init__(
        self,
        connector: Connector,
        sql: Statements,
        *,
        clock: Clock,
        # Seconds from the start of a claim. After this time, the claim sends no further statement
        # if it has claimed a row, or has found a row locked.
        patience: float,
        # Sends a statement that settles one row, and writes records of the run history in the same
        # transaction if the statement has matched the row; returns whether it has.
        settle: Settle,
    ) -> None:
        self._connector = connector
        self._sql = sql
        self._clock = clock
        self._patience = patience
        self._settle = settle
        self._by_host_clock = connector.dialect.host_clock
        self.leases = HeldLeases()  # the leases that this process holds

    def claim(self, owner: str, limit: int, length: int, horizon: float) -> Claimed:
        """Claim up to ``limit`` due rows for ``length`` seconds; see `Store.claim`."""
        limit = min(limit, _CLAIM_LIMIT)
        now, near = self._read_near(limit + _SPARE, horizon, length)
        if now is None:
            return Claimed()
        due = [row for row in near if row.timeout <= now]
        next_due = near[len(due)].timeout if len(due) < len(near) else None
        rows, tried = self._claim_each(owner, due, limit, floor(now), length)
        more = tried < len(due) or len(due) == limit + _SPARE
        # No row is reported as `expired`, because the table does not distinguish a row whose lease
        # has expired from a row that waited for a retry.
        return Claimed(rows=rows, now=now, next_due=next_due, more=more)

    def extend(self, tokens: Mapping[str, Token], length: int) -> set[str]:
        """Let leases end ``length`` seconds from now; return the keys of the leases still held."""
        found = {key: self.leases.get(key, token) for key, token in tokens.items()}
        held = {key: lease for key, lease in found.items() if lease and not lease.settled}
        for _ in range(_ROUNDS):
            now, rows = self.read([*held])
            for key, lease in [*held.items()]:
                if key not in rows or not lease.holds(rows[key], now):
                    self.leases.drop(key)
                    del held[key]
            if self._write_ends(held, now, length):
                return {*held}
        raise StoreUnavailableError("leases change faster than they can be extended")

    def settle(self, ends: Sequence[Settlement]) -> Mapping[str, Settled]:
        """End leases; see `Store.settle`."""
        results: dict[str, Settled] = {}
        pending: dict[str, tuple[Settlement, Lease]] = {}
        for end in ends:
            lease = self.leases.get(end.key, end.token)
            if lease is None:
                results[end.key] = Settled.PREEMPTED
            elif lease.settled:
                removed = lease.results[-1] is None
                results[end.key] = Settled.DONE if end.remove or not removed else Settled.PREEMPTED
            else:
                pending[end.key] = end, lease
        for _ in range(_ROUNDS):
            if not pending:
                return results
            now, rows = self.read([*pending])
            for key, (end, lease) in [*pending.items()]:
                try:
                    result = self._settle_one(end, lease, rows.get(key), now)
                except StoreBusyError as busy:
                    raise type(busy)(str(busy), results) from None
                if result:
                    results[key] = result
                    del pending[key]
        raise StoreUnavailableError("rows change faster than they can be settled")

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """Replace the data of a leased row; return False if the lease is not held."""
        lease = self.leases.get(key, token)
        for _ in range(_ROUNDS):
            now, rows = self.read([key])
            if lease is None or key not in rows or not lease.holds(rows[key], now):
                return False
            row = rows[key]
            values = {**as_seen(row), "new_data": join_data(as_row(row).type, data)}
            if self._write(self._sql.update_data, values):
                return True
        raise StoreUnavailableError(f"{key}: changes faster than its data can be replaced")

    def read(self, keys: Sequence[str]) -> tuple[float, Mapping[str, StoredRow]]:
        """Read the store's clock, and rows by their keys; the time is 0 if there is no row."""
        values = {"ids": [*keys]}
        found = (
            self._connector.read(lambda c: c.execute(self._sql.rows, values).all()) if keys else ()
        )
        now = float(found[0][0]) if found else 0.0
        wanted, rows = {*keys}, (StoredRow(*columns[1:]) for columns in found)
        # The database's collation may treat other keys as equal.
        return now, {row.id: row for row in rows if row.id in wanted}

    def _read_near(
        self, limit: int, horizon: float, length: int
    ) -> tuple[float | None, Sequence[StoredRow]]:
        """Read the store's clock, and the rows that are due now or within ``horizon`` seconds.

        The time is None if there are no such rows. ``length`` is the length of a lease.
        """
        values = {"horizon": horizon, "limit": limit}
        if self._by_host_clock:
            values |= {"length": length, "even": self._connector.clock_steps.seconds_since()}
        found = self._connector.read(lambda c: c.execute(self._sql.due, values).all())
        if not found:
            return None, []
        self._connector.refuse_read_only(found[0][1])
        now, rows = float(found[0][0]), [StoredRow(*columns[2:]) for columns in found]
        # If the host's clock was set less than a lease's length ago, rows that may be leased are
        # ignored. The statement checks the same, but the clock may have been set after the call of
        # `seconds_since` and before the database read the clock.
        if self._by_host_clock and self._connector.clock_steps.seconds_since() <= length:
            rows = [row for row in rows if row.never_leased]
        return now, rows

    def _claim_each(
        self, owner: str, due: Sequence[StoredRow], limit: int, second: int, length: int
    ) -> tuple[Sequence[Row], int]:
        """Claim due rows one by one, up to ``limit`` rows; return them, and how many were tried.

        If the store becomes unavailable, the rows that were claimed before are returned. A row that
        another client has locked is skipped.
        """
        claimed: list[Row] = []
        busy: StoreBusyError | None = None
        until = second + length + 1
        give_up_at = self._clock.monotonic() + self._patience
        for tried, row in enumerate(due):
            late = (claimed or busy) and self._clock.monotonic() > give_up_at
            if len(claimed) == limit or late:
                break
            try:
                won = self._claim_one(row, until)
            except StoreBusyError as error:
                busy = error
                if isinstance(error, StoreSlowError):
                    break
                continue
            except TransientStoreError as error:
                if claimed:
                    _log.warning("%s: %s", row.id, error)
                    return claimed, tried
                if isinstance(error, UnknownOutcomeError):
                    raise ClaimUnknownError(owner, [row.id]) from error
                raise
            if won:
                lease = self.leases.add(row, owner, until, second)
                claimed.append(as_row(row, lease.token, lease.attempt))
        else:
            tried = len(due)
        if busy is not None and not claimed:
            raise busy
        return claimed, tried

    def _claim_one(self, row: StoredRow, until: int) -> bool:
        try:
            return self._write(self._sql.claim, {**as_seen(row), "until": until}) == 1
        except InvalidValueError as error:
            _log.error("%s: %s", row.id, error)  # the error's text names the value
            return False

    def _write_ends(self, leases: Mapping[str, Lease], now: float, length: int) -> bool:
        """Write the new end of leases; return whether the end was written for all these leases."""
        # Each lease that has ended is extended by a separate statement. Another worker may have
        # claimed the row and written the same end, so only the answer to a statement about this one
        # row shows whether the lease was extended.
        ended = {key: lease for key, lease in leases.items() if lease.timeout <= now}
        running = {key: lease for key, lease in leases.items() if key not in ended}
        done = self._write_end(running, floor(now), length)
        for key, lease in ended.items():
            done &= self._write_end({key: lease}, floor(now), length)
        return done

    def _write_end(self, leases: Mapping[str, Lease], second: int, length: int) -> bool:
        """Write the new end of leases in one statement; return whether all rows matched."""
        if not leases:
            return True
        until = second + length + 1
        known = [(key, lease.next_time, lease.timeout) for key, lease in leases.items()]
        for lease in leases.values():
            lease.note_extension(until, second)
        if self._write(*self._sql.extend(known, until)) < len(known):
            return False
        for lease in leases.values():
            lease.confirm_extension(until)
        return True

    def _settle_one(
        self, end: Settlement, lease: Lease, row: StoredRow | None, now: float
    ) -> Settled | None:
        """Settle one lease; return None if the row changed after it was read: call again."""
        if row is None or not lease.holds(row, now):
            if lease.has_left(row):
                lease.settled = True
                return Settled.DONE
            self.leases.drop(end.key)
            return Settled.PREEMPTED
        if row.version != end.version:
            return Settled.REDEFINED
        values = as_seen(row)
        if end.remove:
            statement = self._sql.remove
            lease.results.append(None)
        else:
            following, until = _times_after(end, lease, row, now)
            statement = self._sql.settle
            values |= {"following": following, "until": until}
            lease.results.append((following, until))
        try:
            if not self._settle(statement, values, end.records):
                return None
        except InvalidValueError as error:
            _log.error("%s: %s", end.key, error)  # the error's text names the value
            self.leases.drop(end.key)
            return Settled.PREEMPTED
        lease.settled = True
        if end.status == QUARANTINED:
            _log.error("%s: put off by an hour: %s", end.key, end.reason)
        return Settled.DONE

    def _write(self, statement: TextClause, values: Mapping[str, Any]) -> int:
        """Send one statement that writes; return the number of rows that the statement matched."""
        return self._connector.run(lambda c: c.execute(statement, values).rowcount)


def _times_after(end: Settlement, lease: Lease, row: StoredRow, now: float) -> tuple[object, int]:
    """The ``next_time`` and the ``timeout`` that a settle writes."""
    earliest = floor(now) + (end.wait + 1 if end.wait else 0)
    if end.status == QUARANTINED:
        return row.next_time, min(floor(now) + _PUT_OFF, LATEST)
    if end.rest or end.next_time is None:
        return end.next_time if end.next_time is not None else row.next_time, NEVER
    not_before = end.not_before or 0
    if end.next_time > LATEST or not_before > LATEST:
        _log.error("%s: is put at rest: the table holds no time after January 2038", end.key)
        return row.next_time, NEVER
    if end.next_time == row.next_time:
        # The row must become due later than every second from which an end of this lease was
        # computed, because otherwise the next lease could have the same end; see "No two leases" in
        # `store`. If the store's clock was set back, the row waits at most `_CLOCK_STEP` + 1 s.
        earliest = max(earliest, min(lease.second, floor(now) + _CLOCK_STEP) + 1)
    elif end.not_before is not None and not end.wait:
        # The row becomes due exactly at ``not_before``, even if this time has passed; the reason is
        # given under "The next occurrence" in `store`.
        return end.next_time, not_before
    return end.next_time, min(max(not_before, earliest), LATEST)
