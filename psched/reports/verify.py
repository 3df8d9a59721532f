"""Checks the run history of one schedule: has psched kept its promises? Pure functions.

The rules:

* Each instant of the trigger that the schedule has passed has exactly one fate, or lies in exactly
  one span. A schedule that runs only once, and has ended, has exactly one fate.
* No two attempts of a schedule overlap, extra runs included unless they may, the fences of its
  leases grow, and no attempt starts before it is due.

An instant from the row's ``next_time`` on is pending. The fate of an instant is unknown, and no
violation, if somebody who writes no records may have changed the schedule, or if the settings of
the schedule keep no such record.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from itertools import groupby, islice
from math import ceil, inf
from operator import attrgetter

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.catchup import iso
from psched.core.definition import Definition, history_setting, parse_row
from psched.core.history.changes import number_in, row_before, setting, time_of, values
from psched.core.history.records import AuditRecord, Fate, Outcome, RunRecord
from psched.core.model import EXPIRED, FAILED, FINISHED, WAITING, Row
from psched.core.operations.extra_runs import PARALLEL, extra_key, id_of_instant, needed_schedule
from psched.reports.findings import (
    TOLERANCE,
    Findings,
    Kind,
    Violation,
    show,
    show_range,
)
from psched.triggers.trigger import Trigger, first

MOST_INSTANTS = 100_000
"""The most instants of one schedule that are checked."""

MOST_RUNS = 200_000
"""The most records of one schedule that are read; the newest ones are."""

UNAUDITED = (
    "the schedule was changed by something that writes no audit record, for example by plain SQL,"
    " by new zone data or by an older version of psched"
)
TRIMMED = "the schedule has so many records that older ones were deleted or not read"
HISTORY_OFF = "the setting history of the schedule is none"
ONLY_FAILURES = "the setting history of the schedule is failures, so a success leaves no record"
NOT_WRITTEN = "a worker could not write its records: the store refused them or answered too slowly"
SHARED_TABLE = "PerfectSched's workers use the table, too, and they write no records"
INVALID = "the definition of the schedule is invalid, or its trigger cannot be loaded"
TOO_MANY = f"only {MOST_INSTANTS} instants of a schedule are checked"

_KEPT = {"none": HISTORY_OFF, "failures": ONLY_FAILURES}
"""The values of the setting ``history`` with which there are occurrences without a record."""

_NOT_OF_THE_TRIGGER = frozenset({Fate.SKIPPED_CLOCK_CHANGE})
"""The fates of times of day that do not exist, so that they are no instants of the trigger."""

_REQUEUED = frozenset({Fate.CANCELLED, Fate.EXPIRED, Fate.GAVE_UP, Fate.QUARANTINED})
"""The fates after which a schedule that runs only once can be requeued, and has another fate."""

_CAN_CONTINUE = frozenset({Fate.CANCELLED, Fate.QUARANTINED})
"""The fates after which a schedule with a trigger can be requeued."""

_DEFINES_TIMES = frozenset({"cron", "timezone", "next_time", "status"})
"""A change of these columns, or of ``dst_policy``, begins a new series of occurrences."""

_RECORDED = frozenset({"pause", "resume", "skip", "stop"})
"""Changes that move the schedule only over occurrences for which they write a record."""

CHANGED = "a client has changed the schedule, and no audit record says when"

EXTRA_RUN_ACTIONS = frozenset({"trigger", "backfill"})
"""The actions in the audit trail of a schedule that have not changed the schedule itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """What is checked, in Unix seconds of the store's clock."""

    # The first instant that is checked. The history is complete since then, except for records that
    # were deleted because a schedule has too many.
    start: int
    kept_since: int  # records that are older were deleted; 0 if none was
    now: float  # when the check began
    # Ranges of scheduled times of which a worker could not write all records.
    gaps: Sequence[tuple[int, float]] = ()

    def has_gap(self, first: int, last: int) -> bool:
        """Whether records of occurrences from the first to the last one may not be written."""
        return any(start <= last and first <= end for start, end in self.gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What the store knows about one key."""

    key: str
    # The row; None if the schedule does not exist any more. It was read before the records.
    row: Row | None
    # The records since the start of the period, sorted by `RunRecord.began`.
    runs: Sequence[RunRecord]
    # The changes of the schedule that are known, the newest first.
    audits: Sequence[AuditRecord] = ()
    # Whether workers may have leased the row for extra runs. Such a lease increases the fence, but
    # is no attempt, and has no record.
    has_extra_runs: bool = False


@dataclass(slots=True, kw_only=True)
class _Series:
    """Occurrences that must have a fate: those from ``start`` to ``end``, in Unix seconds.

    A change of the trigger or of the next time ends one series and begins another. The row is that
    at the end of the series. Of each doubt, the fates of earlier instants without a record are
    unknown.
    """

    row: Row
    start: int
    end: int
    doubts: list[tuple[float, str]]
    runs: Sequence[RunRecord]

    def doubt_about(self, instant: int) -> str | None:
        """Why the fate of an instant without a record is unknown; None if it is a violation."""
        return next((reason for before, reason in self.doubts if instant < before), None)


def check(recorded: Recorded, period: Period, settings: Config) -> Findings:
    """Check everything that the store knows about one key."""
    row = recorded.row
    found = Findings(schedules=1)
    found.runs = sum(
        record.outcome is not None and record.ended >= period.start * 1000
        for record in recorded.runs
    )
    if settings.store_kind.keeps_options:
        # PerfectSched's table, which has no options, has no fences.
        found.violations += (
            _overlap(record, busy, "") for record, busy in overlapping(recorded.runs)
        )
        found.violations += _fences(recorded)
        found.violations += _early_starts(recorded)
        _check_repetitions(recorded, found)
    if row is None or row.each_host:  # a template has no occurrences
        return found
    try:
        definition = parse_row(row, settings)
    except InvalidError:
        found.note_unknown(INVALID, 1)
        return found
    if definition.trigger is None:
        doubts = _doubts(recorded, row, period, settings)
        _check_one_shot(recorded, period, definition, doubts, found)
        return found
    _count_pending(row, definition.trigger, period, found)
    for series in _each_series(recorded, period, settings):
        try:
            definition = parse_row(series.row, settings)
        except InvalidError:
            found.note_unknown(INVALID, 1)
            continue
        if definition.trigger is not None:
            _check_instants(recorded, definition.trigger, series, period, found)
    return found


# --- schedules that run once -----------------------------------------------------------


def _check_one_shot(
    recorded: Recorded,
    period: Period,
    definition: Definition,
    doubts: Sequence[tuple[float, str]],
    found: Findings,
) -> None:
    row = recorded.row
    assert row is not None  # noqa: S101  # for mypy: the caller has checked it
    created, instant = row.created_at, row.next_time or 0
    if row.status == WAITING:
        found.instants += 1
        found.pending += instant <= period.now
        return
    ended = None
    if row.retain_until is not None:
        ended = row.retain_until - definition.settings.retention_time
    known = max(created or 0, ended or 0) >= period.start
    if row.status not in {FINISHED, FAILED, EXPIRED} or row.owner is not None or not known:
        return
    found.instants += 1
    since = (created or 0) * 1000 - TOLERANCE
    mine = [record for record in recorded.runs if record.began >= since]
    if any(record.fate is not None for record in mine) or _was_ended(recorded.audits, since):
        return
    last = mine[-1].lease if mine else None
    if reason := next((text for _, text in doubts), None):
        found.note_unknown(reason, 1)
    elif period.has_gap(instant, instant):
        found.note_unknown(NOT_WRITTEN, 1)
    elif row.fence == 0 or (last is not None and last == row.settled_by):
        # The last lease did not end the schedule, so a client that is not psched did.
        found.note_unknown(UNAUDITED, 1)
    else:
        text = f"the schedule is {row.status}, but no record says what became of its occurrence"
        missing = Violation(kind=Kind.MISSING, key=recorded.key, instant=instant, text=text)
        found.violations.append(missing)


def _was_ended(audits: Sequence[AuditRecord], since: int) -> bool:
    """Whether a client has ended the schedule since a time, in milliseconds."""
    return any("status" in values(audit.after) and (audit.time or 0) >= since for audit in audits)


# --- schedules with a trigger ----------------------------------------------------------


def _each_series(recorded: Recorded, period: Period, settings: Config) -> Iterator[_Series]:
    """Yield the series of occurrences in the period, the newest first.

    What the row was before a change is in the audit trail. If nothing tells where a series ended,
    it is left out.
    """
    row, runs = recorded.row, recorded.runs
    assert row is not None  # noqa: S101  # for mypy: the caller has checked it
    last = row.next_time
    if last is None:  # the next time is computed when the schedule is claimed
        last = max((record.last for record in runs if record.fate is not None), default=0)
    former, until = row, inf
    for change in (*recorded.audits, None):
        if (change is None or begins_series(change)) and last is not None:
            yield _series(
                recorded,
                row,
                runs,
                change=change,
                last=last,
                until=until,
                period=period,
                settings=settings,
            )
        if change is None or change.before is None or change.after is None:
            return
        if (change.time or 0) < period.start * 1000:
            return
        former = row_before(former, change)
        if begins_series(change):
            # How often it had been leased is not known, and what became of it later says nothing.
            row = changed(former, status=WAITING, fence=0)
            until = change.time or 0
            runs = [each for each in recorded.runs if each.began <= until]
            last = _next_time_before(change, runs)


def _next_time_before(change: AuditRecord, runs: Sequence[RunRecord]) -> int | None:
    """The next time of a schedule before a change; None if it is not known."""
    if (held := _held_at(change, runs)) is not None:
        return held.last + 1
    return number_in(change.before, "next_time")


def _series(
    recorded: Recorded,
    row: Row,
    runs: Sequence[RunRecord],
    *,
    change: AuditRecord | None,
    last: int,
    until: float,
    period: Period,
    settings: Config,
) -> _Series:
    """Find out which occurrences must have a fate, of a series that a change at ``until`` ended."""
    end = min(last - 1, int(period.now))
    start, since, held = period.start, 0, None
    if until == inf and change is not None and (change.time or 0) < (row.created_at or 0) * 1000:
        # It was requeued, or deleted and added again, after the last change that is recorded.
        change = None
    if change is not None and (change.time or 0) >= period.start * 1000:
        since = change.time or 0
        held = _held_at(change, runs)
        # What was recorded in the millisecond of a change can belong to the series after it.
        before = [record for record in runs if record.began < until]
        start = _start_after(change, held, before, last)
    elif row.created_at is not None and row.created_at >= period.start:
        since, start = row.created_at * 1000 - TOLERANCE, row.created_at
    elif change is not None:
        # The first run may have ended before the period, although its scheduled time is within.
        start = max([start, *(time + 1 for time in first_runs([change]))])
    mine = [
        record
        for record in runs
        if record.began >= since and record.ended >= period.start * 1000 and record is not held
    ]
    if row.created_at is None:  # the row has had no lease that was settled
        start = end + 1
    if change is None and since and (recorded.has_extra_runs or _is_first(mine, row)):
        # The schedule was added with a later first time than the time at which it was added.
        start = mine[0].scheduled_time if mine else end + 1
    elif mine:
        # A schedule moves forward only, so all later occurrences were decided in the period, too.
        # What was recorded in the millisecond of the first change can belong to the series before.
        within = (each.scheduled_time for each in mine if since < each.began < until)
        start = min([start, *within])
    doubts = _doubts(recorded, row, period, settings)
    if len(recorded.runs) >= min(settings.history_keep_per_key or MOST_RUNS, MOST_RUNS):
        doubts.append((min(record.scheduled_time for record in recorded.runs), TRIMMED))
    return _Series(row=row, start=start, end=end, doubts=doubts, runs=mine)


def _is_first(mine: Sequence[RunRecord], row: Row) -> bool:
    """Whether no lease has settled another occurrence before the first record.

    Each lease increases the fence, and each lease of the same occurrence increases the attempt.
    """
    mine = [record for record in mine if record.fence]  # a client's record is of no lease
    if not mine:
        return row.fence <= max(row.attempt, 0)
    earliest = min(mine, key=lambda record: record.fence)
    return earliest.fence <= max(earliest.attempt, 1)


def _start_after(
    change: AuditRecord, held: RunRecord | None, runs: Sequence[RunRecord], last: int
) -> int:
    """The first occurrence after a change of the trigger or of the next time."""
    if (start := number_in(change.after, "next_time")) is not None:
        return start
    if held is not None:
        # The new trigger begins at the end of the task that was running.
        later = (each.scheduled_time for each in runs if each.began > held.ended)
        return min(later, default=last)
    return ceil((change.time or 0) / 1000)


def _held_at(change: AuditRecord, runs: Sequence[RunRecord]) -> RunRecord | None:
    """The record of the run that held the schedule's lease when the trigger was changed, if any.

    No record tells when a lease was granted: a little before its task started, and after the row
    was due.
    """
    if "next_time" in values(change.after):
        return None  # only the change of a free row writes it
    for record in runs:
        due = record.began if record.due is None else record.due
        if due <= (change.time or 0) <= record.ended and record.fate == Fate.FINISHED:
            return record
    return None


def _check_instants(
    recorded: Recorded, trigger: Trigger, series: _Series, period: Period, found: Findings
) -> None:
    """Check that each occurrence of a series has a fate."""
    gaps = [*_uncovered(recorded.runs, trigger, series, found)]
    if gaps and (odd := _last_foreign(series.runs, trigger)):
        # This is asked only now, because it costs as much as the search of the gaps.
        series.doubts.append((odd, UNAUDITED))
        gaps = [*_uncovered(recorded.runs, trigger, series, Findings())]
    for first_one, last_one, count in gaps:
        reason = series.doubt_about(first_one)
        if reason is None and period.has_gap(first_one, last_one):
            reason = NOT_WRITTEN
        if reason is not None:
            found.note_unknown(reason, count)
            continue
        text = (
            f"{show_range(first_one, last_one)}: the schedule has moved on to a later time, but no"
            " record says what became of"
            f" {'this occurrence' if count == 1 else f'these {count} occurrences'};"
            f" {_leases_between(recorded, first_one, last_one)}"
        )
        found.violations.append(
            Violation(
                kind=Kind.MISSING,
                key=recorded.key,
                instant=first_one,
                until=None if first_one == last_one else last_one,
                count=count,
                text=text,
            )
        )


def _uncovered(
    runs: Sequence[RunRecord], trigger: Trigger, series: _Series, found: Findings
) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of neighbouring occurrences that have no fate: first, last and number."""
    covers = sorted(
        (record.scheduled_time, record.last, record.count or 1)
        for record in runs
        if record.fate is not None and record.fate not in _NOT_OF_THE_TRIGGER
    )
    place, reach = 0, -1
    gap: tuple[int, int, int] | None = None
    instant = first(trigger, series.start)
    for _ in range(MOST_INSTANTS):
        if instant is None or instant > series.end:
            break
        found.instants += 1
        while place < len(covers) and covers[place][0] <= instant:
            reach = max(reach, covers[place][1])
            found.instants += covers[place][2] - 1
            place += 1
        if instant <= reach:
            if gap is not None:
                yield gap
                gap = None
            instant = trigger.next_after(min(reach, series.end))
            continue
        before = series.doubt_about(gap[0]) if gap is not None else None
        if gap is not None and before != series.doubt_about(instant):
            yield gap
            gap = None
        gap = (instant, instant, 1) if gap is None else (gap[0], instant, gap[2] + 1)
        instant = trigger.next_after(instant)
    else:
        if instant is not None and instant <= series.end:
            found.note_unknown(TOO_MANY, 1)
    if gap is not None:
        yield gap


def _leases_between(recorded: Recorded, first_one: int, last_one: int) -> str:
    """Say whether leases without a record can explain that occurrences have no fate."""
    row = recorded.row
    leases = [each for each in recorded.runs if each.fence]  # a client's record is of no lease
    before = [each.fence for each in leases if each.scheduled_time < first_one]
    # The last lease before the next occurrence was tried for the first time.
    after = [each.fence - max(each.attempt, 1) for each in leases if each.scheduled_time > last_one]
    if row is not None:
        after.append(row.fence - max(row.attempt, 0))
    low, high = max(before, default=0), min(after, default=0)
    recorded_between = {each.fence for each in leases if low < each.fence <= high}
    if (missing := high - low - len(recorded_between)) > 0:
        return f"{missing} of its leases, with fences after {low}, left no record"
    return (
        "none of its leases is without a record, so psched has dropped it without a record, or a"
        " client has changed the row's next_time by plain SQL"
    )


def _count_pending(row: Row, trigger: Trigger, period: Period, found: Findings) -> None:
    if row.status != WAITING or row.next_time is None:
        return
    instant: int | None = row.next_time
    for _ in range(MOST_INSTANTS):
        if instant is None or instant > period.now:
            break
        found.instants += 1
        found.pending += 1
        instant = trigger.next_after(instant)


# --- what cannot be known --------------------------------------------------------------


def _doubts(
    recorded: Recorded, row: Row, period: Period, settings: Config
) -> list[tuple[float, str]]:
    """The reasons for which the fates of all occurrences without a record are unknown."""
    always = float("inf")
    history = history_setting(row, settings)
    if not settings.store_kind.keeps_options:
        return [(always, SHARED_TABLE)]
    if history in _KEPT and not (history == "failures" and row.status in {FAILED, EXPIRED}):
        return [(always, _KEPT[history])]
    if recorded.row is not None and _is_unaudited(recorded.row, recorded.audits, period):
        return [(always, UNAUDITED)]
    former = ((each, setting(values(each.before), "history")) for each in recorded.audits)
    return [(time_of(change), _KEPT[str(name)]) for change, name in former if name in _KEPT]


def _is_unaudited(row: Row, audits: Sequence[AuditRecord], period: Period) -> bool:
    """Whether something has changed the definition without an audit record."""
    if not audits:
        new = row.created_at is None or row.created_at >= period.kept_since
        return row.version > 1 and new
    for name in ("cron", "timezone"):
        known = [values(audit.after)[name] for audit in audits if name in values(audit.after)]
        if known and known[0] != getattr(row, name):
            return True
    return False


def _last_foreign(runs: Sequence[RunRecord], trigger: Trigger) -> int:
    """The last scheduled time of a record that is no instant of the trigger; 0 if there is none."""
    times = {record.scheduled_time for record in runs if record.fate not in _NOT_OF_THE_TRIGGER}
    newest = sorted(times, reverse=True)
    found = (time for time in islice(newest, MOST_INSTANTS) if first(trigger, time) != time)
    return next(found, 0)


def _delay(recorded: Recorded) -> int:
    """The delay that applied to every run of a schedule; 0 if it is not known."""
    row, runs = recorded.row, recorded.runs
    if row is None or row.created_at is None or row.version > 1:
        return 0
    same = not runs or runs[0].began >= row.created_at * 1000
    return row.delay if same else 0


# --- leases ----------------------------------------------------------------------------


def begins_series(audit: AuditRecord) -> bool:
    """Whether a change begins a new series of occurrences."""
    before, after = values(audit.before), values(audit.after)
    if audit.before is None or audit.after is None:
        return True
    if audit.action in _RECORDED:
        return False
    if not _DEFINES_TIMES.isdisjoint({*before, *after}):
        return True
    return setting(before, "dst_policy") != setting(after, "dst_policy")


def first_runs(audits: Sequence[AuditRecord]) -> Mapping[int, int]:
    """The scheduled times whose run was added with an earlier time, and those times."""
    added = (audit.after for audit in audits if audit.before is None)
    times = ((number_in(each, "next_time"), number_in(each, "next_run_time")) for each in added)
    return {
        scheduled: run_at
        for scheduled, run_at in times
        if scheduled is not None and run_at is not None and run_at < scheduled
    }


def overlapping(
    runs: Sequence[RunRecord], tolerance: int = TOLERANCE
) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Yield each attempt that has started before another one had ended, and that other one."""
    busy: RunRecord | None = None
    for record in runs:
        if record.outcome is None or record.started is None:
            continue
        lost = record.outcome == Outcome.LOST
        # The start of a lost attempt is known in whole seconds.
        allowed = tolerance + 1000 if lost else tolerance
        # A short run may seem to start a little later than the one that has really followed it.
        if (
            busy is not None
            and record.started < busy.ended - allowed
            and record.ended > (busy.started or 0) + allowed
        ):
            yield record, busy
        # Nobody saw the end of a lost attempt. It ended at the latest when the next one started.
        if not lost and (busy is None or record.ended > busy.ended):
            busy = record


def _overlap(record: RunRecord, busy: RunRecord, which: str) -> Violation:
    return Violation.of_run(
        Kind.OVERLAP,
        record,
        f"the run of {iso(record.scheduled_time)} ({record.lease}) started at"
        f" {show(record.started or 0)}, but the run {which}of {iso(busy.scheduled_time)}"
        f" ({busy.lease}) ended only at {show(busy.ended)}",
    )


def _fences(recorded: Recorded) -> Iterator[Violation]:
    # A client that skips occurrences holds no lease.
    runs = [record for record in recorded.runs if record.fence]
    earlier, highest = iter(runs), None  # the largest fence of those that certainly came earlier
    candidate = next(earlier, None)
    granted: dict[int, RunRecord] = {}
    for record in runs:
        while candidate is not None and candidate.began < record.began - TOLERANCE:
            if highest is None or candidate.fence > highest.fence:
                highest = candidate
            candidate = next(earlier, None)
        other = granted.setdefault(record.fence, record)
        if highest is not None and highest.fence > record.fence:
            other = highest
        if other.owner == record.owner and other.fence == record.fence:
            continue
        if _may_be_new(recorded, other, record):
            highest = None
            granted[record.fence] = record
            continue
        yield Violation.of_run(
            Kind.FENCE,
            record,
            f"the lease {record.lease} of {show(record.began)} has no larger fence"
            f" than {other.lease} of {show(other.began)}",
        )


def _may_be_new(recorded: Recorded, earlier: RunRecord, later: RunRecord) -> bool:
    """Whether the schedule may have been deleted and added again between two leases.

    If it was, its fences have restarted. A schedule that has been requeued counts as added again.
    """
    row = recorded.row
    if row is None or row.created_at is None:
        return True
    # The time of the creation is known in whole seconds.
    if earlier.began <= row.created_at * 1000 + 1000 + TOLERANCE:
        return True
    return any(
        (audit.before is None or audit.after is None)
        and earlier.began - TOLERANCE <= (audit.time or 0) <= later.ended + TOLERANCE
        for audit in recorded.audits
    )


def _early_starts(recorded: Recorded) -> Iterator[Violation]:
    delay, added = _delay(recorded), first_runs(recorded.audits)
    oldest = min((record.scheduled_time for record in recorded.runs), default=0)
    for record in recorded.runs:
        if record.started is None:
            continue
        # The first run of a schedule can be given a time of its own, in place of the delay.
        own = delay if record.scheduled_time > oldest and record.fence > 1 else 0
        run_at = added.get(record.scheduled_time, record.scheduled_time + own)
        due = max(run_at * 1000, record.due or 0)
        if record.started < due - TOLERANCE:
            yield Violation.of_run(
                Kind.EARLY,
                record,
                f"the run of {iso(record.scheduled_time)} ({record.lease}) started at"
                f" {show(record.started)}, but was due at {show(due)}",
            )


def _check_repetitions(recorded: Recorded, found: Findings) -> None:
    """Find occurrences with two fates, and those that ran again after their fate."""
    runs = [each for each in recorded.runs if each.fate != Fate.SKIPPED_CLOCK_CHANGE]
    by_time = sorted(
        (record for record in runs if record.until is None),
        key=lambda record: (record.scheduled_time, record.began, record.fence),
    )
    for _, records in groupby(by_time, key=lambda record: record.scheduled_time):
        decided: RunRecord | None = None
        for record in records:
            if decided is not None and _is_repeated(recorded, decided, record, found):
                break  # one violation for each occurrence is enough
            if record.fate is not None:
                decided = record
    # No occurrence with a fate lies in a span, and no spans overlap.
    fates = sorted(
        (record for record in runs if record.fate is not None),
        key=lambda record: record.scheduled_time,
    )
    furthest: RunRecord | None = None
    for record in fates:
        if (
            furthest is not None
            and record.scheduled_time <= furthest.last
            and not record.until == furthest.until is None  # these are compared
        ):
            first, later = sorted((furthest, record), key=lambda each: each.ended)
            _is_repeated(recorded, first, later, found)
        if furthest is None or record.last >= furthest.last:
            furthest = record


def _is_repeated(recorded: Recorded, first: RunRecord, later: RunRecord, found: Findings) -> bool:
    """Whether an occurrence with a fate has a later record without an explanation; note it."""
    if later.fate is None and later.fence <= first.fence:
        return False  # for example, the record of a lost attempt, which is written late
    if first.fate is None or _is_explained(recorded, first, later):
        return False
    row = recorded.row
    if row is not None and row.version > 1 and not recorded.audits:
        found.note_unknown(CHANGED, 1)
        return True
    since = max(first.scheduled_time, later.scheduled_time)
    until = min(first.last, later.last)
    again = "ran again" if later.fate is None else f"has the fate {later.fate}"
    found.violations.append(
        Violation(
            kind=Kind.REPEATED,
            key=later.key,
            instant=since,
            until=None if since == until else until,
            lease=later.lease,
            text=(
                f"{show_range(since, until)}: {again} at {show(later.ended)}"
                f" ({later.lease}), but had the fate {first.fate} since"
                f" {show(first.ended)} ({first.lease})"
            ),
        )
    )
    return True


def _is_explained(recorded: Recorded, first: RunRecord, later: RunRecord) -> bool:
    """Whether a client may have had the occurrence run again."""
    row = recorded.row
    if first.fate in (_CAN_CONTINUE if row is not None and row.cron else _REQUEUED):
        return True
    if any(
        first.ended - TOLERANCE <= (audit.time or 0) <= later.ended + TOLERANCE
        for audit in recorded.audits
        if audit.action == "requeue" or begins_series(audit)
    ):
        return True
    created = None if row is None else row.created_at
    if created is not None and first.began > created * 1000 + 1000 + TOLERANCE:
        return False  # the schedule has been the same one since before the first record
    if created is not None and first.ended <= created * 1000 + 1000 + TOLERANCE:
        # It was added again, or requeued, after the first record, or within the same second.
        return later.began >= created * 1000 - TOLERANCE or later.fence <= first.fence
    return later.fence <= first.fence


def check_extra_runs(
    key: str,
    runs: Sequence[RunRecord],
    rows: Mapping[str, Row],
    audits: Sequence[AuditRecord],
) -> Iterator[Violation]:
    """Check the runs of one schedule, extra ones included, for overlaps.

    An extra run of which nobody knows any more whether it may overlap is left out.
    """
    alone = {
        each
        for each in {record.key for record in runs}
        if each == key or _is_alone(key, each, rows.get(each), audits)
    }
    mine = sorted((each for each in runs if each.key in alone), key=attrgetter("began"))
    for record, busy in overlapping(mine):
        # If an extra run was lost, its worker may have died before it had asked for the lease of
        # the schedule, or when it had not got it. Nobody knows whether the run had started.
        unsure = record.key != key and record.outcome == Outcome.LOST
        if record.key != busy.key and not unsure:
            yield _overlap(record, busy, f"{busy.key} ")


def _is_alone(key: str, extra: str, row: Row | None, audits: Sequence[AuditRecord]) -> bool:
    """Whether it is known that an extra run must not overlap with other runs."""
    if row is not None:
        try:
            return needed_schedule(row) is not None
        except InvalidError:
            return False
    overlaps = {
        about.get("overlap")
        for each in audits
        if each.action in EXTRA_RUN_ACTIONS and _is_about(about := values(each.after), key, extra)
    }
    return bool(overlaps) and PARALLEL not in overlaps


def _is_about(about: Mapping[str, object], key: str, extra: str) -> bool:
    """Whether the record of a trigger or of a backfill is about an extra run."""
    if "extra_run" in about:
        return about["extra_run"] == extra
    first, last = (about.get(name) for name in ("first", "last"))
    if not isinstance(first, int) or not isinstance(last, int):
        return False
    least, most = (extra_key(key, id_of_instant(each)) for each in (first, last))
    return least <= extra <= most
