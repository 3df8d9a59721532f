"""Creates the records that a store writes with a settlement; their times are those of its clock."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.core.attempts import WORKER_DIED
from psched.core.history.counts import Counts
from psched.core.history.records import (
    FAILURES,
    FOREVER,
    Attempt,
    Fate,
    Outcome,
    RunRecord,
    Skipped,
    WorkerRecord,
)
from psched.core.model import ReasonCode, Row, Settlement
from psched.core.store_protocol import ExpiredLease


class Reading(NamedTuple):
    """One reading of a `StoreClock`.

    Attributes:
        milliseconds: the time of the store's clock, in Unix milliseconds.
        boottime: the time of this host's boot-time clock, in seconds.
    """

    milliseconds: int
    boottime: float


NEVER = Reading(0, 0.0)
"""Stands for a reading that was not taken yet."""


_LONGEST = 1.0
"""A request that takes up to so many seconds is good enough, see
`psched.reports.findings.TOLERANCE`."""


class StoreClock:
    """Estimates the present time of the store's clock.

    The estimate is the time of the last answer that contained the store's time, plus the time that
    has passed since on this host's boot-time clock. It is wrong by at most half the duration of
    that request, as long as nobody sets the store's clock. So a request that took longer than
    `_LONGEST`, for example because this process was stopped meanwhile, does not replace a better
    one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset = clock.wall() - clock.boottime()
        self._took = inf

    def read(self, now: float, sent: float, answered: float) -> None:
        """Note that the store has told its time, in Unix seconds.

        The request was ``sent`` and ``answered`` then, in seconds of the boot-time clock.
        """
        took = answered - sent
        if took <= max(_LONGEST, self._took):
            self._took, self._offset = took, now - (sent + answered) / 2

    def milliseconds(self) -> int:
        """The present time of the store's clock, in Unix milliseconds."""
        return round((self._clock.boottime() + self._offset) * 1000)

    def host_offset(self) -> int:
        """By how many milliseconds this host's wall clock is ahead of the store's clock."""
        return round(self._clock.wall() * 1000) - self.milliseconds()

    def reading(self) -> Reading:
        """The present time of both clocks."""
        return Reading(self.milliseconds(), self._clock.boottime())

    def after(self, earlier: Reading) -> int:
        """The present time in Unix milliseconds: an earlier reading plus the time since then.

        So the difference of the two is exact, even if the store has told its time in between.
        """
        elapsed = self._clock.boottime() - earlier.boottime
        return earlier.milliseconds + round(elapsed * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorder:
    """Creates the records of one worker.

    Attributes:
        host: the name of the worker's host.
        generation: the number of the worker's generation; None if a program polls by itself.
        clock: the store's clock.
        counts: counts the same things, whatever the setting ``history`` is.
        types: the types that the worker takes, for its own record; None means all.
    """

    host: str
    generation: int | None
    clock: StoreClock
    counts: Counts = field(default_factory=Counts)
    types: Sequence[str] | None = None

    def records_of(
        self,
        settlement: Settlement,
        leased: Row,
        attempt: Attempt | None,
        *,
        history: str,
    ) -> tuple[RunRecord, ...]:
        """Create the records of a settlement."""
        if history == "none":
            return ()
        records = []
        cursor = leased.next_time
        if cursor is None and leased.next_run_time is not None:
            cursor = leased.next_run_time  # the row had no scheduled time yet
        if (attempt is not None or settlement.fate is not None) and cursor is not None:
            records.append(self.record(leased, attempt, cursor, settlement))
        records += [
            changed(
                self.record(leased, None, skipped.first, settlement),
                until=_until(skipped),
                count=skipped.count,
                fate=skipped.fate,
                reason=skipped.reason,
                attempt=0,
            )
            for skipped in settlement.skipped
        ]
        if history == "failures":
            records = [each for each in records if _is_failure(each)]
        return tuple(records)

    def record(
        self,
        leased: Row,
        attempt: Attempt | None,
        scheduled_time: int,
        settlement: Settlement | None = None,
    ) -> RunRecord:
        """Create the record of an attempt, or of what became of an occurrence that did not run."""
        due = leased.next_run_time
        reason, code = None, None
        # A pause by a person follows this run, and does not explain it.
        if settlement is not None and settlement.reason_code != ReasonCode.PAUSED:
            reason, code = settlement.reason, settlement.reason_code
        about: dict[str, Any] = {
            "key": leased.key,
            "type": leased.type,
            "label": leased.label,
            "scheduled_time": scheduled_time,
            "owner": leased.owner or "",
            "fence": leased.fence,
            "host": self.host,
            "generation": self.generation,
            # A row that plain SQL has inserted without a time has been due since 1970.
            "due": due * 1000 if due else None,
            "fate": None if settlement is None else settlement.fate,
            "reason_code": code,
        }
        if attempt is None:
            return RunRecord(**about, ended=self.clock.milliseconds(), reason=reason)
        has_paused = code == ReasonCode.PAUSED_AFTER_FAILURES
        return RunRecord(
            **about,
            attempt=leased.attempt,
            pid=attempt.pid,
            started=attempt.started,
            ended=attempt.ended,
            outcome=attempt.outcome,
            # The reason of that pause contains that of the attempt.
            reason=reason if has_paused else attempt.reason or reason,
            exit_status=attempt.exit_status,
            exit_signal=attempt.exit_signal,
            cpu_ms=attempt.cpu_ms,
            peak_kb=attempt.peak_kb,
            out_of_memory=attempt.out_of_memory,
            error=attempt.error,
            result=attempt.result,
        )

    def taken_over(self, row: Row, expired: ExpiredLease) -> RunRecord | None:
        """Create the record of an attempt whose lease has ended without a settle.

        The host is not known here.
        """
        if row.next_time is None:
            return None
        # The row fell due again when the lease had ended. Nothing of the attempt was alive then.
        end = row.next_run_time
        return lost_record(
            changed(row, owner=expired.token.owner, fence=expired.token.fence),
            attempt=row.attempt - 1,
            claimed_at=expired.claimed_at,
            ended=self.clock.milliseconds() if end is None else end * 1000,
            reason="its lease ended without a settle",
        )


def lost_record(
    row: Row,
    *,
    attempt: int,
    claimed_at: int | None,
    ended: int,
    reason: str,
    worker: WorkerRecord | None = None,
) -> RunRecord:
    """Create the record of an attempt whose end nobody has seen."""
    return RunRecord(
        key=row.key,
        type=row.type,
        label=row.label,
        scheduled_time=row.next_time or 0,
        attempt=max(attempt, 1),
        owner=row.owner or "",
        fence=row.fence,
        host=None if worker is None else worker.host,
        generation=None if worker is None else worker.generation,
        # The claim's time is stored in whole seconds. The attempt was started soon after it.
        started=None if claimed_at is None else min(claimed_at * 1000, ended),
        ended=ended,
        outcome=Outcome.LOST,
        reason=reason,
    )


def record_of_death(
    row: Row, ended: int, worker: WorkerRecord | None, history: str
) -> RunRecord | None:
    """Create the record of the attempt of a dead worker, given the setting ``history`` of its row.

    There is none if a client has set ``next_time`` during the lease: then the row does not tell
    which occurrence was running.
    """
    if row.next_time is None or not row.is_tried or history == "none":
        return None
    return lost_record(
        row,
        attempt=row.attempt,
        claimed_at=row.claimed_at,
        ended=ended,
        reason=WORKER_DIED,
        worker=worker,
    )


def _until(skipped: Skipped) -> int | None:
    """The end of a span as a record contains it."""
    if skipped.until is None:
        return FOREVER
    return None if skipped.count == 1 else skipped.until


def _is_failure(record: RunRecord) -> bool:
    """Whether the setting ``history: failures`` keeps a record."""
    if record.outcome is None:
        return record.fate is not Fate.FINISHED
    return record.outcome in FAILURES or record.fate not in {None, Fate.FINISHED}
