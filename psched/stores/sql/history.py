"""The run history: tables of runs, of workers and of changes beside the table of schedules."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, TextClause, text
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    PschedError,
    StoreBusyError,
    StoreError,
    StoreSlowError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.fault_log import FaultLog
from psched.base.texts import storable
from psched.core.history.protocol import (
    EVERY_RUN,
    FIRST_FAILURES,
    MOST_UNWRITTEN,
    AuditSelection,
    KeepsHistory,
    NewFailures,
    RunSelection,
)
from psched.core.history.records import (
    DECISIONS,
    FAILED_FATES,
    FAILURES,
    WHOLE,
    AuditRecord,
    Outcome,
    RunRecord,
    WorkerRecord,
    texts_of,
)
from psched.core.operations.extra_runs import prefix_of_extra_runs
from psched.stores.pages import batched
from psched.stores.sql import raw_execute
from psched.stores.sql.batches import Insertion, split
from psched.stores.sql.conditions import Request
from psched.stores.sql.connector import Connector, one_request
from psched.stores.sql.dialects import Dialect
from psched.stores.sql.errors import InvalidValueError, StoreFullError
from psched.stores.sql.side_tables import (
    SideStore,
    SideTable,
    Where,
    cached_text,
    many,
    pages,
    unite,
)

_log = logging.getLogger("psched.store")

RUN_COLUMNS = tuple(field.name for field in fields(RunRecord))
WORKER_COLUMNS = tuple(field.name for field in fields(WorkerRecord))
AUDIT_COLUMNS = tuple(field.name for field in fields(AuditRecord))

_CHANGE_COLUMNS = tuple(name for name in AUDIT_COLUMNS if name not in {"id", "time"})

LEASE_COLUMNS = ("key", "scheduled_time", "owner")
"""The columns that identify a record, which have a unique index."""

HOST_LENGTH = 255
LABEL_LENGTH = 255
REASON_LENGTH = 1000

_TEXTS = (
    ("label", LABEL_LENGTH),
    ("host", HOST_LENGTH),
    ("reason", REASON_LENGTH),
    ("error", None),
    ("result", None),
)
"""The texts of a record that can be of any origin, and the most characters of their columns."""


_NEAREST = 500
"""The most records before an instant among which a span is searched that contains the instant.

Between the first occurrence of a span and the instant there are records only if somebody has run
occurrences of the span after all.
"""
_DECISIONS = ", ".join(f"'{fate}'" for fate in sorted(DECISIONS))
_WHOLE = ", ".join(f"'{outcome}'" for outcome in sorted(WHOLE))
_WORDS = texts_of(RunRecord)

_LARGE = frozenset({"error", "result"})
"""The columns of ``<table>_runs`` that can be large."""

INSERT_BATCH = 200
"""The most records that are inserted at a time."""

_MOST_TRIMMED = 1000
"""About the most records of one key that are deleted at a time."""

_NEIGHBOURS = 10
"""How many records in a row must be older than a time before all records before them count as older
without being read."""

_LATE = 3_600_000
"""The longest time in milliseconds from an attempt's end until its record is written, for which
`SqlHistory.runs` allows."""

_MARGIN = 1000
"""How many records before the newest known one may be written later than it.

So many can other workers write while a transaction is open. They are read again by each call.
"""

_KEYS = 100
"""The most keys whose last runs one query finds. SQLite refuses a query of more than 500 parts."""

_AFTER_LOCK = 5.0
"""The seconds for which no records are written after another session's lock held up the worker."""

_AFTER_BREAK = 60.0
"""The seconds for which no records are written after the database was too slow for them. They are
many, because a new connection takes many answers."""

_MOST_BREAKS = 3
"""After so many connections in a row that broke at the same place, records count as refused."""

R = TypeVar("R")
InsertRecords = Callable[[Connection, Sequence[RunRecord]], None]


