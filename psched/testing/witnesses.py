"""Checks what was seen of tasks against the promises, and against the records. Pure functions.

`psched.reports.verify` checks the records by themselves, which can be wrong together.
Whoever runs psched under faults also writes down what its tasks really did, and which faults there
were; this module says whether the faults explain it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import attrgetter

from psched.core.catchup import iso
from psched.core.history.changes import number_in, time_of
from psched.core.history.records import (
    FOREVER,
    SKIPPED,
    AuditRecord,
    Fate,
    Outcome,
    RunRecord,
)
from psched.core.model import SET_ASIDE, Row
from psched.core.operations.extra_runs import schedule_key
from psched.reports.findings import Kind, Violation
from psched.reports.verify import begins_series, overlapping

PEOPLE = "people"
"""The host of a fault that has hit a change by a person."""


@dataclass(slots=True, eq=False)
class Witness:
    """What was seen of one attempt; unlike a record, it cannot be wrong. Times are Unix seconds."""

    key: str
    scheduled_time: int
    attempt: int
    owner: str
    fence: int
    host: str
    started: float
    store_time: float  # the latest time that the store's clock had shown when it started
    ended: float | None = None  # when its last process had ended; None while one lives
    completed: bool = False  # whether it has done all its work
    lease_end: float | None = None  # when its lease ends unless it is extended; None if not known

    def __str__(self) -> str:
        return f"attempt {self.attempt} on {self.host} ({self.owner}#{self.fence})"

    def as_record(self, now: float) -> RunRecord:
        """What a record would say."""
        return RunRecord(
            key=self.key,
            type="",
            scheduled_time=self.scheduled_time,
            owner=self.owner,
            fence=self.fence,
            started=round(self.started * 1000),
            ended=round((now if self.ended is None else self.ended) * 1000),
            outcome=Outcome.FINISHED if self.completed else Outcome.FAILED,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What was done to psched, from one time until another, in Unix seconds."""

    at: float
    until: float
    host: str | None  # the host that it has touched; None if it was the store
    what: str
    # Whether no protocol could have kept two workers apart: the store has forgotten what it had
    # written, or its clock was set forward.
    breaks_leases: bool = False

    def touches(self, since: float, until: float, *hosts: str) -> bool:
        """Whether it can have had an effect on one of these hosts in a time."""
        return self.at <= until and since <= self.until and self.host in {None, *hosts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Everything that is known about a time in which psched was watched."""

    witnesses: Sequence[Witness]
    records: Sequence[RunRecord] | None  # None if the store keeps none
    audits: Sequence[AuditRecord]
    faults: Sequence[Fault]
    # For how many seconds a worker may act on what the store has said: the longest lease.
    lease: float
    now: float
    # When the last process of psched had ended, in Unix seconds; None if one lives.
    stopped: float | None = None
    tolerance: float = 0.0  # by how many seconds the times of witnesses can be wrong

    def explain(self, since: float, until: float, *hosts: str, breaks: bool = False) -> bool:
        """Whether a fault of the store or on one of the hosts explains what happened in a time."""
        return any(
            fault.touches(since - self.lease, until, *hosts)
            for fault in self.faults
            if fault.breaks_leases or not breaks
        )

    def changed(self, key: str, since: float, until: float) -> bool:
        """Whether people have had occurrences of a schedule run again in a time."""
        return any(
            since * 1000 - 1000 <= (audit.time or 0) <= until * 1000 + 1000
            for audit in self.audits
            if audit.key == key and (audit.action == "requeue" or begins_series(audit))
        )


def check_witnesses(seen: Seen) -> Iterator[Violation]:
    """Yield each violation of a promise that the witnesses, records and faults show."""
    by_schedule = sorted(seen.witnesses, key=lambda each: (schedule_key(each.key), each.started))
    for _, group in groupby(by_schedule, key=lambda each: schedule_key(each.key)):
        yield from _overlaps(seen, [*group])
    by_key = sorted(seen.witnesses, key=lambda each: (each.key, each.started))
    for _, group in groupby(by_key, key=attrgetter("key")):
        yield from _fences(seen, [*group])
    by_occurrence = sorted(by_key, key=lambda each: (each.key, each.scheduled_time, each.started))
    for _, group in groupby(by_occurrence, key=lambda each: (each.key, each.scheduled_time)):
        yield from _repetitions(seen, [*group])
    for witness in seen.witnesses:
        if witness.store_time < witness.scheduled_time - seen.tolerance:
            yield _violation(Kind.EARLY, witness, f"began {_before_due(witness)} s early")
        over, ended = witness.lease_end, witness.ended or seen.now
        is_late = over is not None and ended > over + seen.tolerance
        if is_late and not seen.explain(witness.started, ended, breaks=True):
            yield _violation(Kind.OVERLAP, witness, "went on when its lease was over")
    if seen.records is not None:
        yield from _against_records(seen, seen.records)
        yield from _against_pauses(seen, seen.records)
    yield from _after_the_stop(seen)


def check_rows(rows: Iterable[Row], now: float, patience: float) -> Iterator[Violation]:
    """Yield each row that nothing has run, or that nobody has released, for too long."""
    for row in rows:
        if row.status in SET_ASIDE or row.next_run_time is None:
            continue
        if row.next_run_time < now - patience:
            text = f"{row.status}, and due since {iso(row.next_run_time)}"
            if row.owner is not None:
                text = f"its lease ({row.token}) was over at {iso(row.next_run_time)}"
            yield Violation(
                kind=Kind.STUCK, key=row.key, instant=row.next_time or row.next_run_time, text=text
            )


def check_leases_ended(rows: Iterable[Row]) -> Iterator[Violation]:
    """Yield each lease that is left after a stop of all masters without a fault."""
    for row in rows:
        if row.owner is not None:
            text = f"its lease ({row.token}) was not ended when its worker was stopped"
            yield Violation(kind=Kind.STUCK, key=row.key, instant=row.next_time or 0, text=text)


def _violation(kind: Kind, witness: Witness, text: str) -> Violation:
    return Violation(
        kind=kind,
        key=witness.key,
        instant=witness.scheduled_time,
        text=f"{witness}: {text}",
        lease=f"{witness.owner}#{witness.fence}",
    )


def _before_due(witness: Witness) -> float:
    return round(witness.scheduled_time - witness.store_time, 3)


def _overlaps(seen: Seen, witnesses: Sequence[Witness]) -> Iterator[Violation]:
    """Check the runs of one schedule, extra runs included."""
    of = {(each.key, each.owner): each for each in witnesses}
    records = [each.as_record(seen.now) for each in witnesses]
    for record, busy in overlapping(records, round(seen.tolerance * 1000)):
        later, earlier = of[record.key, record.owner], of[busy.key, busy.owner]
        if not seen.explain(earlier.started, later.started, breaks=True):
            text = f"began while {earlier.key} ran: {earlier}"
            yield _violation(Kind.OVERLAP, later, text)


def _fences(seen: Seen, witnesses: Sequence[Witness]) -> Iterator[Violation]:
    """Check the runs of one key."""
    for earlier, later in pairwise(witnesses):
        if later.fence > earlier.fence or seen.changed(later.key, earlier.started, later.started):
            continue
        if not seen.explain(earlier.started, later.started, breaks=True):
            yield _violation(Kind.FENCE, later, f"has no larger fence than {earlier}")


def _repetitions(seen: Seen, witnesses: Sequence[Witness]) -> Iterator[Violation]:
    """Check the runs of one occurrence: once, unless a fault or a person explains another run."""
    done = None
    for witness in witnesses:
        if done is not None:
            explained = seen.explain(done.started, witness.started, done.host, witness.host)
            if not explained and not seen.changed(witness.key, done.started, witness.started):
                yield _violation(Kind.REPEATED, witness, f"ran again without a cause after {done}")
        if witness.completed:
            done = witness


def _against_records(seen: Seen, records: Sequence[RunRecord]) -> Iterator[Violation]:
    of: Mapping[tuple[str, int, str], Witness] = {
        (each.key, each.scheduled_time, each.owner): each for each in seen.witnesses
    }
    recorded = {(each.key, each.scheduled_time, each.owner) for each in records}
    for record in records:
        witness = of.get((record.key, record.scheduled_time, record.owner))
        if record.outcome == Outcome.FINISHED and (witness is None or not witness.completed):
            yield Violation(
                kind=Kind.UNSEEN,
                key=record.key,
                instant=record.scheduled_time,
                text="its record says that it has finished, and it has not",
                lease=record.lease,
            )
    for identity, witness in of.items():
        if identity not in recorded:
            until = seen.now if witness.ended is None else witness.ended + seen.lease
            if not seen.explain(witness.started, until, witness.host):
                yield _violation(Kind.UNSEEN, witness, "has ended, and left no record")


def _against_pauses(seen: Seen, records: Sequence[RunRecord]) -> Iterator[Violation]:
    """Check that nothing began while it was paused, or after it was skipped."""
    skipped = [each for each in records if each.fate in SKIPPED]
    for record in skipped:
        is_early = record.ended / 1000 + 1 < record.last < FOREVER
        if is_early and record.fate != Fate.SKIPPED:
            text = f"was {record.fate} before it was due"
            yield Violation(kind=Kind.PAUSED, key=record.key, instant=record.last, text=text)
    for witness in seen.witnesses:
        for record in skipped:
            if (
                record.key == witness.key
                and record.covers(witness.scheduled_time)
                and record.ended / 1000 + seen.lease < witness.started
                and not seen.changed(witness.key, record.ended / 1000, witness.started)
                and not seen.explain(record.ended / 1000, witness.started, breaks=True)
            ):
                yield _violation(Kind.PAUSED, witness, f"began although it was {record.fate}")
    changes = sorted(seen.audits, key=lambda each: each.time or 0)
    for witness in seen.witnesses:
        mine = [each for each in changes if each.key == witness.key]
        before = [each for each in mine if time_of(each) <= witness.started]
        if not before or before[-1].action != "pause":
            continue
        since, until = time_of(before[-1]), number_in(before[-1].after, "paused_until")
        # A change is recorded after it was made, so what two people do at the same time can be
        # recorded in the other order.
        if any(each.action == "resume" and since - time_of(each) <= 1 for each in before):
            continue
        over = until is not None and until <= witness.store_time
        excused = seen.explain(since, witness.started, breaks=True) or any(
            # The record of a later change may be lost.
            fault.host == PEOPLE and fault.touches(since, witness.started, PEOPLE)
            for fault in seen.faults
        )
        # A change is recorded after it was made, so that a run can begin before the record of the
        # change that has ended the pause.
        after = next((each for each in mine if time_of(each) > witness.started), None)
        ended = (
            after is not None
            and after.action != "pause"
            and time_of(after) - witness.started <= seen.lease
        )
        if witness.started > since + seen.lease and not (over or excused or ended):
            yield _violation(Kind.PAUSED, witness, f"began while paused since {iso(int(since))}")


def _after_the_stop(seen: Seen) -> Iterator[Violation]:
    if seen.stopped is None:
        return
    for witness in seen.witnesses:
        if witness.started > seen.stopped:
            yield _violation(Kind.STOPPED, witness, "began when no master ran any more")
        elif witness.ended is None or witness.ended > seen.stopped + seen.tolerance:
            yield _violation(Kind.STOPPED, witness, "went on when no master ran any more")
