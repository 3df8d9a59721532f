"""Keeps the run history in tables beside the table of schedules."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, Self, TypeVar

from sqlalchemy import Connection, TextClause
from typing_extensions import override

from psched.base.clock import Clock
from psched.base.errors import (
    AlreadyExistsError,
    SchemaError,
    StoreError,
    StoreSlowError,
    TransientStoreError,
)
from psched.core.history.protocol import (
    EVERY_RUN,
    FIRST_FAILURES,
    MOST_UNWRITTEN,
    AuditSelection,
    NewFailures,
    RunSelection,
)
from psched.core.history.records import (
    FAILED_FATES,
    FAILURES,
    AuditRecord,
    Outcome,
    RunRecord,
    WorkerRecord,
)
from psched.stores.parameters import StoreParameters
from psched.stores.sql import raw_execute
from psched.stores.sql.batches import split
from psched.stores.sql.errors import InvalidValueError
from psched.stores.sql.history.refusals import Refusals
from psched.stores.sql.history.statements import (
    HistoryStatements,
    audit_record,
    run_record,
    run_values,
    worker_record,
)
from psched.stores.sql.table_store import S, TableStore, one_request

INSERT_BATCH = 200
"""The most records that are inserted at a time."""

_MOST_TRIMMED = 1000
"""About the most records of one key that are deleted at a time."""

_NEIGHBOURS = 10
"""How many records in a row must be older than a time before all records before them count as older
without being read."""

_LATE = 3_600_000
"""The longest time in milliseconds from an attempt's end until its record is written, for which
`HistoryStore.runs` allows."""

_MARGIN = 1000
"""How many records before the newest known one may be written later than it.