class HistoryStatements:
    """Every statement that psched sends about the tables of the run history."""

    def __init__(self, table: str, dialect: Dialect, quote: Callable[[str], str]) -> None:
        def table_of(what: str, read: Sequence[str], unique: Sequence[str] = ()) -> SideTable:
            return SideTable(f"{table}_{what}", dialect, quote, read=read, unique=unique)

        self.runs = table_of("runs", RUN_COLUMNS, LEASE_COLUMNS)
        self.workers = table_of("workers", WORKER_COLUMNS)
        self.audit = table_of("audit", AUDIT_COLUMNS)
        self._runs, workers = self.runs.quoted, self.workers.quoted
        self._type = dialect.exact.format("type")
        self._light_columns = ", ".join(
            "NULL" if name in _LARGE else quote(name) for name in RUN_COLUMNS
        )
        self._key, self._until = quote("key"), quote("until")
        self._of_each_key, self._newest_of_each_key = (
            part.format(self._key, ":key{0}") for part in dialect.newest_of_key
        )
        oldest_of_key = self.runs.newest_of_key.replace(" DESC", "")
        # The driver repeats this statement for each record; PyMySQL combines the repetitions into
        # one statement. PostgreSQL gets JSON instead.
        inserted = [name for name in RUN_COLUMNS if name != "id"]
        self.insert_run = self.runs.insertion(inserted, ignore=self.runs.ignore)
        types = {name: "TEXT" if name in _WORDS else "BIGINT" for name in inserted}
        self.many_runs = Insertion(
            self.runs.quoted, types, {}, dialect, quote, ignore=self.runs.ignore
        )
        self.reads_json = dialect.reads_json
        self._earlier = (
            f"SELECT {self.runs.columns} FROM {self._runs}"
            f" WHERE {self._key} = :key AND scheduled_time <= :covering"
            " ORDER BY scheduled_time DESC LIMIT :nearest"
        )
        changes = dict.fromkeys(_CHANGE_COLUMNS, "TEXT")
        computed = {"time": dialect.now_milliseconds}
        self._changes = Insertion(self.audit.quoted, changes, computed, dialect, quote)
        # With these statements, the store finds the first id since a time by bisection.
        # These are two queries, because SQLite would read all records for both in one.
        self.bounds = text(
            f"SELECT (SELECT MIN(id) FROM {self._runs}), (SELECT MAX(id) FROM {self._runs})"
        )
        self.next_ended = text(
            f"SELECT ended FROM {self._runs} WHERE id >= :id ORDER BY id LIMIT :limit"
        )
        self.oldest, self.delete_range = self.runs.trimming("ended")
        self.oldest_audits, self.delete_audits = self.audit.trimming("time")
        self.nth_of_key = text(
            f"SELECT id FROM {self._runs} WHERE {self._key} = :key"
            " ORDER BY id DESC LIMIT 1 OFFSET :keep"
        )
        self.oldest_of_key = text(
            f"SELECT id FROM {self._runs} WHERE {self.runs.of_key} ORDER BY {oldest_of_key}"
            " LIMIT 1 OFFSET :most"
        )
        self.delete_of_key = text(
            f"DELETE FROM {self._runs} WHERE {self._key} = :key AND id <= :last"
        )
        self.delete_lost = text(
            f"DELETE FROM {self._runs} WHERE {self.runs.one} AND outcome = 'lost'"
        )
        now, integer = dialect.now_floor, dialect.integer.format
        times = {
            "started": f"COALESCE(NULLIF({integer(':started')}, 0), {now})",
            "seen": now,
            "ended": f"CASE WHEN {integer(':ended')} = 0 THEN {now} ELSE {integer(':ended')} END",
        }
        given = [name for name in WORKER_COLUMNS if name not in times]
        self.insert_worker = self.workers.insertion(given, times)
        select = f"SELECT {self.workers.columns} FROM {workers} WHERE"
        self.select_workers = text(f"{select} seen >= :since ORDER BY started, nonce")
        self.select_worker = text(f"{select} nonce = :nonce")
        self.delete_workers = text(f"DELETE FROM {workers} WHERE seen < :before")
        self.delete_worker = text(f"DELETE FROM {workers} WHERE nonce = :nonce")

    def select_runs(
        self,
        selection: RunSelection,
        *,
        first: int | None,
        before: int | None,
        limit: int,
        light: bool = False,
    ) -> Request:
        """A request that reads one page of records, the newest first."""
        if selection.key is not None and selection.with_extra_runs:
            return self._select_with_extra_runs(selection, first, before, limit)
        where = Where()
        where.add("id >= :first", first=first)
        where.add("id < :before", before=before)
        where.add(self.runs.of_key, key=selection.key)
        where.add("ended >= :since", since=selection.since)
        source = self._runs
        if selection.covering is not None:
            covers = f"COALESCE({self._until}, scheduled_time) >= :covering"
            where.add(covers, covering=selection.covering, nearest=_NEAREST)
            source = f"({self._earlier}) AS earlier"
        where.conditions += self._kinds(selection, where)
        order = "id DESC" if selection.key is None else self.runs.newest_of_key
        columns = self._light_columns if light else self.runs.columns
        statement = f"SELECT {columns} FROM {source}{where} ORDER BY {order} LIMIT :limit"
        return cached_text(statement), {**where.values, "limit": limit}

    def _select_with_extra_runs(
        self, selection: RunSelection, first: int | None, before: int | None, limit: int
    ) -> Request:
        """A page of the records of a schedule and of its extra runs, see `select_runs`.

        The database reads the newest records of the schedule in the order of the index (key, id),
        and finds the newest records of its extra runs by reading the entries of all of them in this
        index. Their ids are written as sums, so that it does not walk through the primary key.
        """
        begin = prefix_of_extra_runs(selection.key or "")
        where = Where()
        where.values |= {
            "limit": limit,
            "key": selection.key,
            "extra": begin,
            "after_extra": begin[:-1] + chr(ord(begin[-1]) + 1),
        }
        of_extra = f"{self._key} >= :extra AND {self._key} < :after_extra"
        where.add("ended >= :since", since=selection.since)
        kinds = [*where.conditions, *self._kinds(selection, where)]
        arms = list[str]()
        for condition, column, order in (
            (self.runs.of_key, "id", self.runs.newest_of_key),
            (of_extra, "id + 0", "id + 0 DESC"),
        ):
            conditions = [condition, *kinds]
            for name, bound, operator in ("first", first, ">="), ("before", before, "<"):
                if bound is not None:
                    conditions.append(f"{column} {operator} :{name}")
                    where.values[name] = bound
            arms.append(
                f"SELECT newest FROM (SELECT id AS newest FROM {self._runs}"
                f" WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT :limit)"
                f" AS part{len(arms)}"
            )
        return cached_text(
            f"SELECT {self.runs.columns} FROM ({' UNION ALL '.join(arms)}) AS parts"
            f" JOIN {self._runs} ON id = newest ORDER BY id DESC LIMIT :limit"
        ), where.values

    def _kinds(self, selection: RunSelection, where: Where) -> Iterator[str]:
        """The conditions on the types, outcomes and fates of records; their values are added."""
        if selection.types:
            yield where.one_of(self._type, "type", selection.types)
        how = []
        if selection.outcomes:
            how.append(where.one_of("outcome", "outcome", selection.outcomes))
        if selection.fates:
            how.append(where.one_of("fate", "fate", selection.fates))
        if how:
            yield f"({' OR '.join(how)})"

    def select_last_runs(self, keys: Sequence[str]) -> Request:
        """A request that reads the newest record of each key that `RunRecord.is_end`.

        It does not read large columns. For each key, the database walks down the index (key, id) to
        the first such record.
        """
        each = (
            f"SELECT newest FROM (SELECT id AS newest FROM {self._runs}"
            f" WHERE {self._of_each_key}"
            f" AND (outcome IS NOT NULL OR (fate IN ({_DECISIONS}) AND {self._until} IS NULL))"
            f" ORDER BY {self._newest_of_each_key} LIMIT 1) AS last{{0}}"
        )
        # It is a join, because MariaDB would run the parts of id IN (…) anew for each record.
        parts = (
            f"SELECT {self._light_columns} FROM (",
            each,
            f") AS lasts JOIN {self._runs} ON id = newest",
        )
        values = {f"key{i}": key for i, key in enumerate(keys)}
        return many(parts, len(keys), " UNION ALL "), values

    def select_durations(self, keys: Sequence[str], most: int) -> Request:
        """A request that reads key, number and duration of the newest whole runs of each key."""
        each = (
            f"SELECT {self._key}, id, took FROM (SELECT {self._key}, id, ended - started AS took"
            f" FROM {self._runs} WHERE {self._of_each_key} AND outcome IN ({_WHOLE})"
            f" AND started IS NOT NULL ORDER BY {self._newest_of_each_key} LIMIT :most) AS of{{0}}"
        )
        values = {f"key{i}": key for i, key in enumerate(keys)}
        return unite(each, len(keys)), {**values, "most": most}

    def insert_audits(self, connection: Connection, changes: Sequence[AuditRecord]) -> None:
        """Insert changes, all or none; there must be one."""
        self._changes.send(connection, [*map(_AUDIT_VALUES, changes)])

    def select_audits(self, selection: AuditSelection, before: int | None, limit: int) -> Request:
        """A request that reads one page of changes, the newest first, with ids below ``before``."""
        where = Where()
        where.add("id < :before", before=before)
        where.add(self.audit.of_key, key=selection.key)
        where.add("time >= :since", since=selection.since)
        order = "id DESC" if selection.key is None else self.audit.newest_of_key
        return self.audit.page(where, order, limit)


