"""The capability of a store to keep the run history."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from psched.core.history.records import AuditRecord, RunRecord, WorkerRecord
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


@runtime_checkable
class KeepsHistory(Protocol):
    """A capability of a `psched.core.store_protocol.Store`: it keeps the run history.

    Besides the methods of this protocol, three methods of such a store do more:

    * `Store.claim` stores the time of the claim in ``claimed_at`` of the row. In `Claimed.expired`,
      it returns the token and this time of each lease that has ended without a settle.
    * `Store.settle` also writes the records of each settlement that it applies
      (`psched.core.model.Settlement.records`), in their order, in the same transaction. The first
      ones can be of earlier leases of the row, and can exist already. A settlement that is not
      applied leaves no record. If the records cannot be written, for example because a right is
      missing or the database answers slowly, the settlements are applied without them. Then the
      records are in ``unwritten``, or ``lost_records`` grows.
    * `Store.recover` also writes the record of each lost attempt, in the transaction that releases
      its lease: `psched.core.history.recording.lost_record`. It writes none for a row without
      ``next_time``, or whose setting ``history`` is ``none``
      (`psched.core.definition.history_setting`).

    A record is identified by key, ``scheduled_time`` and ``owner``: of several records with the
    same ones, the store keeps the first, but see `record`.

    Every method can raise the exceptions of the methods of a store. If `history_problem` returns a
    problem, the workers call no other method of this protocol, and the others may raise a
    `psched.errors.SchemaError`.
    """

    lost_records: int
    """How many records this store object could not write and has dropped."""

    def history_problem(self) -> str | None:
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


@runtime_checkable
class HandsBackRecords(KeepsHistory, Protocol):
    """A store with the capability `KeepsHistory` that drops few records."""

    unwritten: deque[RunRecord]
    """The records of settlements that were applied without them, the oldest first.

    Whoever settles takes them out, and writes them later (`KeepsHistory.record`). The store adds
    none to `MOST_UNWRITTEN` or more; it drops and counts them instead. It applies no settlement
    that skips occurrences without its records, as long as the database is merely unavailable.
    """


@runtime_checkable
class FindsLastRuns(Protocol):
    """A capability of a store with the capability `KeepsHistory`: it finds the last run of keys.

    Without it, ``psched list`` has no column LAST.
    """

    def last_runs(self, keys: Sequence[str]) -> Mapping[str, RunRecord]:
        """The newest record of each key for which `RunRecord.is_end` is true, in a few requests.

        ``error`` and ``result`` of these records are None, because they can be large.

        Returns:
            The records by key. Keys that no such record has are left out.
        """
        ...


MOST_UNWRITTEN = 1000
"""The most records that wait to be written. Further records are dropped, and counted."""

FIRST_FAILURES = 1000
"""Among so many of the newest records, failures are new to somebody who has seen none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFailures:
    """The answer to `FollowsFailures.new_failures`.

    Attributes:
        place: where the next call continues; a text whose meaning only the store knows.
        records: the records, the newest first. ``error`` and ``result`` are None.
    """

    place: str
    records: Sequence[RunRecord]


@runtime_checkable
class FollowsFailures(Protocol):
    """A capability of a store that keeps the run history: it tells which failures are new.

    The monitors need it to raise alerts about failed runs.
    """

    def new_failures(self, after: str | None, limit: int) -> NewFailures:
        """The records of failures that were written since an earlier call.

        A record counts that `psched.core.operations.overview.SummarizesRuns.failures` counts. A
        record can be returned by several calls, because a transaction can take long. The cost grows
        with the number of records that are new, not with the size of the history.

        Args:
            after: `NewFailures.place` of the earlier call; None means that the failures among the
                newest `FIRST_FAILURES` records are wanted.
            limit: the largest number of records; the oldest ones are left out.
        """
        ...
