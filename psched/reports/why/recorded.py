"""Answers from the records of an occurrence, or from other records if there is none about it."""

from typing import Any

from psched.base.quantities import format_duration
from psched.core.history.answer import Answer, Code, State
from psched.core.history.changes import number_in, time_of, values, who
from psched.core.history.records import FOREVER, AuditRecord, Fate, Outcome, RunRecord
from psched.core.model import CANCELLED, FINISHED, MARKS, PAUSED, QUARANTINED, ReasonCode, Row
from psched.core.operations.skipping import SKIPPED_BY
from psched.reports.why.availability import find_cause
from psched.reports.why.facts import Case, fires, last_before, listed

LATE = 60
"""Seconds after which an occurrence that has not started is late, and the cause is searched."""

_NEAR = 5
"""Two events that are so many seconds apart are taken to be one."""

_MOST_SHOWN = 3
"""The largest number of attempts that a sentence describes."""

_ENDS = {
    Outcome.FINISHED: "finished",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "was stopped at its time limit",
    Outcome.CANCELLED: "was stopped because it was cancelled",
    Outcome.RELEASED: "was interrupted",
    Outcome.LOST: "was lost",
    Outcome.PREEMPTED: "lost its lease",
}

_SKIPPED = {
    Fate.SKIPPED_CATCHUP: "was skipped because it was missed, and the setting catchup dropped it",
    Fate.SKIPPED_OVERLAP: "was skipped because an earlier occurrence was still running",
    Fate.COALESCED: "was skipped because it was missed, and only the latest missed occurrence ran",
    Fate.SKIPPED: "was skipped by hand",
    Fate.SKIPPED_PAUSED: "was skipped because the schedule was paused",
    Fate.SKIPPED_CALENDAR: "was skipped because of the calendar",
    Fate.SKIPPED_CLOCK_CHANGE: "was skipped because of a clock change",
}

_BY_ACTION = {
    "cancel": CANCELLED,
    "force_finish": FINISHED,
    "delete": "deleted",
}
"""The status that an action gives a schedule, if the record of the change does not tell."""

_CODES = {
    CANCELLED: Code.CANCELLED,
    FINISHED: Code.ENDED,
    PAUSED: Code.PAUSED,
    QUARANTINED: Code.QUARANTINED,
    "deleted": Code.BEFORE_CREATION,
}

_STEERING = frozenset({"cancel", "force_finish", "delete", "requeue"})


# --- there is a record about it ---


def answer_by_fate(case: Case) -> Answer | None:
    """The answer from the record that says what became of the occurrence; None without such."""
    decisive = next((each for each in case.records if each.fate is not None), None)
    if decisive is None:
        return None
    fate, when = decisive.fate, decisive.ended / 1000
    details = details_of(case, decisive)
    because = f": {decisive.reason}" if decisive.reason else ""
    if fate == Fate.FINISHED:
        if decisive.outcome == Outcome.FINISHED:
            return _ran(case, decisive, details)
        text = f"was marked as finished at {case.time(when)}, before its task had succeeded"
        return case.answer(Code.MARKED_FINISHED, State.DID_NOT_RUN, text, **details)
    if fate in _SKIPPED:
        text = _SKIPPED[Fate(fate)] + because + _span_text(case, decisive)
        if fate == Fate.SKIPPED_PAUSED and decisive.reason:
            text = f"was skipped because the schedule was {decisive.reason}"
        if fate == Fate.SKIPPED:
            text = _by_hand(case, decisive)
        if fate in {Fate.SKIPPED_CATCHUP, Fate.COALESCED}:
            missed = find_cause(case, decisive.type, case.run_from, when)
            text += "" if missed is None else f"; {missed.text}"
            details |= {} if missed is None else {"missed_code": missed.code.value}
        return case.answer(Code(fate), State.DID_NOT_RUN, text, **details)
    after = after_attempts(case)
    # What was tried ends with the reason of this record, if this record is of an attempt.
    told = after if after and decisive.outcome is not None else because + after
    texts: dict[str, str] = {
        Fate.GAVE_UP: f"failed and was given up at {case.time(when)}{after or because}",
        Fate.CANCELLED: f"was cancelled at {case.time(when)}{told}",
        Fate.STOPPED: f"was stopped at {case.time(when)}{because}",
        Fate.EXPIRED: f"expired at {case.time(when)}{told}",
        Fate.QUARANTINED: f"did not run because the schedule was quarantined at {case.time(when)}"
        f"{because}",
    }
    if fate is None or fate not in texts:
        text = f"has the fate {fate!r}, which this version of psched does not know"
        return case.answer(Code.UNKNOWN, State.UNKNOWN, text, **details)
    return case.answer(Code(fate), State.DID_NOT_RUN, texts[fate], **details)