So many can other workers write while a transaction is open. They are read again by each call.
"""

_KEYS = 100
"""The most keys whose last runs one query finds. SQLite refuses a query of more than 500 parts."""

_PAGE = 200
"""The most records that one query returns."""


class _Numbered(Protocol):
    @property
    def id(self) -> int | None: ...


T = TypeVar("T", bound=_Numbered)
R = TypeVar("R")
InsertRecords = Callable[[Connection, Sequence[RunRecord]], None]


class HistoryStore(TableStore[S]):
    """A store on one table that keeps the run history in further tables.

    A subclass sets ``_problem`` when it connects.

    Args:
        parameters: the settings of the store.
        rng: random generator for the pauses between tries to get SQLite's write lock.
    """

    def __init__(self, parameters: StoreParameters, *, clock: Clock, rng: random.Random) -> None:
        super().__init__(parameters, clock=clock, rng=rng)
        connector = self._connector
        self._history = HistoryStatements(parameters.table, connector.dialect, connector.quote)
        self._problem: str | None = "not connected yet"
        self._refusals = Refusals(clock)
        self.lost_records = 0
        self.unwritten: deque[RunRecord] = deque()

    def history_problem(self) -> str | None:
        """Why no history is kept, as `KeepsHistory.history_problem` describes."""
        # The version is read again, because somebody may have run `psched init` meanwhile.
        self._connector.read(self._check)
        return self._problem

    @override
    def try_rights(self) -> None:
        super().try_rights()
        if self._problem is None:
            for table, tried in self._history.rights.items():
                self._try_each(tried, table)

    @one_request
    def record(self, records: Sequence[RunRecord]) -> None:
        """Write records that belong to no settlement, as `KeepsHistory.record` describes."""
        self._require_history()

        def write(connection: Connection) -> None:
            for record in records:
                if record.outcome is not None and record.outcome != Outcome.LOST:
                    lease = {
                        "key": record.key,
                        "scheduled_time": record.scheduled_time,
                        "owner": record.owner,
                    }
                    raw_execute.count(connection, self._history.delete_lost, lease)
            self._insert_records(connection, records)

        if records:
            self._connector.transact(write, patient=False)

    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        """The records of a selection, as `KeepsHistory.runs` describes."""
        self._require_history()

        first: int | None = None

        def read(before: int | None, limit: int) -> list[RunRecord]:
            nonlocal first
            if selection.since is not None and first is None:
                first = self._first_since(selection.since)
            request = self._history.select_runs(selection, first=first, before=before, limit=limit)
            return [run_record(columns) for columns in self._query(*request)]

        if not selection.with_extra_runs:
            return Pages(read, selection.limit)
        # The keys of other schedules can have the same beginning as those of the extra runs.
        return Pages(read, selection.limit, keep=selection.matches)

    def _first_since(self, since: int) -> int:
        """An id that no record which ended at or after a time is before; as large as possible.

        The ids grow nearly in the order of ``ended``, but a record can be written late, for example
        after an outage of the store. So the search allows for an hour.
        """
        least, most = self._query(self._history.bounds, {})[0]
        if least is None:
            return 0
        low, high = int(least), int(most) + 1
        while low < high:
            middle = (low + high) // 2
            near = self._query(self._history.next_ended, {"id": middle, "limit": _NEIGHBOURS})
            if all(ended < since - _LATE for (ended,) in near):
                low = middle + 1
            else:
                high = middle
        return low

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        """The last runs of keys, as `FindsLastRuns.last_runs` describes."""
        self._require_history()
        found: dict[str, RunRecord] = {}
        for start in range(0, len(keys), _KEYS):
            request = self._history.select_last_runs(keys[start : start + _KEYS])
            for columns in self._query(*request):
                record = run_record(columns)
                found[record.key] = record
        return found

    def durations(self, keys: Sequence[str], most: int) -> Mapping[str, Sequence[int]]:
        """How long runs took, as `SummarizesRuns.durations` describes."""
        self._require_history()
        found: dict[str, list[tuple[int, int]]] = {}
        for start in range(0, len(keys), _KEYS):
            request = self._history.select_durations(keys[start : start + _KEYS], most)
            for key, number, took in self._query(*request):
                found.setdefault(key, []).append((number, took))
        return {
            key: [took for _, took in sorted(runs, reverse=True)] for key, runs in found.items()
        }

    def failures(self, *, since: int, among: int, limit: int) -> Sequence[RunRecord]:
        """The newest failures, as `SummarizesRuns.failures` describes."""
        self._require_history()
        newest = self._query(self._history.bounds, {})[0][1]
        if newest is None:
            return []
        return self._failures_from(max(0, int(newest) - among + 1), since, limit)

    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        """The failures since an earlier call, as `FollowsFailures.new_failures` describes.

        The place is the largest id. The records just before it are read again, because a slower
        transaction may have written one of them after the earlier call.
        """
        self._require_history()
        newest = int(self._query(self._history.bounds, {})[0][1] or 0)
        # If the table was emptied, its ids may begin again.
        last = None if after is None else min(int(after), newest)
        first = newest - FIRST_FAILURES if last is None else last - _MARGIN
        return NewFailures(
            place=str(newest), records=self._failures_from(max(0, first + 1), None, limit)
        )

    def _failures_from(self, first: int, since: int | None, limit: int) -> list[RunRecord]:
        failed = RunSelection(outcomes=FAILURES, fates=FAILED_FATES, since=since)
        request = self._history.select_runs(
            failed, first=first, before=None, limit=limit, light=True
        )
        return [run_record(columns) for columns in self._query(*request)]

    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        """The changes of a selection, as `KeepsHistory.audits` describes."""
        self._require_history()

        def read(before: int | None, limit: int) -> list[AuditRecord]:
            request = self._history.select_audits(selection, before, limit)
            return [audit_record(columns) for columns in self._query(*request)]

        return Pages(read, selection.limit)

    @one_request
    def trim(self, *, before: int, limit: int) -> int:
        """Delete old records, changes and workers, as `KeepsHistory.trim` describes."""
        self._require_history()
        sql = self._history
        deleted = 0
        for select, delete in (
            (sql.oldest, sql.delete_range),
            (sql.oldest_audits, sql.delete_audits),
        ):
            ids = self._query(select, {"limit": limit})
            old = [number for number, ended in ids if ended < before]
            # The ids grow nearly in the order of time, so that the old records are nearly a range.
            if old:
                ends = {"first": min(old), "last": max(old), "before": before}
                deleted += self._write(delete, ends)
        self._write(sql.delete_workers, {"before": before // 1000})
        return deleted

    @one_request
    def trim_key(self, key: str, keep: int) -> int:
        """Delete the old records of one key, as `KeepsHistory.trim_key` describes."""
        self._require_history()
        sql = self._history
        found = self._query(sql.nth_of_key, {"key": key, "keep": keep})
        if not found:
            return 0
        last = found[0][0]
        # A large deletion could take longer than a request may take.
        for (earlier,) in self._query(sql.oldest_of_key, {"key": key, "most": _MOST_TRIMMED}):
            last = min(last, earlier)
        return self._write(sql.delete_of_key, {"key": key, "last": last})

    @one_request
    def beat(self, worker: WorkerRecord) -> None:
        """Insert or replace the record of a worker, as `KeepsHistory.beat` describes."""
        self._require_history()
        values = {name: getattr(worker, name) for name in WorkerRecord.__slots__}

        def replace(connection: Connection) -> None:
            raw_execute.count(connection, self._history.delete_worker, {"nonce": worker.nonce})
            raw_execute.count(connection, self._history.insert_worker, values)

        self._connector.transact(replace, patient=False)

    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        """The workers since a time, as `KeepsHistory.workers` describes."""
        self._require_history()
        found = self._query(self._history.select_workers, {"since": since})
        return [worker_record(columns) for columns in found]

    def _worker(self, nonce: str) -> WorkerRecord | None:
        """The record of one worker; None if there is none."""
        found = self._query(self._history.select_worker, {"nonce": nonce})
        return worker_record(found[0]) if found else None

    def audit(self, changes: Sequence[AuditRecord]) -> None:
        """Write changes of schedules, as `KeepsHistory.audit` describes."""
        self._require_history()
        parts = [*split(changes, lambda each: len(each.before or "") + len(each.after or ""))]
        self._write_parts(parts, self._history.insert_audits)

    def _insert_records(self, connection: Connection, records: Sequence[RunRecord]) -> None:
        """Insert records on the connection of a transaction, except those that exist already."""
        values = [run_values(record) for record in records]
        for start in range(0, len(values), INSERT_BATCH):
            self._connector.step()
            batch = values[start : start + INSERT_BATCH]
            raw_execute.repeat(connection, self._history.insert_run, batch)

    def _write_and_record(
        self,
        work: Callable[[Connection, InsertRecords], R],
        *,
        of_many: bool = False,
        skips: bool = False,
    ) -> R | None:
        """Run work that writes, and inserts records at its end, in one transaction.

        Returns:
            The result of the work; None if the database refuses the records, so that nothing was
            applied, and the work has to be done without them.
        """
        recording = inserted = False

        def insert(connection: Connection, records: Sequence[RunRecord]) -> None:
            nonlocal recording, inserted
            recording = True
            self._insert_records(connection, records)
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
            refused = self._refusals.is_refusal(error, committing=inserted)
            if not refused or (skips and isinstance(error, TransientStoreError)):
                raise
            return None
        self._refusals.written()
        return result

    def _apply_and_record(
        self,
        statement: TextClause,
        values: Mapping[str, Any],
        records: Sequence[RunRecord],
        *,
        together: bool = False,
    ) -> bool:
        """Send a statement that changes one row, and write records if it has changed the row.

        Returns:
            Whether the row was changed; if not, no record was written.
        """

        def work(connection: Connection, insert: InsertRecords) -> bool:
            applied = raw_execute.count(connection, statement, values) > 0
            if applied:
                insert(connection, records)
            return applied

        recorded = self._problem is None and bool(records)
        if recorded and together:
            return self._connector.transact(lambda c: work(c, self._insert_records), patient=False)
        skips = any(record.outcome is None for record in records)
        if recorded and (skips or not self._refusals.paused):
            applied = self._write_and_record(work, skips=skips)
            if applied is not None:
                return applied
        applied = self._write(statement, values) > 0
        if recorded and applied:
            self._leave_unwritten(records)
        return applied

    def _leave_unwritten(self, records: Sequence[RunRecord]) -> None:
        """Keep records that were not written with what they are about."""
        room = max(0, MOST_UNWRITTEN - len(self.unwritten))
        self.unwritten += records[:room]
        self.lost_records += len(records[room:])

    def _require_history(self) -> None:
        """Raise an error if no history is kept."""
        if self._problem is not None and (problem := self.history_problem()) is not None:
            raise SchemaError(problem)


class Pages(Iterator[T], Generic[T]):
    """Reads records page by page; after an exception, ``next`` reads the same page again.

    Args:
        read: returns a page of records before an id, the newest first; None is after the newest
            record. The second argument is the most records of the page.
        limit: the most records; None means no limit.
        page: the most records of a page.
        keep: whether a record that was read is returned.
    """

    def __init__(
        self,
        read: Callable[[int | None, int], list[T]],
        limit: int | None,
        page: int = _PAGE,
        keep: Callable[[T], bool] = lambda _record: True,
    ) -> None:
        self._read: Callable[[int | None, int], list[T]] = read
        self._left = limit
        self._most = page
        self._keep: Callable[[T], bool] = keep
        self._before: int | None = None
        self._page: deque[T] = deque()
        self._over = limit == 0

    @override
    def __iter__(self) -> Self:
        return self

    @override
    def __next__(self) -> T:
        while not self._page and not self._over:
            limit = self._most if self._left is None else min(self._most, self._left)
            found = self._read(self._before, limit)
            self._page.extend(filter(self._keep, found))
            if self._left is not None:
                self._left -= len(self._page)
            self._over = len(found) < limit or self._left == 0
            if found:
                self._before = found[-1].id
        if not self._page:
            raise StopIteration
        return self._page.popleft()
