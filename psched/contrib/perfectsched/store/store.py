"""PerfectSched's table as a store, while PerfectSched's own workers use it too.

The protocol is that of `psched.core.store_protocol`, as far as the table can keep what it asks for:

======================  ======================================================================
column                  is
======================  ======================================================================
``timeout``             ``next_run_time``; 2147483647 is a row at rest
``next_time``           ``next_time``
``cron``, ``delay``     the same
``timezone``            the same; NULL is UTC
``data``                ``type`` and ``data``, see `rows`
======================  ======================================================================

**The token.** There is no column for an owner, a fence, an attempt, a status or a version. A
lease is fenced by ``next_time`` and by the last ``timeout`` that we know we wrote, both compared
by every write; `Leases` remembers them, so a lease is worth nothing in another process, or in
another instance in this one. ``Row.version`` is a checksum of the definition, but what is compared
by a settle is the definition itself.

**No two leases have the same token.** The end of a lease is worked out from the second in which
the store's clock was read: second + alive_time + 1. Whoever gives an occurrence back makes it due
in a later second than any from which an end of its own lease was worked out (`Lease.second`); and
a lease that has run out is over in a later second, too. So each claim of an occurrence is made in
a later second than all claims and extends before it, and writes a later end, as long as all workers
have the same ``alive_time``. An occurrence that is over gives its place to another ``next_time``.
``Row.fence`` is made of the second of the claim and of ``next_time``: it grows with every claim,
whatever the workers' ``alive_time``. What psched cannot prevent stands in docs/rdb_compat.md: the
ends that a worker of PerfectSched's writes, workers with another ``alive_time``, and a person who
deletes and adds a row, or sets its times, within the second of a claim.

**Time.** All instants are whole seconds of the store's clock, chosen here and written as
literals, so that they can be known again. A lease ends at floor(now) + alive_time + 1.

**Moving on.** Who moves a row to its next occurrence sets ``timeout`` to next_time + delay,
even if that is past, as PerfectSched does; not to now. PerfectSched's workers compare nothing
but ``timeout`` when they claim. If it could have one value twice, within a second and under two
occurrences, a worker that has read the row under the first could claim it under the second, and
run the first again. It also means that an occurrence which was never leased can be told from one
that was (`Stored.untouched`): that one is carried through, whatever the catch-up policy says.

**Unknown outcomes.** An extend is found out by the next request (`Lease.stands`), a settle as
well (`Lease.ended_as`). A claim is not: of two workers that try to claim a row in the same second,
one succeeds, and both would have written the same. It counts as not held, and runs out.

**Deleting** removes a row at once, whoever holds it: the holder finds it gone. Nothing can be
recovered from a dead worker: its leases run out.

**What cannot be understood** (a cron line, a zone) cannot be marked: its row is put off by an hour,
and an error is logged each time. Nothing is lost, and once it is corrected it goes on by itself.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from psched.base import payload
from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotSupportedError,
    UnknownOutcomeError,
)
from psched.base.lease_times import lease_time
from psched.config.tls import Tls
from psched.contrib.perfectsched.store.claims import Claims
from psched.contrib.perfectsched.store.held import Held
from psched.contrib.perfectsched.store.leases import Leases, is_leased
from psched.contrib.perfectsched.store.reader import Reader
from psched.contrib.perfectsched.store.rows import Stored, as_row, as_stored
from psched.contrib.perfectsched.store.statements import Statements, as_new, as_seen
from psched.core.catchup import iso
from psched.core.columns import decode
from psched.core.model import Row, Settlement, Token
from psched.core.store_protocol import Claimed, Settled
from psched.stores.sql import diagnostics
from psched.stores.sql.batches import BATCH, in_batches
from psched.stores.sql.failures import refusing_data
from psched.stores.sql.listing import Listing
from psched.stores.sql.relational import TableStore, one_request

_USUAL_ALIVE_TIME = 300
"""Seconds; that of PerfectSched's workers, if nobody has set it …"""