def answer_by_attempts(case: Case) -> Answer | None:
    """The answer if there were attempts, but the schedule has gone on without a decision."""
    if not case.attempts:
        return None
    text = f"did not succeed and is not tried again: {summary(case)}"
    return case.answer(Code.RAN_FAILED, State.DID_NOT_RUN, text, **details_of(case))


def summary(case: Case) -> str:
    """What became of the attempts that have not succeeded; empty if there were none."""
    failed = [each for each in case.attempts if each.outcome != Outcome.FINISHED]
    last = failed[-_MOST_SHOWN:]
    following = (*last[1:], None)
    shown = [_described(case, each, after) for each, after in zip(last, following, strict=False)]
    more = len(failed) - len(shown)
    earlier = f"{more} earlier attempt{'s' if more > 1 else ''} did not succeed"
    return listed([*([earlier] if more else []), *shown])


def after_attempts(case: Case) -> str:
    """What was tried without success, as the end of a sentence."""
    tried = summary(case)
    return f", after {tried}" if tried else ""


def pause_clause(case: Case, row: Row, what: str = "the schedule") -> str | None:
    """Who has paused the schedule, when, until when, and why; None if plain SQL or nobody has."""
    pause = row.pause
    if pause is None:
        return None
    if row.reason_code == ReasonCode.PAUSED_AFTER_FAILURES:
        return f"{what} was {row.reason}"
    if pause.since is None or pause.note is None:
        return None
    by, _, note = pause.note.partition(": ")
    until = "" if pause.until is None else f" until {case.time(pause.until)}"
    because = f": {note}" if note else ""
    return f"{by} paused {what} at {case.time(pause.since)}{until}{because}"


def ending(record: RunRecord) -> str:
    """How an attempt has ended, as a predicate; an outcome of a later version as it is stored."""
    return _ENDS[Outcome(record.outcome)] if record.outcome in set(Outcome) else str(record.outcome)


def _by_hand(case: Case, record: RunRecord) -> str:
    """Who has skipped an occurrence, when and why, and what had become of its attempts."""
    by, _, note = (record.reason or "").removeprefix(SKIPPED_BY).partition(": ")
    who_did = f" by {by}" if by else ""
    because = (f": {note}" if note else "") + after_attempts(case)
    return f"was skipped{who_did} at {case.time(record.ended / 1000)}{because}"


def details_of(case: Case, decisive: RunRecord | None = None) -> dict[str, Any]:
    """The attempts, and the record that has decided, for `Answer.details`."""
    found: dict[str, Any] = {}
    if case.attempts:
        found["attempts"] = [_attempt(each) for each in case.attempts]
    if decisive is not None:
        found |= {"fate": decisive.fate, "decided": decisive.ended / 1000}
        if decisive.reason is not None:
            found["reason"] = decisive.reason
        if decisive.until is not None:
            until = None if decisive.until == FOREVER else decisive.until
            found["span"] = {"from": decisive.scheduled_time, "to": until, "count": decisive.count}
    return found


def late_clause(case: Case, first: RunRecord) -> tuple[str, dict[str, Any]]:
    """How late or early the first attempt was, and why it was late; else an empty text."""
    if first.started is None:
        return "", {}
    started = first.started / 1000
    late = started - case.run_from
    details: dict[str, Any] = {"late": round(max(late, 0), 3)}
    if (early := case.instant - started) > 1:
        return f"{format_duration(early)} before its scheduled time", details
    if late < LATE:
        return "", details
    # The row could be claimed only from this time on.
    held = max(first.due / 1000 if first.due else 0, case.run_from)
    cause = _held_back(case, held) if held - case.run_from >= late / 2 else ""
    found = None
    # An earlier occurrence that was late itself has the same cause, if one is known.
    if not cause or _earlier_was_late(case):
        found = find_cause(case, first.type, case.run_from, started)
    if found is not None:
        cause, details["late_code"] = found.text, found.code.value
    elif cause:
        details["late_code"] = Code.WAITING.value
    because = f" because {cause}" if cause else ""
    return f"{format_duration(late)} late{because}", details


