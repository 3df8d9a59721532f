"""What the holder of leases may write: extend, settle, replace the payload.

Each request reads the rows and the store's clock first: that tells what became of an earlier
request whose answer was lost, and all new times are literals worked out from that clock. Then
each row is written on condition that it is still as it was read.
"""

import logging
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

from sqlalchemy import TextClause

from psched.base.errors import StoreBusyError, StoreUnavailableError
from psched.contrib.perfectsched.store.leases import Lease, Leases
from psched.contrib.perfectsched.store.reader import Reader
from psched.contrib.perfectsched.store.rows import LATEST, NEVER, Stored, as_row, join_data
from psched.contrib.perfectsched.store.statements import Statements, as_seen
from psched.core.model import QUARANTINED, Settlement, Token
from psched.core.store_protocol import Settled
from psched.stores.sql.connector import Connector
from psched.stores.sql.errors import InvalidValueError

_log = logging.getLogger("psched.store")

_ROUNDS = 5
"""How often a row that has changed since it was read is read again."""

_CLOCK_STEP = 5
"""Seconds; if the store's clock has been set back by more, nobody waits until it is right again."""

_PUT_OFF = 3600
"""Seconds until a row that could not be understood is looked at again."""


class Held:
    """Writes to the rows of one table that we hold.

    Args:
        connector: the connection.
        sql: the table's statements.
        leases: those that we hold.
    """

    def __init__(self, connector: Connector, sql: Statements, leases: Leases) -> None:
        self._connector = connector
        self._sql = sql
        self._leases = leases
        self._reader = Reader(connector, sql)

    def extend(self, tokens: Mapping[str, Token], length: int) -> set[str]:
        """Move the end of leases to now + length; the keys of those that were still held."""
        found = {key: self._leases.of(key, token) for key, token in tokens.items()}
        mine = {key: lease for key, lease in found.items() if lease and not lease.over}
        for _ in range(_ROUNDS):
            now, rows = self._reader.look([*mine])
            for key, lease in [*mine.items()]:
                if key not in rows or not lease.stands(rows[key], now):
                    self._leases.lose(key)
                    del mine[key]
            if self._extended(mine, now, length):
                return {*mine}
        raise StoreUnavailableError("leases change faster than they can be extended")

    def _extended(self, leases: Mapping[str, Lease], now: float, length: int) -> bool:
        """Write the leases' new end; whether all of them have it now."""
        # After a lease's end another may claim the row, and write the same end: of such a one,
        # only the answer to a statement of its own tells whether we have extended it.
        over = {key: lease for key, lease in leases.items() if lease.timeout <= now}
        alive = {key: lease for key, lease in leases.items() if key not in over}
        done = self._extended_at_once(alive, floor(now), length)
        for key, lease in over.items():
            done &= self._extended_at_once({key: lease}, floor(now), length)
        return done

    def _extended_at_once(self, leases: Mapping[str, Lease], second: int, length: int) -> bool:
        if not leases:
            return True
        until = second + length + 1
        known = [(key, lease.next_time, lease.timeout) for key, lease in leases.items()]
        for lease in leases.values():
            lease.extending(until, second)
        if self._write(*self._sql.extend(known, until)) < len(known):
            return False
        for lease in leases.values():
            lease.extended(until)
        return True

    def settle(self, ends: Sequence[Settlement]) -> Mapping[str, Settled]:
        """See `Backend.settle`.

        Raises:
            StoreBusyError: a row is locked, or there was no time for all of them; it tells what
                became of those before.
        """
        results: dict[str, Settled] = {}
        todo: dict[str, tuple[Settlement, Lease]] = {}
        for end in ends:
            lease = self._leases.of(end.key, end.token)
            if lease is None:
                results[end.key] = Settled.PREEMPTED
            elif lease.over:
                removed = lease.endings[-1] is None
                results[end.key] = Settled.DONE if end.remove or not removed else Settled.PREEMPTED
            else:
                todo[end.key] = end, lease
        for _ in range(_ROUNDS):
            if not todo:
                return results
            now, rows = self._reader.look([*todo])
            for key, (end, lease) in [*todo.items()]:
                try:
                    result = self._settled(end, lease, rows.get(key), now)
                except StoreBusyError as busy:
                    raise type(busy)(str(busy), results) from None
                if result:
                    results[key] = result
                    del todo[key]
        raise StoreUnavailableError("rows change faster than they can be settled")

    def _settled(
        self, end: Settlement, lease: Lease, row: Stored | None, now: float
    ) -> Settled | None:
        """Settle one lease; None: the row has changed since it was read."""
        if row is None or not lease.stands(row, now):
            if lease.ended_as(row):
                lease.over = True
                return Settled.DONE
            self._leases.lose(end.key)
            return Settled.PREEMPTED
        if row.version != end.version:
            return Settled.REDEFINED
        values = as_seen(row)
        if end.remove:
            statement = self._sql.remove
            lease.endings.append(None)
        else:
            following, until = _times(end, lease, row, now)
            statement = self._sql.settle
            values |= {"following": following, "until": until}
            lease.endings.append((following, until))
        try:
            if not self._write(statement, values):
                return None
        except InvalidValueError as error:
            _log.error("%s: %s", end.key, error)  # its text says all
            self._leases.lose(end.key)
            return Settled.PREEMPTED
        lease.over = True
        if end.status == QUARANTINED:
            _log.error("%s: put off by an hour: %s", end.key, end.reason)
        return Settled.DONE

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """See `Backend.update_data`."""
        lease = self._leases.of(key, token)
        for _ in range(_ROUNDS):
            now, rows = self._reader.look([key])
            if lease is None or key not in rows or not lease.stands(rows[key], now):
                return False
            row = rows[key]
            values = {**as_seen(row), "new_data": join_data(as_row(row).type, data)}
            if self._write(self._sql.update_data, values):
                return True
        raise StoreUnavailableError(f"{key}: changes faster than its data can be replaced")

    def _write(self, statement: TextClause, values: Mapping[str, Any]) -> int:
        """Send one statement that writes; the number of rows it met."""
        return self._connector.run(lambda c: c.execute(statement, values).rowcount)


def _times(end: Settlement, lease: Lease, row: Stored, now: float) -> tuple[object, int]:
    """What ``next_time`` and ``timeout`` are to be after a settle."""
    earliest = floor(now) + (end.wait + 1 if end.wait else 0)
    if end.status == QUARANTINED:
        return row.next_time, min(floor(now) + _PUT_OFF, LATEST)
    if end.rest or end.next_time is None:
        return end.next_time if end.next_time is not None else row.next_time, NEVER
    not_before = end.not_before or 0
    if end.next_time > LATEST or not_before > LATEST:
        _log.error("%s: goes to rest: the table holds no time after January 2038", end.key)
        return row.next_time, NEVER
    if end.next_time == row.next_time:
        # Not in a second from which this lease's end was worked out: the next lease's end would
        # be the same. See "The token" in `psched.contrib.perfectsched.store.store`.
        earliest = max(earliest, min(lease.second, floor(now) + _CLOCK_STEP) + 1)
    elif end.not_before is not None and not end.wait:
        # Not now, if that is past: see "Moving on" in `psched.contrib.perfectsched.store.store`.
        return end.next_time, not_before
    return end.next_time, min(max(not_before, earliest), LATEST)
