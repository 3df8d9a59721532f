"""The part of a store that keeps the run history."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import islice
from typing import Protocol

from psched.core.history.records import (
    FAILED_FATES,
    FAILURES,
    WHOLE,
    AuditRecord,
    RunRecord,
    WorkerRecord,
)
from psched.core.operations.extra_runs import schedule_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSelection:
    """The records that `KeepsHistory.runs` returns: those that fulfil everything.

    Attributes:
        key: the key of the schedule; None means every key.
        with_extra_runs: whether the records of the schedule's extra runs are selected, too, see
            `psched.core.operations.extra_runs`. Needs ``key``, and no ``covering``.
        types: the types; empty means every type.
        outcomes: the outcomes; empty means every record. See ``fates``.
        fates: the fates; empty means every record. If ``outcomes`` and ``fates`` are both given, a
            record needs to have one of either.
        since: the earliest ``ended``, in milliseconds; None means the oldest record.
        covering: a scheduled time that the record is about, see `RunRecord.covers`. Needs ``key``.
        limit: the largest number of records; None means no limit.
    """

    key: str | None = None
    with_extra_runs: bool = False
    types: frozenset[str] = frozenset()
    outcomes: frozenset[str] = frozenset()
    fates: frozenset[str] = frozenset()
    since: int | None = None
    covering: int | None = None
    limit: int | None = None

    def matches(self, record: RunRecord) -> bool:
        """Whether a record fulfils all conditions; ``limit`` is no condition."""
        asked = bool(self.outcomes or self.fates)
        return (
            self._has_key(record.key)
            and (not self.types or record.type in self.types)
            and (not asked or record.outcome in self.outcomes or record.fate in self.fates)
            and (self.since is None or record.ended >= self.since)
            and (self.covering is None or record.covers(self.covering))
        )

    def _has_key(self, key: str) -> bool:
        if self.key in {None, key}:
            return True
        return self.with_extra_runs and schedule_of(key) == self.key


EVERY_RUN = RunSelection()
"""The selection of all records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSelection:
    """The changes that `KeepsHistory.audits` returns: those that fulfil everything.

    Attributes:
        key: the key of the schedule; None means every key.
        since: the earliest ``time``, in milliseconds; None means the oldest change.
        limit: the largest number of changes; None means no limit.
    """

    key: str | None = None
    since: int | None = None
    limit: int | None = None


MOST_UNWRITTEN = 1000
"""The most records that wait to be written. Further records are dropped, and counted."""

FIRST_FAILURES = 1000
"""Among so many of the newest records, failures are new to somebody who has seen none."""