def _ran(case: Case, record: RunRecord, details: dict[str, Any]) -> Answer:
    attempts = case.attempts
    text = f"ran at {case.time(record.began / 1000)}"
    if record.host:
        text += f" on {record.host}"
    late, more = late_clause(case, attempts[0])
    if late and len(attempts) == 1:
        text += f", {late},"
    if record.took is not None:
        text += f" and took {format_duration(record.took)}"
    if after := after_attempts(case):
        first = f", the first {late}" if late else ""
        text += f", in attempt {record.attempt}{after}{first}"
    return case.answer(Code.RAN, State.RAN, text, **details, **more)


def _described(case: Case, record: RunRecord, following: RunRecord | None) -> str:
    """What became of an attempt; without its reason if the following one has the same."""
    end = ending(record)
    text = f"attempt {record.attempt} {end}"
    if record.host:
        text += f" on {record.host}"
    text += f" at {case.time(record.ended / 1000)}"
    if record.out_of_memory:
        text += ", probably because memory ran out"
    said = end.removeprefix("was ") == record.reason
    repeated = following is not None and following.reason == record.reason
    return text if said or repeated or not record.reason else f"{text} ({record.reason})"


def _attempt(record: RunRecord) -> dict[str, Any]:
    names = ("attempt", "outcome", "host", "pid", "took", "reason", "exit_status", "exit_signal")
    found = {name: getattr(record, name) for name in names}
    found["started"] = None if record.started is None else record.started / 1000
    found["ended"] = record.ended / 1000
    if record.out_of_memory:
        found["out_of_memory"] = True
    return {name: value for name, value in found.items() if value is not None}


def _span_text(case: Case, record: RunRecord) -> str:
    if record.until is None or record.reason:
        return ""
    if record.until == FOREVER:
        return f", like all from {case.time(record.scheduled_time)} on"
    return f", like all from {case.time(record.scheduled_time)} to {case.time(record.until)}"


def _held_back(case: Case, held: float) -> str:
    """Why the row could not be claimed before ``held``; empty if only its workers can be why."""
    if (earlier := _earlier(case)) is not None:
        records = case.facts.covering(earlier)
        ended = max((each.ended / 1000 for each in records if each.outcome is not None), default=0)
        if ended and ended >= case.run_from:
            when = case.time(earlier)
            return f"the occurrence of {when} had not ended before {case.time(ended)}"
    for each in reversed(case.facts.audits):
        if case.run_from <= time_of(each) <= held + _NEAR:
            return f"of a change ({each.action}) at {case.time(time_of(each))} {who(each)}"
    return ""


def _earlier(case: Case) -> int | None:
    """The scheduled time of the occurrence before; None if there is none."""
    trigger = case.then.trigger
    return None if trigger is None else last_before(trigger, case.instant)


def _earlier_was_late(case: Case) -> bool:
    """Whether the occurrence before had not started when this one was due."""
    if (earlier := _earlier(case)) is None:
        return False
    starts = [each.started for each in case.facts.covering(earlier) if each.started is not None]
    return bool(starts) and min(starts) >= case.run_from * 1000


# --- there is none: no occurrence, an earlier definition, no history ---


def answer_no_instant(case: Case) -> Answer:
    """The answer if the schedule has no occurrence at the time."""
    if (early := _before_creation(case)) is not None:
        return early
    then, present = case.then, case.facts.definition
    change = then.until
    trigger = then.trigger
    if then.problem is not None and change is not None:
        return _invalid_then(case, then.problem)
    if change is not None and present is not None and fires(present.trigger, case.instant):
        text = f"did not exist: {_changed(case, change)}"
        return case.answer(
            Code.BEFORE_TRIGGER_CHANGE, State.DID_NOT_RUN, text, **_change_details(change)
        )
    nearest = [] if trigger is None else [last_before(trigger, case.instant)]
    nearest += [] if trigger is None else [trigger.next_after(case.instant)]
    known = [each for each in nearest if each is not None]
    if present is None and trigger is None:
        return _not_parsed(case)
    sentence = f"{case.date_time(case.instant)} is not an instant of this schedule"
    if known:
        are = "the nearest are" if len(known) > 1 else "the nearest is"
        sentence += f"; {are} {listed([case.date_time(each) for each in known])}"
    details: dict[str, object] = {"nearest": known}
    former = _former_change(case)
    if former is not None:
        sentence += f"; {_changed(case, former)}"
        details |= _change_details(former)
    answer = case.answer(Code.NO_INSTANT, State.NO_INSTANT, "")
    return answer.saying(f"{sentence}.", **details)


