"""Checks the leases of one schedule, and of its extra runs, in the run history."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter

from psched.base.errors import InvalidError
from psched.core.catchup import iso
from psched.core.history.changes import setting, values
from psched.core.history.records import AuditRecord, Fate, Outcome, RunRecord
from psched.core.history.verify.findings import (
    TOLERANCE,
    Findings,
    Kind,
    Violation,
    show,
    show_range,
)
from psched.core.model import Row
from psched.core.operations.extra_rows import id_of_instant
from psched.core.operations.extra_runs import PARALLEL, extra_key, needed_schedule

_REQUEUED = frozenset({Fate.CANCELLED, Fate.EXPIRED, Fate.GAVE_UP, Fate.QUARANTINED})
"""The fates after which a schedule that runs only once can be requeued, and has another fate."""

_CAN_CONTINUE = frozenset({Fate.CANCELLED, Fate.QUARANTINED})
"""The fates after which a schedule with a trigger can be requeued."""

_DEFINES_TIMES = frozenset({"cron", "timezone", "next_time", "status"})
"""A change of these columns, or of ``dst_policy``, begins a new series of occurrences."""

_RECORDED = frozenset({"pause", "resume", "skip", "stop"})
"""Changes that move the schedule only over occurrences for which they write a record."""

CHANGED = "a client has changed the schedule, and no audit record says when"


def check_leases(
    runs: Sequence[RunRecord],
    row: Row | None,
    audits: Sequence[AuditRecord],
    delay: int,
    found: Findings,
) -> None:
    """Check the records of one key, and add what is found."""
    found.violations += _overlaps(runs)
    found.violations += _fences(runs, row, audits)
    found.violations += _early_starts(runs, delay, first_runs(audits))
    _Repetitions(runs, row, audits, found).check()


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
    added = (values(audit.after) for audit in audits if audit.before is None)
    times = ((each.get("next_time"), each.get("next_run_time")) for each in added)
    return {
        scheduled: run_at
        for scheduled, run_at in times
        if isinstance(scheduled, int) and isinstance(run_at, int) and run_at < scheduled
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


def _overlaps(runs: Sequence[RunRecord]) -> Iterator[Violation]:
    for record, busy in overlapping(runs):
        yield _violation(
            Kind.OVERLAP,
            record,
            (
                f"the run of {iso(record.scheduled_time)} ({record.lease}) started at"
                f" {show(record.started or 0)}, but the run of {iso(busy.scheduled_time)}"
                f" ({busy.lease}) ended only at {show(busy.ended)}"
            ),
        )


def _fences(
    runs: Sequence[RunRecord], row: Row | None, audits: Sequence[AuditRecord]
) -> Iterator[Violation]:
    # A client that skips occurrences holds no lease.
    runs = [record for record in runs if record.fence]
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
        if _may_be_new(row, audits, other, record):
            highest = None
            granted[record.fence] = record
            continue
        yield _violation(
            Kind.FENCE,
            record,
            (
                f"the lease {record.lease} of {show(record.began)} has no larger fence"
                f" than {other.lease} of {show(other.began)}"
            ),
        )


def _violation(kind: Kind, record: RunRecord, text: str) -> Violation:
    return Violation(
        kind=kind,
        key=record.key,
        instant=record.scheduled_time,
        lease=record.lease,
        text=text,
    )


def _may_be_new(
    row: Row | None, audits: Sequence[AuditRecord], earlier: RunRecord, later: RunRecord
) -> bool:
    """Whether the schedule may have been deleted and added again between two leases.

    If it was, its fences have restarted. A schedule that has been requeued counts as added again.
    """
    if row is None or row.created_at is None:
        return True
    # The time of the creation is known in whole seconds.
    if earlier.began <= row.created_at * 1000 + 1000 + TOLERANCE:
        return True
    return any(
        (audit.before is None or audit.after is None)
        and earlier.began - TOLERANCE <= (audit.time or 0) <= later.ended + TOLERANCE
        for audit in audits
    )


def _early_starts(
    runs: Sequence[RunRecord], delay: int, added: Mapping[int, int]
) -> Iterator[Violation]:
    oldest = min((record.scheduled_time for record in runs), default=0)
    for record in runs:
        if record.started is None:
            continue
        # The first run of a schedule can be given a time of its own, in place of the delay.
        own = delay if record.scheduled_time > oldest and record.fence > 1 else 0
        run_at = added.get(record.scheduled_time, record.scheduled_time + own)
        due = max(run_at * 1000, record.due or 0)
        if record.started < due - TOLERANCE:
            yield _violation(
                Kind.EARLY,
                record,
                (
                    f"the run of {iso(record.scheduled_time)} ({record.lease}) started at"
                    f" {show(record.started)}, but was due at {show(due)}"
                ),
            )


class _Repetitions:
    """Finds occurrences with two fates, and those that ran again after their fate."""

    def __init__(
        self,
        runs: Sequence[RunRecord],
        row: Row | None,
        audits: Sequence[AuditRecord],
        found: Findings,
    ) -> None:
        self._runs = [each for each in runs if each.fate != Fate.SKIPPED_CLOCK_CHANGE]
        self._row = row
        self._audits = audits
        self._found = found

    def check(self) -> None:
        """Check all occurrences."""
        by_time = sorted(
            (record for record in self._runs if record.until is None),
            key=lambda record: (record.scheduled_time, record.began, record.fence),
        )
        for _, records in groupby(by_time, key=lambda record: record.scheduled_time):
            decided: RunRecord | None = None
            for record in records:
                if decided is not None and self._is_repeated(decided, record):
                    break  # one violation for each occurrence is enough
                if record.fate is not None:
                    decided = record
        self._check_spans()

    def _check_spans(self) -> None:
        """Check that no occurrence with a fate lies in a span, and that no spans overlap."""
        fates = sorted(
            (record for record in self._runs if record.fate is not None),
            key=lambda record: record.scheduled_time,
        )
        furthest: RunRecord | None = None
        for record in fates:
            if (
                furthest is not None
                and record.scheduled_time <= furthest.last
                and not record.until == furthest.until is None  # `check` has compared them
            ):
                first, later = sorted((furthest, record), key=lambda each: each.ended)
                self._is_repeated(first, later)
            if furthest is None or record.last >= furthest.last:
                furthest = record

    def _is_repeated(self, first: RunRecord, later: RunRecord) -> bool:
        """Add a violation if an occurrence has a fate, and a later record without an explanation.

        Returns:
            Whether something was added.
        """
        if later.fate is None and later.fence <= first.fence:
            return False  # for example, the record of a lost attempt, which is written late
        if first.fate is None or self._is_explained(first, later):
            return False
        row = self._row
        if row is not None and row.version > 1 and not self._audits:
            self._found.note_unknown(CHANGED, 1)
            return True
        since = max(first.scheduled_time, later.scheduled_time)
        until = min(first.last, later.last)
        again = "ran again" if later.fate is None else f"has the fate {later.fate}"
        self._found.violations.append(
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

    def _is_explained(self, first: RunRecord, later: RunRecord) -> bool:
        """Whether a client may have had the occurrence run again."""
        row = self._row
        if first.fate in (_CAN_CONTINUE if row is not None and row.cron else _REQUEUED):
            return True
        if any(
            first.ended - TOLERANCE <= (audit.time or 0) <= later.ended + TOLERANCE
            for audit in self._audits
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


EXTRA_RUN_ACTIONS = frozenset({"trigger", "backfill"})
"""The actions in the audit trail of a schedule that have not changed the schedule itself."""


def check_extra_runs(
    key: str,
    runs: Sequence[RunRecord],
    rows: Mapping[str, Row],
    audits: Sequence[AuditRecord],
) -> Iterator[Violation]:
    """Check the runs of one schedule, and yield what is found.

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
            yield Violation(
                kind=Kind.OVERLAP,
                key=record.key,
                instant=record.scheduled_time,
                lease=record.lease,
                text=(
                    f"the run of {iso(record.scheduled_time)} ({record.lease}) started at"
                    f" {show(record.started or 0)}, but the run {busy.key} of"
                    f" {iso(busy.scheduled_time)} ({busy.lease}) ended only at {show(busy.ended)}"
                ),
            )


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
