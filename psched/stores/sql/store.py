"""The store on a relational database."""

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from functools import cached_property, partial
from itertools import chain
from math import ceil, floor
from typing import TYPE_CHECKING, Any

import sqlalchemy
from sqlalchemy import Connection, TextClause
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.compression import compress
from psched.base.errors import (
    AlreadyExistsError,
    MissingDatabaseError,
    NotFoundError,
    NotSupportedError,
    StoreBusyError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.lease_times import LONGEST_ALIVE_TIME
from psched.config import Config
from psched.core.attempts import told_of_death, wait_after_death
from psched.core.definition import history_setting
from psched.core.history.recording import record_of_death
from psched.core.history.records import RunRecord
from psched.core.hosts import AFTER_LANES, MOST_PATTERNS, PATTERNS
from psched.core.model import DELETING, Row, Settlement, Token
from psched.core.selection import EVERY_ROW, Selection
from psched.core.store_protocol import (
    Backlog,
    CallersTransaction,
    Claimed,
    ClaimUnknownError,
    Settled,
)
from psched.stores.lanes import Lanes
from psched.stores.observations import FACT, Lease, Takeover
from psched.stores.pages import batched
from psched.stores.sql import raw_execute
from psched.stores.sql.batches import BATCH, insert_batches, write_in_batches
from psched.stores.sql.claim_range import Continuing, PassingOver
from psched.stores.sql.claims import (
    AT_ANY_TIME,
    CompareAndSwap,
    SkipLocked,
    Terms,
    choose,
    rows_held_by,
)
from psched.stores.sql.conditions import Request
from psched.stores.sql.connector import one_request
from psched.stores.sql.dialects.callers_transaction import JoinedTransaction, callers_connection
from psched.stores.sql.errors import UnsupportedStatementError, refusing_data
from psched.stores.sql.history import InsertRecords
from psched.stores.sql.pauses import SqlPauses
from psched.stores.sql.schema import Schema
from psched.stores.sql.selecting import SelectedListing
from psched.stores.sql.statements import Statements, replace_values
from psched.stores.sql.table_store import TableStore, backlog_of

if TYPE_CHECKING:
    from psched.stores.sql.alerts import SqlAlerts
    from psched.stores.sql.glances import SqlGlances

_CROWD = 500
"""If so many of the first due rows are those of other hosts, a claim reads the index of lanes."""

_APART = 5.0
"""The seconds for which leases are ended and rows are claimed by separate requests, after a request
that did both has failed."""


class SqlStore(TableStore[Statements]):
    """Schedules in one table of a relational database."""

    pauses: SqlPauses

    def __init__(self, settings: Config, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(settings, clock=clock, rng=rng)
        dialect = self._connector.dialect
        self._schema = Schema(self._table, dialect)
        names = self._table, f"{self._table}_info", f"{self._table}_lane"
        quoted, info, index = map(self._connector.quote, names)
        observed = settings.observes_leases
        self._plain_sql = Statements(
            quoted, dialect, settings.only, info=info, lane_index=index, observed=observed
        )
        self._takeover = Takeover(self._ended, clock) if observed else None
        self.pauses = SqlPauses(self._table, self._connector)
        self.holds = self.announcements = self.recorded_changes = self
        self._pack = partial(compress, above=settings.compress_above, form=dialect.packed)
        self._in_batches = partial(write_in_batches, clock=clock, patience=settings.driver_timeout)
        self._channel = f"psched_wake_{self._table}"
        announce = dialect.announce
        self._announcement = None if announce is None else announce.format(self._channel)
        self._history_of = partial(history_setting, settings=settings)
        self._lanes = Lanes(settings.host_names, self._pattern_lanes, clock, self._waits)
        self._wanted_strategy, self._only = settings.claim_strategy, settings.only
        self._strategy: PassingOver | None = None
        self._is_checked = False
        self._purged = AT_ANY_TIME
        self._apart_until = 0.0
        # The strategy of each server. They are stored so that psched need not probe a server again
        # after it has reconnected.
        self._known_strategies: dict[Hashable, PassingOver] = {}

    @property
    def _sql(self) -> Statements:  # type: ignore[override]  # nobody sets it
        """The statements, except for what needs no answer of `_check`."""
        if not self._is_checked:
            self._connector.open()
        return self._plain_sql

    @cached_property
    def alerts(self) -> "SqlAlerts":  # type: ignore[override]  # it is set once, too
        """What keeps alerts; workers and most commands ask for none."""
        from psched.stores.sql.alerts import SqlAlerts  # noqa: PLC0415

        return self._part("alerts", SqlAlerts(self._table, self._connector, self._check))

    @cached_property
    def light_reads(self) -> "SqlGlances":  # type: ignore[override]  # as above
        """What reads rows without their data, for monitors and overviews."""
        from psched.stores.sql.glances import SqlGlances  # noqa: PLC0415

        quoted = self._connector.quote(self._table)
        return SqlGlances(quoted, self._connector.dialect, self._query, self._clock)

    @override
    def add(self, rows: Sequence[Row], *, nonce: str) -> None:
        self._connector.write_parts(
            self._batches(rows), partial(self._plain_sql.send_insert, nonce=nonce)
        )

    @override
    def join_transaction(self, connection: object) -> CallersTransaction:
        return JoinedTransaction(
            callers_connection(connection, self._connector.url),
            self._connector.dialect,
            self._plain_sql.now,
            self._inserts,
            self._announcement,
        )

    def announce(self) -> None:
        """Tell all who listen, as `Announces.announce` describes."""
        if (statement := self._announcement) is not None:
            self._connector.run(raw_execute.send, statement)

    def listen(self, heard: Callable[[], object], is_over: Callable[[], bool]) -> None:
        """Listen to announcements, as `Announces.listen` describes."""
        connector, listen = self._connector, self._connector.dialect.listen
        if listen is None:
            raise NotSupportedError("wake: this database announces nothing; use local")
        try:
            connector.read(listen, self._channel, heard, is_over, connector.renew)
        finally:
            self.disconnect()  # or what is announced would pile up on the connection

    @override
    def get(self, key: str) -> Row | None:
        found = self._read(self._sql.get, {"id": key})
        return found[0] if found else None

    @override
    def rows(self, selection: Selection = EVERY_ROW) -> Iterator[Row]:
        return SelectedListing(self._sql.selecting, selection, self._query)

    @override
    def count(self) -> int:
        return int(self._query(self._sql.count, {})[0][0])

    @override
    def replace(self, seen: Row, new: Row) -> bool:
        return self._write(self._sql.replace, self._replace_values(seen, new)) == 1

    @override
    def replace_many(self, changes: Sequence[tuple[Row, Row]]) -> Sequence[bool]:
        values = [self._replace_values(seen, new) for seen, new in changes]

        def replace(connection: Connection) -> list[bool]:
            replaced = []
            for each in values:
                self._connector.renew()
                replaced.append(raw_execute.count(connection, self._sql.replace, each) == 1)
            return replaced

        return self._connector.transact(replace)

    @one_request
    def replace_and_record(self, seen: Row, new: Row, records: Sequence[RunRecord]) -> bool:
        """Replace a row and write records, as `ReplacesAndRecords` describes."""
        statement, values = self._sql.replace, self._replace_values(seen, new)
        return self.history.apply_and_record(statement, values, records, together=True)

    @override
    def delete(self, key: str) -> bool:
        values: dict[str, object] = {"id": key}
        if self._plain_sql.checks_clock:
            # The time is read before `clock_steps`, so that a clock step in between is detected.
            # For some time after a clock step, a lease can seem to have expired although it has
            # not. Then -1 makes no lease count as expired, so a leased row is only marked, and the
            # worker that claims the row later deletes it.
            values["expired_at"] = floor(self._clock.wall())
            if self._connector.clock_steps.seconds_since() <= LONGEST_ALIVE_TIME:
                values["expired_at"] = -1
        if self._write(self._sql.delete, values):
            return True
        if self._write(self._sql.mark_deleting, {"id": key}):
            return False
        row = self.get(key)
        if row is None:
            raise NotFoundError(f"no schedule has the key {key!r}")
        if row.status == DELETING:
            return False
        # The row's lease has ended between the two statements, so the row can be deleted now.
        return self.delete(key)

    @override
    @one_request
    def claim(
        self, owner: str, *, limit: int, alive_time: int, shortest: int, horizon: float
    ) -> Claimed:
        lease = {"alive_time": alive_time, "shortest": shortest}
        terms = Terms(owner, min(limit, BATCH), lease, horizon)
        self._serve_lanes()
        if self._takeover is not None:
            leases = self._takeover.next(terms.limit, **lease)
            taken = CompareAndSwap(self._connector, self._sql).take_over(leases, terms)
            if taken.rows:
                return changed(taken, more=True)
        return self._claim_strategy().claim(terms)

    def _ended(self) -> Iterator[Lease]:
        """The leases and holds that have ended by the database's clock."""
        return (Lease(*columns) for columns in self._query(self._sql.ended, {}))

    def _serve_lanes(self) -> None:
        """Let the statements find the rows of this host's lanes, if it is time to look."""
        if not self._lanes.is_to_look:
            return
        lanes = self._lanes.look()
        indexed = bool(lanes) and self._is_crowded(lanes) and self._has_lane_index()
        if (lanes, indexed) != self._sql.served:
            self._sql.serve(lanes, indexed=indexed)

    def _is_crowded(self, lanes: Sequence[str]) -> bool:
        """Whether so many due rows are those of other hosts that a claim should not read them.

        Otherwise a claim of all lanes at once is quicker than a look into each: three times on
        MariaDB with eight lanes.
        """
        until = int(self._clock.wall())
        rows = self._query(self._sql.first_overdue, {"until": until, "limit": 2 * _CROWD})
        return sum(lane is not None and lane not in lanes for *_, lane in rows) >= _CROWD

    def _has_lane_index(self) -> bool:
        """Whether a claim can read the index of lanes, which `psched init` adds to a table."""
        if self._sql.lane_probe is not None:
            try:
                self._query(self._sql.lane_probe, {})
            except UnsupportedStatementError:
                return False
        return True

    @override
    def lanes(self, most: int) -> Sequence[str]:
        return [*filter(self._waits, self._lanes_between("", AFTER_LANES, most))]

    def _waits(self, lane: str) -> bool:
        """Whether a row of this lane waits or is leased, and does not rest."""
        return bool(self._query(self._sql.lane_waits, {"lane": lane, "ever": AT_ANY_TIME}))

    def _pattern_lanes(self, after: str) -> Sequence[str] | None:
        """Lanes of several names and of patterns that come next; None if no row has any lane."""
        if self._query(self._sql.any_lane, {})[0][0] is None:
            return None
        return self._lanes_between(after, PATTERNS[1], MOST_PATTERNS)

    def _lanes_between(self, after: str, before: str, most: int) -> Sequence[str]:
        """The lanes between two texts: one step of their index each, whatever the rows of it."""
        found = list[str]()
        while len(found) < most:
            (lane,) = self._query(self._sql.next_lane, {"after": after, "before": before})[0]
            if lane is None:
                break
            found.append(lane)
            after = lane
        return found

    @one_request
    def hold(self, holds: Mapping[str, str], *, alive_time: int, shortest: int) -> frozenset[str]:
        """Hold schedules for extra runs, as `HoldsSchedules.hold` describes."""
        lease: dict[str, Any] = {"alive_time": alive_time, "shortest": shortest}
        if self._plain_sql.checks_clock:
            # The time is read first, so that a clock step in between is detected.
            lease["expired_at"] = floor(self._clock.wall())
            lease["since_step"] = self._connector.clock_steps.seconds_since()

        written = 0

        def write(keys: Sequence[str]) -> Mapping[str, bool]:
            nonlocal written
            statement, values = self._sql.hold({key: holds[key] for key in keys})
            count = self._write(statement, {**values, **lease})
            written += count
            if count == len(keys):
                return dict.fromkeys(keys, True)
            rows = self.look(keys).values()
            held = {row.key for row in rows if (row.owner, row.held_by) == (None, holds[row.key])}
            return {key: key in held for key in keys}

        try:
            held = self._in_batches([*holds], write)
        except StoreUnavailableError as error:
            if not written or _is_locked(error):
                raise
            raise UnknownOutcomeError(str(error)) from None
        return frozenset(key for key, is_held in held.items() if is_held)

    @one_request
    def release(self, holds: Mapping[str, str]) -> None:
        """End holds, as `HoldsSchedules.release` describes."""
        for batch in batched([*holds.items()], BATCH):
            self._write(*self._sql.release(dict(batch)))

    @override
    def backlog(self, limit: int) -> Backlog:
        self._serve_lanes()
        time, key = self._claim_strategy().after
        values = {"limit": limit, "after": time, "after_id": key}
        return backlog_of(self._query(self._sql.backlog, values))

    @override
    def held(self, owner: str, keys: Sequence[str]) -> Sequence[Row]:
        rows = rows_held_by(owner, self._connector, self._sql)
        return [row for row in rows if row.key in keys] if keys else rows

    @override
    @one_request
    def extend(
        self, leases: Mapping[str, Token], *, alive_time: int, shortest: int
    ) -> frozenset[str]:
        lease = {"alive_time": alive_time, "shortest": shortest}

        def write(keys: Sequence[str]) -> Mapping[str, bool]:
            batch = {key: leases[key] for key in keys}
            statement, values = self._sql.extend(batch)
            if self._write(statement, {**values, **lease}) == len(batch):
                return dict.fromkeys(batch, True)
            rows = self.look(keys)
            return {key: key in rows and _holds(token, rows[key]) for key, token in batch.items()}

        held = self._in_batches([*leases], write)
        return frozenset(key for key, is_held in held.items() if is_held)

    @override
    @one_request
    def settle(self, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        def write(ends: Sequence[Settlement]) -> Mapping[str, Settled]:
            build = self._sql.remove if ends[0].remove else self._sql.settle
            records = self.history.missing is None and any(end.records for end in ends)
            skips = any(record.outcome is None for end in ends for record in end.records)
            if records and (skips or not self.history.refusals.paused):
                try:
                    settled = self._settle_and_record(ends, build(ends), skips=skips)
                except _PartlyRemovedError:
                    return {key: done for end in ends for key, done in write([end]).items()}
                if settled is not None:
                    return settled
            settled = self._settle(ends, build(ends))
            if records:
                self.history.leave_unwritten(_records_of(ends, settled))
            return settled

        results = dict.fromkeys((end.key for end in settlements), Settled.PREEMPTED)
        for remove in (False, True):
            ends = [end for end in settlements if end.remove is remove]
            results |= self._in_batches(ends, write)
        return results

    @override
    @one_request
    def settle_and_claim(
        self,
        settlements: Sequence[Settlement],
        owner: str,
        *,
        limit: int,
        alive_time: int,
        shortest: int,
        horizon: float,
    ) -> tuple[Mapping[str, Settled], Claimed | None]:
        strategy = self._claim_strategy()
        joins = (
            (strategy.sends_first or self._connector.dialect.is_file)
            and strategy.is_quick
            and not self._lanes.is_to_look
            and not (self._takeover is not None and self._takeover.is_due)
            and len(settlements) <= BATCH
            and not self.history.refusals.paused
            and self._clock.monotonic() >= self._apart_until
        )
        if joins:
            lease = {"alive_time": alive_time, "shortest": shortest}
            terms = Terms(owner, min(limit, BATCH), lease, horizon)
            try:
                claimed = self._claim_after(settlements, strategy, terms)
            except UnknownOutcomeError as error:
                self._apart_until = self._clock.monotonic() + _APART
                raise ClaimUnknownError(owner, ()) from error
            except (StoreError, AlreadyExistsError, _NotAllSettledError) as error:
                # Nothing was applied. What the cause was, the requests by themselves find out.
                self._apart_until = self._clock.monotonic() + _APART
                if isinstance(error, TransientStoreError) and not _is_locked(error):
                    raise
            else:
                return {end.key: Settled.DONE for end in settlements}, claimed
        return self.settle(settlements), None

    def _claim_after(
        self, settlements: Sequence[Settlement], strategy: PassingOver, terms: Terms
    ) -> Claimed:
        """Apply settlements with their records, and claim, all or nothing."""
        parts = [[end for end in settlements if end.remove is remove] for remove in (False, True)]
        records = [record for end in settlements for record in end.records]
        records = [] if self.history.missing is not None else records
        if strategy.sends_first:
            ends_of = map(self._sql.settle_or_fail, filter(None, parts))
            first = [*chain.from_iterable(ends_of), *self.history.insertions(records)]
            return strategy.claim_quickly(terms._replace(first=first))

        def work(connection: Connection) -> Claimed:
            for ends in filter(None, parts):
                request = self._sql.remove(ends) if ends[0].remove else self._sql.settle(ends)
                if raw_execute.count(connection, *request) != len(ends):
                    raise _NotAllSettledError
            self.history.insert_records(connection, records)
            return strategy.claim_quickly(terms)

        return self._connector.transact(work, patient=False)

    def _settle(self, ends: Sequence[Settlement], request: Request) -> Mapping[str, Settled]:
        """Apply settlements, and return the results."""
        written = self._write(*request)
        if written == len(ends):
            return {end.key: Settled.DONE for end in ends}
        try:
            rows = self.look([end.key for end in ends])
        except StoreUnavailableError as error:
            if not written or _is_locked(error):
                raise
            raise UnknownOutcomeError(str(error)) from None
        return {end.key: _result_of(end, rows.get(end.key)) for end in ends}

    def _settle_and_record(
        self, ends: Sequence[Settlement], request: Request, *, skips: bool
    ) -> Mapping[str, Settled] | None:
        """Apply settlements, with their records, in one transaction; None if these are refused."""

        def work(connection: Connection, insert: InsertRecords) -> Mapping[str, Settled]:
            written = raw_execute.count(connection, *request)
            if written == len(ends):
                results = {end.key: Settled.DONE for end in ends}
            elif written and ends[0].remove:
                # A row that does not exist does not tell who has removed it.
                raise _PartlyRemovedError
            else:
                select = self._sql.select([end.key for end in ends])
                self._connector.step()
                found = [Row(*columns) for columns in raw_execute.rows(connection, *select)]
                rows = {row.key: row for row in found}
                results = {end.key: _result_of(end, rows.get(end.key)) for end in ends}
            # If a row had been removed before, its record was written then, or somebody else has
            # removed it, perhaps after this lease had been lost.
            if written or not ends[0].remove:
                insert(connection, _records_of(ends, results))
            return results

        # If one of several rows cannot be recorded, the caller tries each row by itself.
        return self.history.write_and_record(work, of_many=len(ends) > 1, skips=skips)

    @override
    def update_data(self, key: str, token: Token, data: str) -> bool:
        values = {"id": key, "owner": token.owner, "fence": token.fence}
        with refusing_data():
            return self._write(self._sql.update_data, {**values, "data": self._pack(data)}) == 1

    @override
    def marked(self, keys: Sequence[str]) -> Mapping[str, str]:
        if not keys:
            return {}
        return dict(map(tuple, self._query(*self._sql.marked(keys))))

    @override
    @one_request
    def purge(self, limit: int) -> int:
        found = self._query(self._sql.purgeable, {"limit": limit, "since": self._purged})
        self._purged = AT_ANY_TIME
        purged = self._write(*self._sql.purge([key for key, _ in found])) if found else 0
        if purged == limit:  # as in `SqlHistory.trim`
            self._purged = found[-1][1]
        return purged

    @override
    def look(self, keys: Sequence[str]) -> Mapping[str, Row]:
        requests = map(self._sql.select, batched(keys, BATCH))
        rows = (row for request in requests for row in self._read(*request))
        return {row.key: row for row in rows}

    @override
    @one_request
    def recover(self, nonce: str, *, alive_time: int, retry_wait: float) -> Sequence[str]:
        # This range selects the owners that begin with the nonce and a dot, because the slash
        # follows the dot in the order of characters.
        owners = {"dot": f"{nonce}.", "after_dot": f"{nonce}/"}
        self._connector.catch_up()
        dead = self._read(self._sql.dead, {**owners, "alive_time": alive_time})
        ends = [
            Settlement.of(
                row,
                wait=ceil(wait_after_death(row.attempt, retry_wait)),
                attempt=row.attempt,
                status=row.status,
                **told_of_death(row),
            )
            for row in dead
        ]
        recorded = bool(dead) and self.history.missing is None
        results = self.settle(self._with_lost_records(nonce, dead, ends) if recorded else ends)
        released = [key for key, result in results.items() if result is Settled.DONE]
        self._write(self._sql.release_dead, owners)
        if Settled.REDEFINED in results.values():
            released += self.recover(nonce, alive_time=alive_time, retry_wait=retry_wait)
        return released

    def _with_lost_records(
        self, nonce: str, dead: Sequence[Row], ends: Sequence[Settlement]
    ) -> Sequence[Settlement]:
        """Add to the settlements of a dead worker's leases the records of its lost attempts."""
        worker, ended = self.history.worker(nonce), floor(self.now() * 1000)
        records = [record_of_death(row, ended, worker, self._history_of(row)) for row in dead]
        return [
            end if record is None else changed(end, records=(record,))
            for end, record in zip(ends, records, strict=True)
        ]

    @override
    def try_rights(self) -> None:
        super().try_rights()
        self.pauses.try_rights()
        self.alerts.try_rights()

    @override
    def _check(self, connection: Connection) -> None:
        history, output, alerts = self._schema.check(connection)
        self._note_missing(history=history, output=output, alerts=alerts)
        self._is_checked = True
        # The strategy is looked up again, because the new connection can be to another server.
        self._strategy = self._known_strategies.get(self._connector.server)

    @override
    def _make(self, connection: Connection, *, force: bool) -> Sequence[str]:
        return self._schema.init(connection, force=force)

    @override
    def plan_init(self) -> Sequence[tuple[str, str]]:
        try:
            return self._unchecked(self._schema.plan)
        except MissingDatabaseError:
            # SQLite: the plan for an empty database is the same.
            with sqlalchemy.create_engine("sqlite://").connect() as empty:
                return self._schema.plan(empty)

    @override
    def examine(self) -> Sequence[tuple[str, str]]:
        facts = super().examine()
        return facts if self._takeover is None else [*facts, FACT]

    @override
    def _describe_claims(self) -> str:
        replica = self._connector.server_info.replica
        return "none" if replica else self._claim_strategy().name

    def _claim_strategy(self) -> PassingOver:
        if self._strategy is None:
            sql = self._sql
            best = choose(self._connector, sql, self._wanted_strategy)
            dialect = self._connector.dialect
            can_send = isinstance(best, SkipLocked) or not dialect.skips_locked
            chosen = PassingOver(
                Continuing(best, self._connector, self.now, self._clock),
                CompareAndSwap(self._connector, sql),
                sql,
                self.pauses.select_holding,
                connector=self._connector,
                clock=self._clock,
                only=self._only,
                sends_first=can_send and bool(dialect.all_or_fail),
            )
            # `server` is read after `choose`, which may have connected to another server.
            self._strategy = self._known_strategies[self._connector.server] = chosen
        return self._strategy

    def _replace_values(self, seen: Row, new: Row) -> dict[str, Any]:
        return replace_values(seen, changed(new, data=new.data and self._pack(new.data)))

    def _inserts(self, rows: Sequence[Row], nonce: str) -> list[Request]:
        """Return the statements with which a program's connection inserts rows, with the nonce."""
        batches = self._batches(rows)
        if self._connector.dialect.as_bytes:  # the connection can have any character set
            batches = [[*map(_with_bytes, batch)] for batch in batches]
        return [self._plain_sql.insert(batch, nonce) for batch in batches]

    def _batches(self, rows: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """Return rows as they are stored, in batches for one statement each."""
        return [*insert_batches([*map(self._packed, rows)])]

    def _packed(self, row: Row) -> Row:
        data = row.data and self._pack(row.data)
        # A copy takes longer than the insertion of a row.
        return row if data is row.data else changed(row, data=data)

    def _read(self, statement: TextClause, values: Mapping[str, Any]) -> Sequence[Row]:
        return [Row(*columns) for columns in self._query(statement, values)]


def _with_bytes(row: Row) -> Row:
    payloads = {"data": row.data, "options": row.options}
    encoded: Any = {k: v.encode() if isinstance(v, str) else v for k, v in payloads.items()}
    return changed(row, **encoded)


def _records_of(ends: Sequence[Settlement], results: Mapping[str, Settled]) -> Sequence[RunRecord]:
    """The records of those settlements that were applied."""
    return [each for end in ends if results[end.key] is Settled.DONE for each in end.records]


class _NotAllSettledError(Exception):
    """Some settlements of a transaction were not applied."""


class _PartlyRemovedError(Exception):
    """Some rows of a batch had been removed before; a missing row does not tell who removed it."""


def _result_of(end: Settlement, row: Row | None) -> Settled:
    """Find out the result of a settlement; ``row`` is its row as read after the write."""
    if row is None:
        return Settled.DONE if end.remove else Settled.PREEMPTED
    if row.settled_by == str(end.token):
        return Settled.DONE
    return Settled.REDEFINED if _holds(end.token, row) else Settled.PREEMPTED


def _is_locked(error: TransientStoreError) -> bool:
    """Whether rows were locked; the error tells what was done to the others."""
    return isinstance(error, StoreBusyError) and not isinstance(error, StoreSlowError)


def _holds(token: Token, row: Row) -> bool:
    """Whether a row is leased with this token."""
    return row.owner == token.owner and row.fence == token.fence