_RUN_VALUES = attrgetter(*RUN_COLUMNS[:-1])
_AUDIT_VALUES = attrgetter(*_CHANGE_COLUMNS)


def run_values(record: RunRecord) -> dict[str, Any]:
    """The values that `HistoryStatements.insert_run` binds."""
    values = dict(zip(RUN_COLUMNS, _RUN_VALUES(record), strict=False))
    values["out_of_memory"] = int(record.out_of_memory)
    for name, most in _TEXTS:
        if (written := values[name]) is not None:
            values[name] = storable(written[:most])
    return values


def run_record(columns: Sequence[Any]) -> RunRecord:
    """The record in a row of ``<table>_runs``."""
    values = dict(zip(RUN_COLUMNS, columns, strict=True))
    values["out_of_memory"] = bool(values["out_of_memory"])
    return RunRecord(**values)


def worker_record(columns: Sequence[Any]) -> WorkerRecord:
    """The record in a row of ``<table>_workers``."""
    return WorkerRecord(**dict(zip(WORKER_COLUMNS, columns, strict=True)))


def audit_record(columns: Sequence[Any]) -> AuditRecord:
    """The record in a row of ``<table>_audit``."""
    return AuditRecord(**dict(zip(AUDIT_COLUMNS, columns, strict=True)))