def answer_missing(case: Case) -> Answer:
    """The answer if an occurrence is over, but nothing is recorded about it."""
    steps = (_before_creation, _purged_by_age, _at_rest_then, _steered, _off, _purged_by_number)
    for step in steps:
        if (found := step(case)) is not None:
            return found
    if not case.facts.settings.store_kind.keeps_status:
        why = "PerfectSched's workers, which share the table, record nothing"
    elif not case.facts.latest:
        why = "nothing at all is recorded about the schedule, which may have been run by workers"
        why += " of an older version, or changed by plain SQL"
    else:
        why = (
            "its row was changed by plain SQL, a worker of an older version ran it, or the record"
            " could not be written"
        )
    text = f"is over, but nothing is recorded about it: {why}"
    return case.answer(Code.UNKNOWN, State.UNKNOWN, text)


def answer_before_start(case: Case) -> Answer:
    """The answer about a future time before the next occurrence of the schedule."""
    cursor = case.cursor
    if cursor is None:
        text = "will not run, because the schedule has no further occurrence"
        return case.answer(Code.ENDED, State.DID_NOT_RUN, text)
    text = f"will not run, because the next occurrence was set to {case.time(cursor)}"
    return case.answer(Code.BEFORE_START, State.DID_NOT_RUN, text, next=cursor)


def _before_creation(case: Case) -> Answer | None:
    row, added = case.facts.row, case.then.added
    if added is not None:
        when, by = time_of(added), f" {who(added)}"
    elif row is not None and row.created_at is not None and row.created_at > case.instant:
        if any(each.action == "requeue" for each in case.facts.audits):
            return None  # a requeue sets this time, too
        when, by = float(row.created_at), ""
    else:
        return None
    deleted = next(
        (each for each in case.facts.audits if each.action == "delete" and time_of(each) <= when),
        None,
    )
    text = f"is before the schedule: it was added at {case.date_time(when)}{by}"
    details = {"added": when}
    if deleted is not None:
        text += f"; an earlier one was deleted at {case.date_time(time_of(deleted))} {who(deleted)}"
        details["deleted"] = time_of(deleted)
    sentence = f"{case.date_time(case.instant)} {text}."
    answer = case.answer(Code.BEFORE_CREATION, State.DID_NOT_RUN, "", **details)
    return answer.saying(sentence)


def _at_rest_then(case: Case) -> Answer | None:
    """The answer if the schedule was cancelled, paused or the like at that time."""
    for each in case.facts.audits:
        if time_of(each) > case.instant:
            continue
        status = values(each.after).get("status")
        status = MARKS.get(str(status), status) or _BY_ACTION.get(each.action)
        if status is None and each.action not in {"add", "requeue"}:
            continue
        code = _CODES.get(str(status))
        if code is None:
            return None
        text = f"did not run because the schedule was {status} at {case.time(time_of(each))}"
        return case.answer(code, State.DID_NOT_RUN, f"{text} {who(each)}", changed=time_of(each))
    return None


def _steered(case: Case) -> Answer | None:
    """The answer if the schedule was changed before the occurrence could start."""
    then = case.then
    if then.problem is not None and then.until is not None:
        return _invalid_then(case, then.problem)
    change = _next_steering(case)
    if change is None or _ran_later(case, time_of(change)):
        return None
    when = case.time(time_of(change))
    if change is then.until:
        text = f"had not started when the trigger was changed: {_changed(case, change)}"
        return case.answer(
            Code.BEFORE_TRIGGER_CHANGE, State.DID_NOT_RUN, text, **_change_details(change)
        )
    moved = number_in(change.after, "next_time")
    if change.action in {"cancel", "delete", "force_finish"}:
        verb = {"cancel": "cancelled", "delete": "deleted"}.get(change.action, "finished")
        code = Code.MARKED_FINISHED if verb == "finished" else Code.CANCELLED
        text = f"had not started when the schedule was {verb} at {when} {who(change)}"
    elif change.action == "skip":
        code, text = Code.SKIPPED, f"was skipped at {when} {who(change)}"
    elif change.action == "resume":
        code = Code.SKIPPED_PAUSED
        text = f"was skipped because the schedule was paused until {when}, and resumed"
        text += f" {who(change)}"
    else:
        code = Code.MOVED
        to = "" if moved is None else f" to {case.time(moved)}"
        text = (
            f"had not started when the next time of the schedule was set{to} at {when}"
            f" {who(change)} ({change.action})"
        )
    return case.answer(code, State.DID_NOT_RUN, text, changed=time_of(change))


