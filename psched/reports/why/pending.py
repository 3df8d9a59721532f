"""Answers from the row of a schedule: what is running, waiting, or will run."""

from collections.abc import Mapping
from math import inf
from typing import Any

from psched.base.errors import InvalidError
from psched.base.quantities import format_duration
from psched.core.catchup import describe_dropped, oldest_kept
from psched.core.definition import Definition
from psched.core.history.answer import Answer, Code, State
from psched.core.history.changes import time_of, values, who
from psched.core.history.records import GONE_AFTER, AuditRecord, nonce_of
from psched.core.model import (
    AFTER_RUN,
    CANCELLED,
    CANCELLING,
    DELETING,
    EXPIRED,
    FAILED,
    FINISHED,
    FINISHING,
    MARKS,
    MIGRATING,
    PAUSED,
    QUARANTINED,
    STOPPING,
    WAITING,
    ReasonCode,
    Row,
)
from psched.reports.why.availability import find_cause, newest_record
from psched.reports.why.facts import Case
from psched.reports.why.recorded import (
    LATE,
    after_attempts,
    details_of,
    pause_clause,
    summary,
)

_STOPPING = {
    DELETING: "deleted",
    CANCELLING: "cancelled",
    FINISHING: "marked as finished",
}

_ENDED = {
    CANCELLED: (Code.CANCELLED, "was cancelled"),
    EXPIRED: (Code.EXPIRED, "had expired"),
    FAILED: (Code.GAVE_UP, "had failed and was given up"),
    FINISHED: (Code.ENDED, "had ended"),
    QUARANTINED: (Code.QUARANTINED, "was quarantined"),
    PAUSED: (Code.PAUSED, "was paused"),
    MIGRATING: (Code.MIGRATING, "is being moved here by psched migrate and was not released"),
}


_MOMENTS = 5
"""An idle worker usually claims what is due within so many seconds, or two ``poll_interval``s."""


def answer_at_cursor(case: Case, row: Row) -> Answer:
    """The answer about the occurrence that is due or running next."""
    now, run_at = case.facts.now, row.next_run_time
    if row.owner is not None:
        return _leased(case, row, row.owner)
    if run_at is None:
        text = "does not run: its row has no next_run_time, which plain SQL must have removed"
        return case.answer(Code.UNKNOWN, State.UNKNOWN, text)
    tried = summary(case)
    if run_at > now and (row.is_tried or tried):
        because = tried or row.reason or f"its attempt {row.attempt} did not succeed"
        text = f"will be retried at {case.time(run_at)} because {because}"
        details = {"reason_code": row.reason_code, "run_at": run_at, **details_of(case)}
        return case.answer(Code.RETRYING, State.WILL_RUN, text, **details)
    if run_at > now:
        answer = _will_run(case, run_at)
        if row.reason_code == ReasonCode.NEW_ZONE_DATA:
            answer = answer.adding(f"it was moved: {row.reason}", reason_code=row.reason_code)
        return answer
    if not row.is_tried and (dropped := _dropped(case, row)) is not None:
        return dropped
    return _overdue(case, run_at, f"has been due since {case.time(run_at)}{after_attempts(case)}")


def answer_after_cursor(case: Case, row: Row) -> Answer:
    """The answer about an occurrence that comes after the one that is due or running next."""
    if case.run_from > case.facts.now:
        return _will_run(case, case.run_from)
    if row.owner is None and not row.is_tried and (dropped := _dropped(case, row)) is not None:
        return dropped
    cursor, since = case.time(row.next_time or 0), case.run_from
    if row.owner is not None and (row.next_run_time or inf) > case.facts.now:
        first = f"the occurrence of {cursor} is still running"
    elif row.next_run_time is not None and row.next_run_time > case.facts.now:
        again = "runs again" if row.is_tried else "runs"
        first = f"the occurrence of {cursor} {again} first, at {case.time(row.next_run_time)}"
    else:
        behind = Case(facts=case.facts, zone=case.zone, instant=row.next_time or 0)
        found = answer_at_cursor(behind, row)
        if found.code in {Code.COALESCED, Code.SKIPPED_CATCHUP}:
            return _overdue(case, since, f"has been due since {case.time(since)}")
        earlier = found.sentence[0].lower() + found.sentence[1:].rstrip(".")
        text = f"has been due since {case.time(since)} and waits for an earlier one: {earlier}"
        # If the earlier one should have started long ago, this one does not start soon, either.
        first_due = min(since, found.details.get("due", since))
        details = {**found.details, "due": since, "first": row.next_time, "first_due": first_due}
        return case.answer(found.code, _pending(case, first_due), text, **details)
    text = f"has been due since {case.time(since)} and waits because {first}"
    policy = None if case.definition is None else case.definition.settings.catchup
    if policy in {"skip", "latest"}:
        text += f" (catchup: {policy} may drop it)"
    return case.answer(Code.WAITING, _pending(case, since), text, due=since, first=row.next_time)