_FORMER_ALIVE_TIME = 3600
"""… and that of its older versions."""

_CLOCKS_DIFFER = 60
"""Seconds by which the clock of a PerfectSched worker's host may be ahead of the database's."""


class PerfectSchedStore(TableStore[Statements]):
    """Schedules in a table of PerfectSched's.

    Args:
        url: database URL in SQLAlchemy's form.
        table: the table's name, a plain identifier.
        timeout: seconds; bound of every wait for the server.
        clock: this host's clocks.
        rng: draws the pauses between tries.
        tls: how connections are encrypted; None: as the url's own options, or the driver, will.
        alive_time: seconds; the length of the workers' leases. What ends much later is no lease.
    """

    def __init__(
        self,
        url: str,
        *,
        table: str,
        timeout: float,
        clock: Clock,
        rng: random.Random,
        tls: Tls | None = None,
        alive_time: int = _FORMER_ALIVE_TIME,
    ) -> None:
        super().__init__(url, table=table, timeout=timeout, clock=clock, rng=rng, tls=tls)
        self._sql = Statements(self._connector.quote(table), self._connector.dialect)
        self._reader = Reader(self._connector, self._sql)
        self._leases = Leases()
        self._longest = max(alive_time, _USUAL_ALIVE_TIME) + 1 + _CLOCKS_DIFFER
        self._claims = Claims(
            self._connector, self._sql, self._leases, clock=clock, patience=timeout
        )
        self._held = Held(self._connector, self._sql, self._leases)
        self._in_batches = partial(in_batches, clock=clock, patience=timeout)
        # What was inserted, perhaps, by the nonces of those who did.
        self._unsure: dict[str, Sequence[Stored]] = {}

    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """See `Backend.add`.

        Raises:
            NotSupportedError: the table has no place for what is asked for.
        """
        stored = [_new(row) for row in rows]
        if not stored:
            return
        try:
            self._connector.transact(partial(self._insert, stored))
        except UnknownOutcomeError:
            self._unsure[nonce] = stored
            raise
        except AlreadyExistsError:
            if not self._has_inserted(self._unsure.pop(nonce, ())):
                raise
        self._unsure.pop(nonce, None)

    def get(self, key: str) -> Row | None:
        """See `Backend.get`."""
        return self.look([key]).get(key)

    def rows(self) -> Iterator[Row]:
        """See `Backend.rows`."""
        return Listing(self._query, [(self._sql.first, self._sql.following)], self._listed)

    def replace(self, seen: Row, new: Row) -> bool:
        """See `Backend.replace`.

        The times of a row that somebody may hold stay as they are: its lease is fenced by them.

        Raises:
            NotSupportedError: the table has no place for what is asked for.
        """
        now, found = self._reader.look([seen.key])
        row = found.get(seen.key)
        if row is None:
            return False
        held = self._leases.row(row, now).owner is not None or is_leased(row, now, self._longest)
        if not _is_as_seen(row, seen, held=held):
            return False
        if held and new.next_time != seen.next_time and _same_trigger(seen, new):
            raise NotSupportedError(
                f"next_time: {seen.key!r} may be running until {iso(row.until)}, and this table"
                " keeps no lease apart from its times; set it when the task has ended"
            )
        values = {**as_seen(row), **as_new(_new(new))}
        return self._write(self._sql.redefine if held else self._sql.replace, values) == 1

    def delete(self, key: str) -> bool:
        """See `Backend.delete`; whoever holds the row finds it gone."""
        # Its collation may take another key for this one.
        if self.get(key) is None or not self._write(self._sql.delete, {"id": key}):
            raise NotFoundError(f"no schedule has the key {key!r}")
        return True

    @one_request
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        """See `Backend.claim`."""
        return self._claims.claim(owner, limit, lease_time(None, alive_time, shortest), horizon)

    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """See `Backend.held`: what is known for certain."""
        mine = [key for key in self._leases.by(owner) if not keys or key in keys]
        now, found = self._reader.look(mine)
        rows = [self._leases.row(row, now) for row in found.values() if row.until > now]
        return [row for row in rows if row.owner == owner]

    @one_request
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        """See `Backend.extend`."""
        length = lease_time(None, alive_time, shortest)

        def extend(keys: Sequence[str]) -> Mapping[str, bool]:
            held = self._held.extend({key: leases[key] for key in keys}, length)
            return {key: key in held for key in keys}

        held = self._in_batches([*leases], extend)
        return frozenset(key for key, is_held in held.items() if is_held)

    @one_request
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """See `Backend.settle`.

        A row that moves on is due at exactly ``not_before``, also if that is past.
        """
        return self._in_batches(settlements, self._held.settle)

    def update_data(self, key: str, token: Token, data: str) -> bool:
        """See `Backend.update_data`; the type stays as it is."""
        with refusing_data():
            return self._held.update_data(key, token, data)

    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """See `Backend.marked`: there are no marks."""
        del keys
        return {}

    def purge(self, limit: int) -> int:
        """See `Backend.purge`: nothing is kept that could be removed."""
        del limit
        return 0

    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        """See `Backend.look`."""
        now, found = self._reader.look(keys)
        return {key: self._leases.row(row, now) for key, row in found.items()}

    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """See `Backend.recover`: nobody can tell what a dead worker held; it runs out."""
        del nonce, alive_time, retry_wait
        return ()

    def examine(self) -> Sequence[tuple[str, str]]:
        """See `Backend.examine`."""
        strategy = "cas, beside PerfectSched's workers"
        return diagnostics.examine(self._connector, self.now, self._clock, strategy=strategy)

    def _prepare(self) -> None:
        """No folder is made: where none is, PerfectSched's database is somewhere else."""
        place = self._connector.url.database
        if place and Path(place).parent.is_dir():
            super()._prepare()

    def _check(self, connection: Connection) -> None:
        connection.execute(self._sql.check)

    def _make(self, connection: Connection) -> Sequence[str]:
        from psched.contrib.perfectsched.store.table import make  # noqa: PLC0415  # only made once

        return make(connection, self._table, self._connector.dialect)

    def _insert(self, rows: Sequence[Stored], connection: Connection) -> None:
        for start in range(0, len(rows), BATCH):
            connection.execute(*self._sql.insert(rows[start : start + BATCH]))

    def _has_inserted(self, rows: Sequence[Stored]) -> bool:
        """Whether these rows, which may have been inserted by us, are there."""
        _, found = self._reader.look([row.id for row in rows])
        return bool(rows) and all(
            row.id in found and found[row.id].version == row.version for row in rows
        )

    def _listed(self, now: float, *columns: Any) -> Row:  # noqa: ANN401  # of the table
        return self._leases.row(Stored(*columns), float(now))


def _new(row: Row) -> Stored:
    """A row for the table, if it has a place for all that was declared."""
    if row.cron is None:
        raise NotSupportedError("cron: PerfectSched's table has no schedules that run once")
    if row.alive_time is not None:
        raise NotSupportedError("alive_time: PerfectSched's table has none for a schedule")
    options = decode("options", row.options) if row.options else {}
    for name in options.keys() - {payload.OPTION}:
        raise NotSupportedError(f"{name}: PerfectSched's table has no settings for a schedule")
    return as_stored(row)


def _is_as_seen(row: Stored, seen: Row, *, held: bool) -> bool:
    """Whether a row is what somebody has seen, but for a lease that was extended since."""
    was = as_row(row)
    if (was.version, was.next_time) != (seen.version, seen.next_time):
        return False
    if was.next_run_time == seen.next_run_time:
        return True
    seen_leased = seen.next_run_time != (seen.next_time or 0) + seen.delay
    return held and seen_leased and seen.next_run_time is not None


def _same_trigger(one: Row, other: Row) -> bool:
    return (one.cron, one.timezone) == (other.cron, other.timezone)
