"""psched's store on PerfectSched's table, which PerfectSched's workers can use at the same time.

The store implements `psched.core.store_protocol`, as far as the table has columns for it:

======================  ======================================================================
column                  in psched
======================  ======================================================================
``timeout``             ``next_run_time``; 2147483647 means that there is no next run
``next_time``           ``next_time``
``cron``, ``delay``     ``cron``, ``delay``
``timezone``            ``timezone``; NULL means UTC
``data``                ``type`` and ``data``, see `rows`
======================  ======================================================================

**The token.** The table has no column for an owner, a fence, an attempt, a status or a version. A
lease is fenced by ``next_time`` and by the ``timeout`` that its holder wrote last: every write is
conditional on both. `HeldLeases` keeps these values in memory. So another process, or another store
in the same process, cannot use the lease. ``Row.version`` is a checksum of the definition; a settle
compares the definition itself.

**No two leases have the same token.** The end of a lease is computed from the second in which the
store's clock was read: second + alive_time + 1. A release or a retry makes the occurrence due in a
later second than all seconds from which an end of its lease was computed (`Lease.second`). A lease
also expires in a later second than all of these. So each claim of an occurrence happens in a later
second than all earlier claims and extends of this occurrence. The claim also writes a later end
than all earlier claims and extends, provided that all workers have the same ``alive_time``. When an
occurrence is finished, ``next_time`` changes. ``Row.fence`` is computed from the second of the
claim and from ``next_time``. So the fence grows with every claim, even if the workers'
``alive_time`` differ. docs/migration.md describes the cases that psched cannot prevent:
PerfectSched's workers, or workers with another ``alive_time``, can write an equal end; and a person
can delete a row and add it again, or set its times, within the second of a claim.

**Time.** All times are whole seconds of the store's clock. This store computes the times and sends
them as literals, because later requests compare the row with these times. A lease ends at
floor(now) + alive_time + 1.

**The next occurrence.** A settle that moves a row to its next occurrence sets ``timeout`` to
next_time + delay, as PerfectSched does. The settle does so even if this time has passed; it never
sets ``timeout`` to now. The reason is that PerfectSched's workers compare only ``timeout`` when
they claim. Suppose that two occurrences of a row had the same ``timeout``. Then a worker that has
read the row before the settle could claim the row after the settle, and run the first occurrence
again. Because of this rule, the row also shows whether its occurrence was leased before
(`StoredRow.never_leased`). An occurrence that was leased before runs even if the catch-up policy
would skip it.

**Unknown outcomes.** The next request finds out whether an unanswered extend (`Lease.holds`) or an
unanswered settle (`Lease.has_left`) was applied. For an unanswered claim, nobody can find this out:
of two workers that try to claim a row in the same second, one succeeds, but both send the same
values. So the worker treats the row of an unanswered claim as not claimed. If the claim did
succeed, the lease expires.

**Deleting** removes a row at once, even while it is leased. The holder of the lease finds that the
row no longer exists. The leases of a dead worker cannot be released; they expire.

**An invalid row**, such as one with an invalid cron line or zone, cannot be marked as quarantined.
Each time a worker of psched claims such a row, the worker puts the row off by an hour, and logs an
error. No occurrence is lost: once somebody has corrected the row, it runs within the hour.

**The run history** is in tables of psched's own beside the table: ``TABLE_runs``,
``TABLE_workers`` and ``TABLE_audit``. PerfectSched does not know them, and its table stays as it
is. The unique index of ``TABLE_runs`` is (key, scheduled_time, owner), as beside psched's own
table. The owner is not in PerfectSched's table. But it identifies the lease: a claim gets an owner
that was never used before, and leases a row at most once; `HeldLeases` keeps the owner in memory,
and only the process that holds the lease writes its record. The record is written in the
transaction that settles the row. If the answer to it is lost, the row shows whether both were
applied (`Lease.has_left`). Two kinds of runs have no record: those of PerfectSched's workers, and
those whose worker was killed, because a claim cannot tell that a lease has expired.

**Output** of tasks is in another such table, ``TABLE_output``.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, TextClause
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from psched.base import payload
from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    NotFoundError,
    NotSupportedError,
    UnknownOutcomeError,
)
from psched.base.lease_times import lease_time
from psched.config import Config
from psched.contrib.perfectsched.store.leases import LeaseWriter, may_be_leased
from psched.contrib.perfectsched.store.rows import (
    Statements,
    StoredRow,
    as_new,
    as_row,
    as_seen,
    as_stored,
)
from psched.core.catchup import iso
from psched.core.columns import decode
from psched.core.history.records import RunRecord
from psched.core.model import Row, Settlement, Token
from psched.core.selection import EVERY_ROW, SelectedRows, Selection
from psched.core.store_protocol import Backlog, Claimed, Settled
from psched.stores.sql.batches import BATCH, write_in_batches
from psched.stores.sql.connector import one_request
from psched.stores.sql.errors import ErrorKind, refusing_data
from psched.stores.sql.selecting import listing
from psched.stores.sql.side_tables import SideStore
from psched.stores.sql.table_store import TableStore, backlog_of

_USUAL_ALIVE_TIME = 300  # the default ``alive_time`` of PerfectSched's workers, in seconds

_CLOCKS_DIFFER = 60
"""Seconds by which a PerfectSched worker's clock can be ahead of the database's clock."""


class PerfectSchedStore(TableStore[Statements]):
    """Schedules in one of PerfectSched's tables; psched loads this class by its import path."""

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        self.recorded_changes = self
        patience = settings.driver_timeout
        self._sql = Statements(self._connector.quote(settings.table), self._connector.dialect)
        self._writer = LeaseWriter(
            self._connector,
            self._sql,
            clock=clock,
            patience=patience,
            settle=self.history.apply_and_record,
        )
        self._leases = self._writer.leases
        self._longest_lease = max(settings.alive_time, _USUAL_ALIVE_TIME) + 1 + _CLOCKS_DIFFER
        self._in_batches = partial(write_in_batches, clock=clock, patience=patience)
        # The rows of unanswered inserts, by the nonces of the inserts; see `add`.
        self._unanswered: dict[str, Sequence[StoredRow]] = {}

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        """Insert all of the rows or none.

        The table has no column for the nonce. So that a repeated insert is recognised by its nonce,
        this store keeps unanswered inserts in memory.
        """
        stored = [_checked(row) for row in rows]
        if not stored:
            return
        try:
            self._connector.transact(partial(self._insert, stored))
        except UnknownOutcomeError:
            self._unanswered[nonce] = stored
            raise
        except AlreadyExistsError:
            if not self._has_inserted(self._unanswered.pop(nonce, ())):
                raise
        self._unanswered.pop(nonce, None)

    @override
    def get(self, key: str) -> Row | None:
        return self.look([key]).get(key)

    @override
    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        """The rows of a selection. All rows are read up to the last that can be selected."""
        sql = self._sql
        parts = [(sql.first, sql.following)]
        if selection.sorted_by_key:
            parts = [(sql.first_by_key, sql.following_by_key)]
        found = listing(self._query, parts, self._listed)
        return SelectedRows(found, selection, self.now() if selection.due else None)

    @override
    def count(self) -> int:
        return int(self._query(self._sql.count, {})[0][0])

    @override
    def replace(self, seen: Row, new: Row) -> bool:
        """Change a row's definition; change its times only if no worker can hold a lease of it.

        The times of a row that may be leased are not changed, because the times fence the lease.
        """
        request = self._replacement(seen, new)
        return request is not None and self._write(*request) == 1

    @one_request
    def replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        """Replace a row and write records, as `ReplacesAndRecords` describes; see `replace`."""
        request = self._replacement(seen, new)
        return request is not None and self.history.apply_and_record(
            *request, records, together=True
        )

    @override
    def delete(self, key: str) -> bool:
        """Remove a row, even a leased one; the lease's holder then finds that it is missing."""
        # `get` compares keys exactly. The statement alone could delete the row of another key that
        # the database's collation treats as equal.
        if self.get(key) is None or not self._write(self._sql.delete, {"id": key}):
            raise NotFoundError(f"no schedule has the key {key!r}")
        return True

    @override
    @one_request
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        return self._writer.claim(owner, limit, lease_time(None, alive_time, shortest), horizon)

    @override
    def backlog(self, limit: int) -> Backlog:
        return backlog_of(self._query(self._sql.backlog, {"limit": limit}))

    @override
    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        """The rows that this owner certainly holds; the row of an unanswered claim is left out."""
        now, found = self._writer.read(
            [key for key in self._leases.keys_of(owner) if not keys or key in keys]
        )
        rows = [self._leases.as_row(row, now) for row in found.values() if row.until > now]
        return [row for row in rows if row.owner == owner]

    @override
    @one_request
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        length = lease_time(None, alive_time, shortest)

        def extend(keys: Sequence[str]) -> Mapping[str, bool]:
            held = self._writer.extend({key: leases[key] for key in keys}, length)
            return {key: key in held for key in keys}

        held = self._in_batches([*leases], extend)
        return frozenset(key for key, is_held in held.items() if is_held)

    @override
    @one_request
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """End leases; a row's next occurrence is due at ``not_before``, even if that has passed."""
        return self._in_batches(settlements, self._writer.settle)

    @override
    def update_data(self, key: str, token: Token, data: str) -> bool:
        """Replace a leased row's payload, but keep the type, which the same column contains."""
        with refusing_data():
            return self._writer.update_data(key, token, data)

    @override
    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Return an empty mapping, because the table has no column for marks."""
        return {}

    @override
    def purge(self, limit: int) -> int:
        """Remove nothing, because no row has a retention time."""
        return 0

    @override
    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        now, found = self._writer.read(keys)
        return {key: self._leases.as_row(row, now) for key, row in found.items()}

    @override
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        """Release nothing, because the table does not show which leases a dead worker held."""
        return ()

    @override
    def _describe_claims(self) -> str:
        return "cas, beside PerfectSched's workers"

    @override
    def _prepare(self) -> None:
        """Do nothing if the database's folder is missing: PerfectSched's database is elsewhere."""
        place = self._connector.url.database
        if place and Path(place).parent.is_dir():
            super()._prepare()

    @override
    def _check(self, connection: Connection) -> None:
        connection.execute(self._sql.check)
        self._note_missing(
            history=self._find_problem(connection, self.history, "the run history"),
            output=self._find_problem(connection, self.output, "output"),
        )

    @override
    def _make(self, connection: Connection, *, force: bool) -> Sequence[str]:
        from psched.contrib.perfectsched.store import table  # noqa: PLC0415  # rarely needed

        done = [*table.create_table(connection, self._table, self._connector.dialect)]
        try:
            return done + table.create_others(connection, self._table)
        except DBAPIError as error:
            if self._kind_of(error) is not ErrorKind.REFUSED:
                raise
            # The user of PerfectSched's database may have no right to create tables.
            why = self._explain(error)
            return [*done, f"no run history and no output: tables cannot be created: {why}"]

    def _replacement(self, seen: Row, new: Row) -> tuple[TextClause, dict[str, Any]] | None:
        """The request that replaces a row; None if the row was changed or deleted meanwhile."""
        now, found = self._writer.read([seen.key])
        row = found.get(seen.key)
        if row is None:
            return None
        held = self._leases.as_row(row, now).owner is not None
        held = held or may_be_leased(row, now, self._longest_lease)
        if not _is_as_seen(row, seen, held=held):
            return None
        if held and new.next_time != seen.next_time and _same_trigger(seen, new):
            raise NotSupportedError(
                f"next_time: {seen.key!r} may be running until {iso(row.until)}, and this table"
                " keeps no lease apart from its times; set it when the task has ended"
            )
        values = {**as_seen(row), **as_new(_checked(new))}
        return (self._sql.redefine if held else self._sql.replace), values

    def _find_problem(self, connection: Connection, part: SideStore, what: str) -> str | None:
        """Find out why something is not kept; return None if it is."""
        for table in part.tables:
            name = table.name
            try:
                connection.execute(table.check)
            except DBAPIError as error:
                kind = self._kind_of(error)
                if kind is ErrorKind.SCHEMA:
                    return (
                        f"the table {name!r} of {what} does not exist, or lacks a column;"
                        " run `psched init` as a user that may create tables"
                    )
                if kind is ErrorKind.REFUSED:
                    return (
                        f"the table {name!r} of {what} cannot be read:"
                        f" {self._explain(error)}; grant SELECT, INSERT, UPDATE and DELETE on it"
                    )
                raise
        return None

    def _explain(self, error: DBAPIError) -> str:
        return self._connector.dialect.explain(error.orig or error)

    def _kind_of(self, error: DBAPIError) -> ErrorKind:
        return self._connector.dialect.classify(error.orig or error)

    def _insert(self, rows: Sequence[StoredRow], connection: Connection) -> None:
        for start in range(0, len(rows), BATCH):
            connection.execute(*self._sql.insert(rows[start : start + BATCH]))

    def _has_inserted(self, rows: Sequence[StoredRow]) -> bool:
        """Whether an unanswered insert of these rows was applied: all rows exist, unchanged."""
        _, found = self._writer.read([row.id for row in rows])
        return bool(rows) and all(
            row.id in found and found[row.id].version == row.version for row in rows
        )

    def _listed(self, now: float, *columns: Any) -> Row:  # noqa: ANN401  # of the table
        return self._leases.as_row(StoredRow(*columns), float(now))


def _checked(row: Row) -> StoredRow:
    """Convert a row of psched to a row of the table."""
    if row.cron is None:
        raise NotSupportedError("cron: PerfectSched's table has no schedules that run once")
    if row.alive_time is not None:
        raise NotSupportedError("alive_time: PerfectSched's table has none for a schedule")
    if row.label is not None:
        raise NotSupportedError("label: PerfectSched's table has none")
    if row.run_as is not None:
        raise NotSupportedError("run_as: PerfectSched's table has none")
    options = decode("options", row.options) if row.options else {}
    for name in options.keys() - {payload.OPTION}:
        raise NotSupportedError(f"{name}: PerfectSched's table has no settings for a schedule")
    return as_stored(row)


def _is_as_seen(row: StoredRow, seen: Row, *, held: bool) -> bool:
    """Whether a row is unchanged since a client read it; an extended lease is not a change."""
    was = as_row(row)
    if (was.version, was.next_time) != (seen.version, seen.next_time):
        return False
    if was.next_run_time == seen.next_run_time:
        return True
    seen_leased = seen.next_run_time != (seen.next_time or 0) + seen.delay
    return held and seen_leased and seen.next_run_time is not None


def _same_trigger(one: Row, other: Row) -> bool:
    return (one.cron, one.timezone) == (other.cron, other.timezone)
