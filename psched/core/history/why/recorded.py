"""Answers from the records of an occurrence."""

from collections.abc import Mapping, Sequence
from typing import Any

from psched.base.quantities import format_duration
from psched.core.history.changes import time_of, who
from psched.core.history.records import FOREVER, Fate, Outcome, RunRecord
from psched.core.history.why.answer import Answer, Code, State, listed
from psched.core.history.why.availability import find_cause
from psched.core.history.why.case import Case
from psched.core.history.why.facts import last_before
from psched.core.model import ReasonCode, Row
from psched.core.operations.changes.skipping import SKIPPED_BY

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
            missed = find_cause(case.facts, decisive.type, case.run_from, when, case.near)
            text += "" if missed is None else f"; {missed.text}"
            details |= {} if missed is None else {"missed_code": missed.code.value}
        return case.answer(Code(fate), State.DID_NOT_RUN, text, **details)
    tried = summary(case)
    after = f", after {tried}" if tried else ""
    # What was tried ends with the reason of this record, if this record is of an attempt.
    told = after if tried and decisive.outcome is not None else because + after
    texts: Mapping[str, str] = {
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


def pause_clause(case: Case, row: Row, what: str = "the schedule") -> str | None:
    """Who has paused the schedule, when, until when, and why, as a clause.

    Returns:
        The clause; None if the row is not paused, or was paused by plain SQL.
    """
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
    because = f": {note}" if note else ""
    tried = summary(case)
    after = f", after {tried}" if tried else ""
    return f"was skipped{who_did} at {case.time(record.ended / 1000)}{because}{after}"


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
        found = find_cause(case.facts, first.type, case.run_from, started, case.near)
    if found is not None:
        cause, details["late_code"] = found.text, found.code.value
    elif cause:
        details["late_code"] = Code.WAITING.value
    because = f" because {cause}" if cause else ""
    return f"{format_duration(late)} late{because}", details


def _ran(case: Case, record: RunRecord, details: dict[str, Any]) -> Answer:
    attempts = case.attempts
    start = record.ended / 1000 if record.started is None else record.started / 1000
    text = f"ran at {case.time(start)}"
    if record.host:
        text += f" on {record.host}"
    late, more = late_clause(case, attempts[0])
    if late and len(attempts) == 1:
        text += f", {late},"
    if record.took is not None:
        text += f" and took {format_duration(record.took)}"
    if tried := summary(case):
        first = f", the first {late}" if late else ""
        text += f", in attempt {record.attempt}, after {tried}{first}"
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
        ended = _last_end(case.facts.covering(earlier))
        if ended is not None and ended >= case.run_from:
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


def _last_end(records: Sequence[RunRecord]) -> float | None:
    ends = [each.ended / 1000 for each in records if each.outcome is not None]
    return max(ends, default=None)