def answer_at_rest(case: Case, row: Row) -> Answer:
    """The answer if the row has no next run: it has ended, is quarantined or paused, or stops."""
    if row.status == STOPPING and row.owner is not None:
        onward = pause_clause(case, row) or "the schedule goes on"
        text = f"is running, but its task is being {row.reason or 'stopped'}; {onward}"
        return case.answer(Code.STOPPED, State.DID_NOT_RUN, text, status=row.status)
    if row.status in _STOPPING and row.owner is not None:
        what = _STOPPING[row.status]
        text = f"is running, but its task is being stopped, because it was {what}"
        return case.answer(Code.CANCELLED, State.DID_NOT_RUN, text, status=row.status)
    if row.status in AFTER_RUN.values() and row.owner is not None:
        return _leased(case, row, row.owner)
    change = last_change_to(case, row.status)
    if case.once and row.status == FINISHED:
        return _finished(case, change)
    code, what = _ENDED.get(row.status, (Code.UNKNOWN, f"has the unknown status {row.status!r}"))
    details: dict[str, Any] = {"status": row.status}
    verb = "does not run" if case.instant > case.facts.now else "did not run"
    when = ""
    if change is not None:
        when = f" at {case.time(time_of(change))} {who(change)}"
        details["changed"] = time_of(change)
    because = f": {row.reason}" if row.reason else ""
    if row.reason:
        details |= {"reason": row.reason, "reason_code": row.reason_code}
    if after := after_attempts(case):
        because += after
        details |= details_of(case)
    of = "it" if case.once else "the schedule"
    state = State.UNKNOWN if code is Code.UNKNOWN else State.DID_NOT_RUN
    text = f"{verb} because {of} {what}{when}{because}"
    if code is Code.PAUSED and (clause := pause_clause(case, row)):
        text = f"{verb} because {clause}{after}"
        details |= {"since": row.paused_at, "until": row.paused_until}
    return case.answer(code, state, text, **details)


def last_change_to(case: Case, status: str) -> AuditRecord | None:
    """The last recorded change that gave the schedule this status; None if there is none."""
    actions = {CANCELLED: {"cancel"}, FINISHED: {"force_finish"}}.get(status, set())
    for each in case.facts.audits:
        given = values(each.after).get("status")
        if MARKS.get(str(given), given) == status or each.action in actions:
            return each
        if "status" in values(each.after) or each.action == "requeue":
            return None
    return None


def _finished(case: Case, change: AuditRecord | None) -> Answer:
    """The answer about a task that is finished without a record that it ran."""
    # If it was running, it was only marked (`FINISHING`), and may still have succeeded.
    if change is None or values(change.after).get("status") != FINISHED:
        text = "is finished, but no record says when it ran"
        return case.answer(Code.FINISHED, State.RAN, text, status=FINISHED)
    note = (f": {change.note}" if change.note else "") + after_attempts(case)
    text = f"was marked as finished at {case.time(time_of(change))} {who(change)}{note}"
    details = {"status": FINISHED, "changed": time_of(change), **details_of(case)}
    return case.answer(Code.MARKED_FINISHED, State.DID_NOT_RUN, text, **details)


def _leased(case: Case, row: Row, owner: str) -> Answer:
    now, nonce = case.facts.now, nonce_of(owner)
    # The worker's record can be older than the claim by the time between two of its beats.
    workers = case.facts.workers_since((row.claimed_at or int(now) - 86_400) - GONE_AFTER)
    host = next((each.host for each in workers if each.nonce == nonce), None)
    on = f" on {host}" if host else f" in the worker {nonce}"
    since = f" since {case.time(row.claimed_at)}" if row.claimed_at else ""
    details: dict[str, Any] = {"attempt": row.attempt, "since": row.claimed_at, "host": host}
    details |= details_of(case)
    if row.next_run_time is not None and row.next_run_time <= now:
        text = (
            f"was running{on}{since}, but the lease ended at {case.time(row.next_run_time)}"
            " without a word of the worker; it is due"
        )
        seen = row.alive_time or case.facts.settings.alive_time
        if case.facts.settings.observes_leases and now - row.next_run_time < seen:
            text += (
                ", and a worker will take it over when it has seen this lease unchanged for"
                f" {format_duration(seen)}"
            )
            state = _pending(case, row.next_run_time)
            return case.answer(Code.WAITING, state, text, **details, due=row.next_run_time)
        return _overdue(case, row.next_run_time, text, details)
    running = "has been running" if since else "is running"
    number = f" (attempt {row.attempt})" if row.attempt > 1 else ""
    text = f"{running}{on}{since}{number}{after_attempts(case)}"
    if row.status == PAUSED:
        by = pause_clause(case, row) or row.reason
        text += "; the pause applies when this run has ended" + (f": {by}" if by else "")
    return case.answer(Code.RUNNING, State.RAN, text, **details)