class Refusals:
    """Tells records that the database refuses from a database that is unavailable.

    A task's end is worth more than its record. So if the database refuses the records of a
    settlement, the settlement is applied without them. But if the database is unavailable, nothing
    was applied, and the settlement is repeated later with its records.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._fault = FaultLog("records of the run history wait to be written", _log, clock)
        self._resume_at = clock.monotonic()
        self._breaks = 0

    @property
    def paused(self) -> bool:
        """Whether no records are to be written now, because it took too long a moment ago."""
        return self._clock.monotonic() < self._resume_at

    def written(self) -> None:
        """Note that records were written."""
        self._breaks = 0
        if self._fault.ongoing:
            self._fault.passed()

    def is_refusal(self, error: PschedError, *, committing: bool) -> bool:
        """Whether an error means that the records were refused, so that they are to be left out."""
        refused = not isinstance(error, StoreUnavailableError | UnknownOutcomeError)
        if isinstance(error, StoreFullError):
            refused = True
        elif isinstance(error, StoreSlowError):
            # Settling takes fewer answers without records, so the repeated request leaves them out.
            self._pause(_AFTER_BREAK)
        elif isinstance(error, StoreBusyError) and not committing:
            # Another session holds a lock on the table of the records. Each wait for the lock holds
            # up the worker. (If the commit fails for another session, the cause is a row of a
            # schedule, on another node of a Galera cluster.)
            self._pause(_AFTER_LOCK)
            refused = True
        elif isinstance(error, StoreUnavailableError) and not committing:
            self._breaks += 1
            if self._breaks >= _MOST_BREAKS:
                self._breaks = 0
                self._pause(_AFTER_BREAK)
        if refused or self.paused:
            self._fault.failed(error)
        return refused

    def _pause(self, seconds: float) -> None:
        self._resume_at = self._clock.monotonic() + seconds


class SqlHistory(SideStore, KeepsHistory):
    """Keeps the run history, as `KeepsHistory` describes."""

    def __init__(
        self,
        table: str,
        connector: Connector,
        check: Callable[[Connection], None],
        clock: Clock,
    ) -> None:
        self._sql = sql = HistoryStatements(table, connector.dialect, connector.quote)
        super().__init__(connector, check, sql.runs, sql.workers, sql.audit)
        self._clock = clock
        self._trimmed: dict[TextClause, int] = {}
        self.lost_records = 0
        self.unwritten: deque[RunRecord] = deque()

    @cached_property
    def refusals(self) -> Refusals:
        """Whether the database refuses records; only who settles leases asks for it."""
        return Refusals(self._clock)

    @override
    @one_request
    def record(self, records: Sequence[RunRecord]) -> None:
        self._require()

        def write(connection: Connection) -> None:
            for record in records:
                if record.outcome is not None and record.outcome != Outcome.LOST:
                    lease = {name: getattr(record, name) for name in LEASE_COLUMNS}
                    raw_execute.count(connection, self._sql.delete_lost, lease)
            self.insert_records(connection, records)

        if records:
            self._connector.transact(write, patient=False)

    @override
    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        self._require()

        first: int | None = None

        def read(before: int | None, limit: int) -> list[RunRecord]:
            nonlocal first
            if selection.since is not None and first is None:
                first = self._first_since(selection.since)
            request = self._sql.select_runs(selection, first=first, before=before, limit=limit)
            return [run_record(columns) for columns in self._query(*request)]

        if not selection.with_extra_runs:
            return pages(read, selection.limit)
        # The keys of other schedules can have the same beginning as those of the extra runs.
        return pages(read, selection.limit, keep=selection.matches)

    def _first_since(self, since: int) -> int:
        """An id that no record which ended at or after a time is before; as large as possible.

        The ids grow nearly in the order of ``ended``, but a record can be written late, for example
        after an outage of the store. So the search allows for an hour.
        """
        least, most = self._query(self._sql.bounds, {})[0]
        if least is None:
            return 0
        low, high = int(least), int(most) + 1
        while low < high:
            middle = (low + high) // 2
            near = self._query(self._sql.next_ended, {"id": middle, "limit": _NEIGHBOURS})
            if all(ended < since - _LATE for (ended,) in near):
                low = middle + 1
            else:
                high = middle
        return low

    @override
    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        self._require()
        found: dict[str, RunRecord] = {}
        for batch in batched(keys, _KEYS):
            for columns in self._query(*self._sql.select_last_runs(batch)):
                record = run_record(columns)
                found[record.key] = record
        return found

    @override
    def durations(self, keys: Sequence[str], most: int) -> Mapping[str, Sequence[int]]:
        self._require()
        found: dict[str, list[tuple[int, int]]] = {}
        for batch in batched(keys, _KEYS):
            for key, number, took in self._query(*self._sql.select_durations(batch, most)):
                found.setdefault(key, []).append((number, took))
        return {
            key: [took for _, took in sorted(runs, reverse=True)] for key, runs in found.items()
        }

    @override
    def failures(self, *, since: int, among: int, limit: int) -> Sequence[RunRecord]:
        self._require()
        newest = self._query(self._sql.bounds, {})[0][1]
        if newest is None:
            return []
        return self._failures_from(max(0, int(newest) - among + 1), since, limit)

    @override
    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        # The place is the largest id. The records just before it are read again, because a slower
        # transaction may have written one of them after the earlier call.
        self._require()
        newest = int(self._query(self._sql.bounds, {})[0][1] or 0)
        # If the table was emptied, its ids may begin again.
        last = None if after is None else min(int(after), newest)
        first = newest - FIRST_FAILURES if last is None else last - _MARGIN
        return NewFailures(
            place=str(newest), records=self._failures_from(max(0, first + 1), None, limit)
        )

    def _failures_from(self, first: int, since: int | None, limit: int) -> list[RunRecord]:
        failed = RunSelection(outcomes=FAILURES, fates=FAILED_FATES, since=since)
        request = self._sql.select_runs(failed, first=first, before=None, limit=limit, light=True)
        return [run_record(columns) for columns in self._query(*request)]

    @override
    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        self._require()

        def read(before: int | None, limit: int) -> list[AuditRecord]:
            request = self._sql.select_audits(selection, before, limit)
            return [audit_record(columns) for columns in self._query(*request)]

        return pages(read, selection.limit)

    @override
    @one_request
    def trim(self, *, before: int, limit: int) -> int:
        self._require()
        sql, deleted = self._sql, 0
        for select, delete in (
            (sql.oldest, sql.delete_range),
            (sql.oldest_audits, sql.delete_audits),
        ):
            found = self._query(select, {"limit": limit, "after": self._trimmed.pop(select, 0)})
            old = [id_ for id_, time in found if time < before]
            if old:
                ends = {"first": min(old), "last": max(old), "before": before}
                deleted += self._write(delete, ends)
            if len(old) == limit:
                # There may be more to delete. The next call does not pass what was deleted, which
                # the database may have to keep; see `psched.stores.sql.claim_range`.
                self._trimmed[select] = max(old)
        self._write(sql.delete_workers, {"before": before // 1000})
        return deleted

    @override
    @one_request
    def trim_key(self, key: str, keep: int) -> int:
        self._require()
        sql = self._sql
        found = self._query(sql.nth_of_key, {"key": key, "keep": keep})
        if not found:
            return 0
        last = found[0][0]
        # A large deletion could take longer than a request may take.
        for (earlier,) in self._query(sql.oldest_of_key, {"key": key, "most": _MOST_TRIMMED}):
            last = min(last, earlier)
        return self._write(sql.delete_of_key, {"key": key, "last": last})

    @override
    @one_request
    def beat(self, worker: WorkerRecord) -> None:
        self._require()
        values = {name: getattr(worker, name) for name in WorkerRecord.__slots__}

        def replace(connection: Connection) -> None:
            raw_execute.count(connection, self._sql.delete_worker, {"nonce": worker.nonce})
            raw_execute.count(connection, self._sql.insert_worker, values)

        self._connector.transact(replace, patient=False)

    @override
    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        self._require()
        found = self._query(self._sql.select_workers, {"since": since})
        return [worker_record(columns) for columns in found]

    def worker(self, nonce: str) -> WorkerRecord | None:
        """The record of one worker; None if there is none."""
        found = self._query(self._sql.select_worker, {"nonce": nonce})
        return worker_record(found[0]) if found else None

    @override
    def audit(self, changes: Sequence[AuditRecord]) -> None:
        self._require()
        parts = [*split(changes, lambda each: len(each.before or "") + len(each.after or ""))]
        self._connector.write_parts(parts, self._sql.insert_audits)

    def insert_records(self, connection: Connection, records: Sequence[RunRecord]) -> None:
        """Insert records on the connection of a transaction, except those that exist already."""
        if self._sql.reads_json:
            for request in self.insertions(records):
                self._connector.step()
                raw_execute.count(connection, *request)
            return
        values = [run_values(record) for record in records]
        for batch in batched(values, INSERT_BATCH):
            self._connector.step()
            raw_execute.repeat(connection, self._sql.insert_run, batch)

    def insertions(self, records: Sequence[RunRecord]) -> list[Request]:
        """Requests that insert records, except those that exist already."""
        values = [[*run_values(record).values()] for record in records]
        return [self._sql.many_runs.request(batch) for batch in batched(values, INSERT_BATCH)]

    def write_and_record(
        self,
        work: Callable[[Connection, InsertRecords], R],
        *,
        of_many: bool = False,
        skips: bool = False,
    ) -> R | None:
        """Run work that writes, and inserts records at its end, in one transaction.

        Returns None if the database refuses the records, so that nothing was applied, and the work
        has to be done without them.
        """
        recording = inserted = False

        def insert(connection: Connection, records: Sequence[RunRecord]) -> None:
            nonlocal recording, inserted
            recording = True
            self.insert_records(connection, records)
            inserted = True

        def begin(connection: Connection) -> R:
            nonlocal recording, inserted
            recording = inserted = False
            self._connector.step()
            return work(connection, insert)

        try:
            result = self._connector.transact(begin, patient=False)
        except (StoreError, AlreadyExistsError) as error:
            slow = isinstance(error, StoreSlowError)
            if not (recording or slow) or (of_many and isinstance(error, InvalidValueError)):
                raise
            refused = self.refusals.is_refusal(error, committing=inserted)
            if not refused or (skips and isinstance(error, TransientStoreError)):
                raise
            return None
        self.refusals.written()
        return result

    def apply_and_record(
        self,
        statement: TextClause,
        values: Mapping[str, Any],
        records: Sequence[RunRecord],
        *,
        together: bool = False,
    ) -> bool:
        """Send a statement that changes a row, and write records if it has; say whether it has."""

        def work(connection: Connection, insert: InsertRecords) -> bool:
            applied = raw_execute.count(connection, statement, values) > 0
            if applied:
                insert(connection, records)
            return applied

        recorded = self.missing is None and bool(records)
        if recorded and together:
            return self._connector.transact(lambda c: work(c, self.insert_records), patient=False)
        skips = any(record.outcome is None for record in records)
        if recorded and (skips or not self.refusals.paused):
            applied = self.write_and_record(work, skips=skips)
            if applied is not None:
                return applied
        applied = self._write(statement, values) > 0
        if recorded and applied:
            self.leave_unwritten(records)
        return applied

    def leave_unwritten(self, records: Sequence[RunRecord]) -> None:
        """Keep records that were not written with what they are about."""
        room = max(0, MOST_UNWRITTEN - len(self.unwritten))
        self.unwritten += records[:room]
        self.lost_records += len(records[room:])
