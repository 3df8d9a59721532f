"""Answers if nothing is recorded about a time: no occurrence, an earlier definition, no history."""

from psched.core.history.changes import time_of, values, who
from psched.core.history.records import AuditRecord
from psched.core.history.why.answer import Answer, Code, State, listed
from psched.core.history.why.case import Case
from psched.core.history.why.facts import fires, last_before
from psched.core.model import CANCELLED, FINISHED, MARKS, PAUSED, QUARANTINED

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
    sentence = f"{case.words.time(case.instant)} is not an instant of this schedule"
    if known:
        are = "the nearest are" if len(known) > 1 else "the nearest is"
        sentence += f"; {are} {listed([case.words.time(each) for each in known])}"
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
    text = f"is before the schedule: it was added at {case.words.time(when)}{by}"
    details = {"added": when}
    if deleted is not None:
        text += (
            f"; an earlier one was deleted at {case.words.time(time_of(deleted))} {who(deleted)}"
        )
        details["deleted"] = time_of(deleted)
    sentence = f"{case.words.time(case.instant)} {text}."
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
    moved = values(change.after).get("next_time")
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
        to = f" to {case.time(moved)}" if isinstance(moved, int) else ""
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
        before, after = (_number(side, "next_time") for side in (each.before, each.after))
        moves = before is not None and after is not None
        if time_of(each) <= case.instant:
            passed = (before or 0) <= case.instant < (after or 0)
            return found or (each if moves and passed else None)
        if each is case.then.until or moves or each.action in _STEERING:
            found = each
    return found


def _number(columns: str | None, name: str) -> int | None:
    found = values(columns).get(name)
    return found if isinstance(found, int) else None


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
    first = case.words.time(case.facts.now - keep)
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
