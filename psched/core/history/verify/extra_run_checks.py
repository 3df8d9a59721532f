"""Checks that the extra runs of a schedule do not overlap with its other runs, unless they may."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from psched.base.errors import InvalidError
from psched.core.catchup import iso
from psched.core.history.changes import values
from psched.core.history.records import AuditRecord, Outcome, RunRecord
from psched.core.history.verify.findings import Kind, Violation, show
from psched.core.history.verify.lease_checks import overlapping
from psched.core.model import Row
from psched.core.operations.extra_rows import id_of_instant
from psched.core.operations.extra_runs import PARALLEL, extra_key, needed_schedule

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
