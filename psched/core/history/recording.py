"""What a worker records: the records that a store writes with a settlement, and its counts.

The times of the records are those of the store's clock. The counts are for metrics: whole numbers,
which are sent to the master as deltas. A count is identified by a name and two labels. A histogram
is several counts: one for each bucket, and one for the sum of all values, in microseconds.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from math import inf
from typing import Any, NamedTuple

from psched.base.clock import Clock
from psched.core.attempts import WORKER_DIED
from psched.core.history.records import (
    DECISIONS,
    FAILURES,
    FOREVER,
    MOST_COUNTED,
    SKIPPED,
    WHOLE,
    Attempt,
    Fate,
    Outcome,
    RunRecord,
    Skipped,
    WorkerRecord,
)
from psched.core.model import ReasonCode, Row, Settlement
from psched.core.store_protocol import ExpiredLease

# --- Counts ---

RUNS = "runs"
ATTEMPTS = "attempts"
LATENESS = "lateness"
DURATION = "duration"
CLAIMS = "claims"
STORE_ERRORS = "store_errors"
STORE_SECONDS = "store_seconds"
SKIPS = "skips"

BUCKETS = {
    LATENESS: (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 15, 60, 300, 1800, 7200),
    DURATION: (0.01, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14_400, 43_200, 86_400),
    STORE_SECONDS: (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
}
"""For each histogram: the upper bounds of its buckets, in seconds. One more bucket has no bound."""

SUM = "sum"
"""The first label of the count that is the sum of a histogram's values, in microseconds."""

OTHER = "other"
"""Stands for each further type of task when there are too many."""

_MOST_TYPES = 100
"""The most types of task that are counted apart."""

_LONGEST_TYPE = 100
"""The most characters of a type that is counted apart."""

Counted = Sequence[tuple[str, str, str, int]]
"""Deltas: name, first label, second label, and by how much the count has grown."""


class Counts:
    """What has been counted and not yet been sent.

    Attributes:
        has_news: whether more was counted than what every search for due rows counts.
    """

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}
        self._types: set[str] = set()
        self.has_news = False

    def add(self, name: str, label: str = "", value: str = "", number: int = 1) -> None:
        """Count ``number`` more of the metric ``name`` with these two labels."""
        key = name, label, value
        self._counts[key] = self._counts.get(key, 0) + number

    def observe(self, name: str, seconds: float) -> None:
        """Count a value in its bucket of a histogram."""
        seconds = max(0.0, seconds)
        self.add(name, str(bisect_left(BUCKETS[name], seconds)))
        self.add(name, SUM, number=round(seconds * 1_000_000))

    def started(self, late: float) -> None:
        """Count a started task."""
        self.has_news = True
        self.observe(LATENESS, late)

    def ended(self, type_: str, attempt: Attempt) -> None:
        """Count an attempt that has ended, however it has."""
        self.has_news = True
        self.add(ATTEMPTS, self._known(type_), attempt.outcome)
        if attempt.started is not None and attempt.outcome in WHOLE:
            self.observe(DURATION, (attempt.ended - attempt.started) / 1000)

    def lost(self, type_: str) -> None:
        """Count an attempt that has ended without anybody seeing its end."""
        self.has_news = True
        self.add(ATTEMPTS, self._known(type_), Outcome.LOST)

    def decided(self, type_: str, settlement: Settlement) -> None:
        """Count what became of occurrences by a settlement."""
        self.has_news = True
        if settlement.fate in DECISIONS:
            self.add(RUNS, self._known(type_), settlement.fate)
        elif settlement.fate in SKIPPED:
            self.add(SKIPS, settlement.fate)
        for span in settlement.skipped:
            # The policy does not count the occurrences of a long span, so it counts as the fewest
            # that it can have.
            least = 1 if span.until is None else MOST_COUNTED + 1
            self.add(SKIPS, span.fate, number=least if span.count is None else span.count)

    def take(self) -> Counted:
        """Return what was counted since the last call."""
        counts, self._counts, self.has_news = self._counts, {}, False
        return [(*key, number) for key, number in counts.items()]

    def _known(self, type_: str) -> str:
        """The type, or `OTHER` if there are too many, or if it cannot be shown."""
        if type_ not in self._types:
            shown = type_.isprintable() and len(type_) <= _LONGEST_TYPE
            if not shown or len(self._types) >= _MOST_TYPES:
                return OTHER
            self._types.add(type_)
        return type_


# --- Times ---


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
        """Note that the store has told its time.

        Args:
            now: the time of the store's clock, in Unix seconds.
            sent: when the request was sent, seconds of the boot-time clock.
            answered: when the answer arrived, seconds of the boot-time clock.
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


# --- Records ---


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