_LATE = 60_000
"""Milliseconds from the end of a run until its record is written, for which
`KeepsHistory.new_failures` allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFailures:
    """The answer to `KeepsHistory.new_failures`.

    Attributes:
        place: where the next call continues; a text whose meaning only the store knows.
        records: the records, the newest first. ``error`` and ``result`` are None.
    """

    place: str
    records: Sequence[RunRecord]


class KeepsHistory(Protocol):
    """The attribute ``history`` of a `psched.core.store_protocol.Store`: it keeps the run history.

    Besides the methods of this protocol, three methods of such a store do more:

    * `Store.claim` stores the time of the claim in ``claimed_at`` of the row. In `Claimed.expired`,
      it returns the token and this time of each lease that has ended without a settle.
    * `Store.settle` also writes the records of each settlement that it applies
      (`psched.core.model.Settlement.records`), in their order, in the same transaction. The first
      ones can be of earlier leases of the row, and can exist already. A settlement that is not
      applied leaves no record. If the records cannot be written, for example because a right is
      missing or the database answers slowly, the settlements are applied without them. Then the
      records are in ``unwritten``, or ``lost_records`` grows. A store with ``unwritten`` applies no
      settlement that skips occurrences without its records, as long as the database is merely
      unavailable.
    * `Store.recover` also writes the record of each lost attempt, in the transaction that releases
      its lease: `psched.core.history.recording.record_of_death`. There is none for a row without
      ``next_time``, or whose setting ``history`` is ``none``
      (`psched.core.definition.history_setting`).

    A record is identified by key, ``scheduled_time`` and ``owner``: of several records with the
    same ones, the store keeps the first, but see `record`.

    Every method can raise the exceptions of the methods of a store. If `problem` returns a problem,
    the workers call no other method of this protocol, and the others may raise a
    `psched.errors.SchemaError`.

    The methods that sum up records have definitions here, which read the records one by one.
    """

    lost_records: int
    """How many records this store object could not write and has dropped."""

    unwritten: deque[RunRecord] | None = None
    """The records of settlements that were applied without them, the oldest first.

    Whoever settles takes them out, and writes them later (`record`). The store adds none to
    `MOST_UNWRITTEN` or more; it drops and counts them instead. None: it drops and counts all.
    """

    def problem(self) -> str | None:
        """Why no history is kept, for example because the tables do not exist; None if it is."""
        ...

    def record(self, records: Sequence[RunRecord]) -> None:
        """Write records that belong to no settlement: of lost and of preempted attempts.

        If a record of the same lease and occurrence exists, it stays, with one exception: a record
        with another outcome replaces one whose outcome is ``lost``.
        """
        ...

    def runs(self, selection: RunSelection = EVERY_RUN) -> Iterator[RunRecord]:
        """The records of a selection, the newest first."""
        ...

    def trim(self, *, before: int, limit: int) -> int:
        """Delete old records, changes and workers.

        Args:
            before: those that ended before this time are deleted, in milliseconds.
            limit: the largest number of records, and of changes, to delete.

        Returns:
            The number of deleted records and changes.
        """
        ...

    def trim_key(self, key: str, keep: int) -> int:
        """Delete the records of one key except the newest ones; a store may leave some for later.

        Args:
            key: the key of the schedule.
            keep: how many records are kept.

        Returns:
            The number of deleted records; 0 if no more are left to delete.
        """
        ...

    def beat(self, worker: WorkerRecord) -> None:
        """Insert or replace the record of a worker; the store sets ``seen`` to its present time.

        ``started`` and ``ended`` are the present time, too, if they are 0.
        """
        ...

    def workers(self, since: int = 0) -> Sequence[WorkerRecord]:
        """The workers that have written their record at this time or later, in Unix seconds."""
        ...

    def audit(self, changes: Sequence[AuditRecord]) -> None:
        """Write changes of schedules; the store sets ``time`` to its present time."""
        ...

    def audits(self, selection: AuditSelection) -> Iterator[AuditRecord]:
        """The changes of a selection, the newest first."""
        ...

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        """The newest record of each key for which `RunRecord.is_end` is true, in a few requests.

        ``error`` and ``result`` of these records are None, because they can be large.

        Returns:
            The records by key. Keys that no such record has are left out.
        """
        found = dict[str, RunRecord]()
        for key in keys:
            last = next((each for each in self.runs(RunSelection(key=key)) if each.is_end), None)
            if last is not None:
                found[key] = _light(last)
        return found

    def durations(self, keys: Sequence[str], most: int) -> Mapping[str, Sequence[int]]:
        """How long the newest runs of each key took, in milliseconds, in a few requests.

        Runs that finished, failed or were stopped at their time limit count; others were cut short.

        Args:
            keys: the keys.
            most: the largest number of runs of each key.

        Returns:
            The durations by key, of the newest run first. Keys that no such run has are left out.
        """
        found = dict[str, Sequence[int]]()
        for key in keys:
            runs = self.runs(RunSelection(key=key, outcomes=WHOLE, limit=most))
            took = [each.ended - each.started for each in runs if each.started is not None]
            if took:
                found[key] = took
        return found

    def failures(self, *, since: int, among: int, limit: int) -> Sequence[RunRecord]:
        """The newest records of failures, the newest first.

        A record counts that has one of `psched.core.history.records.FAILURES` as its outcome, or
        one of `psched.core.history.records.FAILED_FATES` as its fate. ``error`` and ``result`` are
        None, because they can be large.

        Args:
            since: the earliest ``ended``, in milliseconds.
            among: among how many of the newest records of all keys they are searched.
            limit: the largest number of records.
        """
        newest = self.runs(RunSelection(since=since, limit=among))
        return [_light(each) for each in islice(filter(_has_failed, newest), limit)]

    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        """The records of failures that were written since an earlier call.

        The monitors need it to raise alerts about failed runs. A record counts that `failures`
        counts. A record can be returned by several calls, because a transaction can take long. The
        cost should grow with the number of records that are new, not with the size of the history.

        Args:
            after: `NewFailures.place` of the earlier call; None means that the failures among the
                newest `FIRST_FAILURES` records are wanted.
            limit: the largest number of records; the oldest ones are left out.
        """
        wanted = RunSelection(limit=FIRST_FAILURES)
        if after is not None:
            wanted = RunSelection(since=int(after) - _LATE)
        records = [*self.runs(wanted)]
        ends = [each.ended for each in records]
        return NewFailures(
            place=str(max([int(after or 0), *ends])),
            records=[_light(each) for each in islice(filter(_has_failed, records), limit)],
        )


def _has_failed(record: RunRecord) -> bool:
    return record.outcome in FAILURES or record.fate in FAILED_FATES


def _light(record: RunRecord) -> RunRecord:
    return changed(record, error=None, result=None)