def _next_steering(case: Case) -> AuditRecord | None:
    """The change that can have taken the occurrence away; None if there is none.

    It is the first one after the occurrence, or one before it that has set a later next time.
    """
    found = None
    for each in case.facts.audits:
        before, after = (number_in(side, "next_time") for side in (each.before, each.after))
        moves = before is not None and after is not None
        if time_of(each) <= case.instant:
            passed = (before or 0) <= case.instant < (after or 0)
            return found or (each if moves and passed else None)
        if each is case.then.until or moves or each.action in _STEERING:
            found = each
    return found


def _ran_later(case: Case, until: float) -> bool:
    """Whether the next occurrence before ``until`` is recorded."""
    trigger = case.then.trigger
    following = None if trigger is None else trigger.next_after(case.instant)
    if following is None or following > until:
        return False
    return bool(case.facts.covering(following))


def _purged_by_age(case: Case) -> Answer | None:
    keep = case.facts.settings.history_keep
    if not keep or case.instant >= case.facts.now - keep:
        return None
    first = case.date_time(case.facts.now - keep)
    text = f"is over; records of the run history before {first} are deleted (history_keep)"
    return case.answer(Code.HISTORY_PURGED, State.UNKNOWN, text)


def _purged_by_number(case: Case) -> Answer | None:
    keep = case.facts.settings.history_keep_per_key
    oldest, number = case.facts.oldest()
    if oldest is None or oldest.ended / 1000 < case.instant:
        return None
    if keep and number >= keep:
        text = (
            f"is over; the records of this schedule before {case.time(oldest.ended / 1000)} are"
            f" deleted, because the run history keeps {keep} (history_keep_per_key)"
        )
        return case.answer(Code.HISTORY_PURGED, State.UNKNOWN, text)
    text = (
        "is over, but nothing is recorded about it: the first record of this schedule is of"
        f" {case.time(oldest.ended / 1000)}; workers of an older version may have run it before"
    )
    return case.answer(Code.UNKNOWN, State.UNKNOWN, text)


def _off(case: Case) -> Answer | None:
    facts = case.facts
    if facts.no_history is not None:
        text = f"is over, but the run history is off: {facts.no_history}"
    elif facts.history == "none":
        text = "is over, but its run history is off (history: none)"
    elif facts.history == "failures":
        text = (
            "is over; it neither failed nor was skipped as far as is recorded, but successful runs"
            " are not recorded (history: failures)"
        )
    else:
        return None
    return case.answer(Code.HISTORY_OFF, State.UNKNOWN, text)


def _invalid_then(case: Case, problem: str) -> Answer:
    text = f"did not run because the definition of the schedule was invalid: {problem}"
    return case.answer(Code.QUARANTINED, State.DID_NOT_RUN, text, reason=problem)


def _not_parsed(case: Case) -> Answer:
    problem = case.facts.present.problem or "it has no trigger"
    text = f"cannot be explained, because the trigger cannot be used here: {problem}"
    return case.answer(Code.UNKNOWN, State.UNKNOWN, text, reason=problem)


def _former_change(case: Case) -> AuditRecord | None:
    """The last change before the time, if the trigger had an occurrence there before it."""
    for each in case.facts.audits:
        if time_of(each) > case.instant:
            continue
        if each.before is None:
            return None
        before, after = values(each.before), values(each.after)
        if any(before.get(name) != after.get(name) for name in ("cron", "timezone")):
            former = case.facts.at(int(time_of(each)) - 1).trigger
            return each if fires(former, case.instant) else None
    return None


def _changed(case: Case, change: AuditRecord) -> str:
    """What a change has made of the trigger, and when."""
    before, after = values(change.before), values(change.after)
    parts = [
        f"from {before.get(name)!r} to {after[name]!r}"
        for name in ("cron", "timezone")
        if name in after and before.get(name) != after[name]
    ]
    what = " and ".join(parts) or "by its dst_policy"
    return f"its trigger was changed at {case.time(time_of(change))} {what} {who(change)}"


def _change_details(change: AuditRecord) -> dict[str, object]:
    return {
        "changed": time_of(change),
        "before": values(change.before),
        "after": values(change.after),
        "by": {"user": change.user, "host": change.host, "program": change.program},
    }