def _will_run(case: Case, run_at: int) -> Answer:
    later = run_at - case.instant
    side = "after" if later > 0 else "before"
    delayed = f", {format_duration(abs(later))} {side} its scheduled time" if later else ""
    text = f"will run at {case.time(run_at)}{delayed}" if later else "will run then"
    if _may_be_leased(case, later):
        lease = "PerfectSched's table does not tell a lease from a wait"
        text = f"is running, or will run at {case.time(run_at)}: {lease}"
    return case.answer(Code.WILL_RUN, State.WILL_RUN, text, run_at=run_at)


def _may_be_leased(case: Case, later: int) -> bool:
    """Whether what looks like a wait can be a lease, because the table has no column for owners."""
    facts = case.facts
    may_run = case.instant <= facts.now or later < 0
    has_begun = may_run and facts.row is not None and later != facts.row.delay
    return has_begun and not facts.settings.store_kind.keeps_status


def _overdue(case: Case, since: int, due: str, more: Mapping[str, object] | None = None) -> Answer:
    """The answer about an occurrence that a worker could start now."""
    now, row = case.facts.now, case.facts.row
    if row is not None and row.is_held(now):
        text = f"{due} and waits for the end of an extra run of the schedule"
        return case.answer(Code.WAITING, _pending(case, since), text, **(more or {}), due=since)
    type_ = "" if row is None else row.type
    cause = find_cause(case, type_, since, max(now, since + 1))
    state = _pending(case, since)
    details = {**(more or {}), "due": since}
    if cause is not None:
        text = f"{due} and not claimed yet because {cause.text}"
        return case.answer(cause.code, state, text, **details)
    moments = max(_MOMENTS, 2 * case.facts.settings.poll_interval)
    if state is State.WILL_RUN and now - since < moments:
        text = f"{due}, and a worker will claim it within moments"
    elif case.facts.no_history is not None:
        text = f"{due} and not claimed yet"
    else:
        text = f"{due} and not claimed yet, although workers with free slots seem to be alive"
        # A worker that was killed seems to be alive until its record is too old.
        if (seen := newest_record(case.facts, type_)) is not None:
            age = format_duration(max(0, now - seen))
            text += f"; the newest record of such a worker is {age} old"
            details["newest_record"] = seen
    return case.answer(Code.WAITING, state, text, **details)


def _pending(case: Case, since: int) -> State:
    late = case.facts.now - since >= LATE
    return State.DID_NOT_RUN if late else State.WILL_RUN


def _dropped(case: Case, row: Row) -> Answer | None:
    """The answer if the catch-up policy will drop the occurrence when a worker claims the row."""
    definition, cursor = case.facts.definition, row.next_time
    if definition is None or definition.trigger is None or cursor is None:
        return None
    now = max(case.facts.now, row.next_run_time or 0)
    try:
        oldest = oldest_kept(definition.trigger, cursor, definition, now)
    except InvalidError:
        return None
    if oldest is not None and case.instant >= oldest:
        return None
    return _will_be_dropped(case, definition, cursor, oldest)


def _will_be_dropped(case: Case, definition: Definition, cursor: int, oldest: int | None) -> Answer:
    latest = definition.settings.catchup == "latest"
    code = Code.COALESCED if latest else Code.SKIPPED_CATCHUP
    why = describe_dropped(definition, cursor, oldest).replace("dropped", "drops")
    text = f"has not run and will not: it was missed, and {why}"
    cause = find_cause(case, definition.type, case.run_from, case.facts.now)
    if cause is not None:
        text += f"; {cause.text}"
    return case.answer(code, State.DID_NOT_RUN, text, reason=why)


def is_live(row: Row) -> bool:
    """Whether the row waits or runs, so that its `Row.next_time` tells what comes next.

    A row that was paused while its task runs is not live, because the pause comes next.
    """
    return row.status == WAITING


def runs_on(row: Row, now: float) -> bool:
    """Whether the row was paused while its task ran, and the task is still running."""
    held = row.owner is not None and row.next_run_time is not None and row.next_run_time > now
    return row.status == PAUSED and held
