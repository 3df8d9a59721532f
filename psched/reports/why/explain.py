"""Explains what became of an occurrence of a schedule, or what will."""

from dataclasses import replace as changed
from datetime import UTC, datetime
from functools import partial

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core import attempts
from psched.core.asked_time import Asked, parse_asked
from psched.core.columns import When
from psched.core.history.answer import Answer, Code, State
from psched.core.history.changes import changes_trigger, time_of, who
from psched.core.history.records import AuditRecord, Fate, Outcome, RunRecord
from psched.core.model import PAUSED, RUNS_NO_MORE, Row
from psched.core.operations.pausing import after_pause, skipped_by_pause
from psched.core.store_protocol import Send, Store
from psched.reports.why.facts import Case, Facts, fires, last_before, read_facts, shown_time
from psched.reports.why.pending import (
    answer_after_cursor,
    answer_at_cursor,
    answer_at_rest,
    is_live,
    runs_on,
)
from psched.reports.why.recorded import (
    answer_before_start,
    answer_by_attempts,
    answer_by_fate,
    answer_missing,
    answer_no_instant,
    ending,
    pause_clause,
)
from psched.triggers.cron import Cron, clock_change_effects
from psched.triggers.zone import Zone

_READS = 3
"""How often everything is read at most, until the row has not changed meanwhile."""

_WORST = (State.DID_NOT_RUN, State.UNKNOWN, State.WILL_RUN, State.RAN, State.NO_INSTANT)
"""The states; if a local time occurs twice, the answer has the first of the two in this order."""

_DELAYS = 64
"""The number of occurrences that are examined in the search for the last one that was due, because
``jitter`` can delay a later one less than an earlier one."""


def explain_from_store(
    store: Store,
    settings: Config,
    send: Send,
    key: str,
    *,
    time: When | str | None,
    zone: str | Zone | None,
) -> Answer:
    """Read what is known, and explain it; see `ScheduleCollection.why`."""
    row = send(partial(store.get, key))
    explained = partial(_explained, store, settings, send, key, time=time, zone=zone)
    answer = explained(row)
    for _ in range(_READS - 1):
        # A record is written together with the change of the row. So they fit each other if the row
        # has not changed meanwhile.
        former, row = row, send(partial(store.get, key))
        if _progress(former) == _progress(row):
            break
        answer = explained(row)
    return answer


def _progress(row: Row | None) -> tuple[object, ...]:
    """What changes in a row when an attempt begins or ends, and when somebody changes it."""
    if row is None:
        return ()
    return (row.fence, row.owner, row.settled_by, row.status, row.next_time, row.version)


def _explained(
    store: Store,
    settings: Config,
    send: Send,
    key: str,
    row: Row | None,
    *,
    time: When | str | None,
    zone: str | Zone | None,
) -> Answer:
    facts = read_facts(store, settings, send, key, row)
    shown = facts.zone(zone)
    asked = None if time is None else parse_asked(time, shown, facts.now)
    run = None if asked is None else _shown_with(facts, asked)
    if run is not None and run.key != key:
        time = run.scheduled_time
        return explain_from_store(store, settings, send, run.key, time=time, zone=shown)
    if run is not None:
        asked = Asked(instants=(run.scheduled_time,))
    return explain(facts, asked, shown)


def _shown_with(facts: Facts, asked: Asked) -> RunRecord | None:
    """The record that the command history shows with the time that is asked about.

    It shows when a run started. None if the time is a scheduled time of the schedule, if it is in
    the future, or if no record is shown with it.
    """
    found = None
    for instant in asked.instants if facts.no_history is None else ():
        if asked.before or facts.covering(instant) or fires(facts.at(instant).trigger, instant):
            return None
        if found is None and instant <= facts.now:
            found = facts.shown_with(instant)
    return found


def explain(facts: Facts, asked: Asked | None, zone: Zone) -> Answer:
    """Explain what became of an occurrence, or what will."""
    try:
        if facts.row is None:
            return _of_no_row(facts, asked, zone)
        if facts.row.each_host:
            return _of_template(facts.key)
        facts, row = _with_next_time(facts, facts.row)
        if asked is None:
            return _of_last(facts, row, zone)
        return _of_time(facts, row, asked, zone)
    except InvalidError as error:  # raised by a user's trigger
        return Answer(
            key=facts.key,
            time=None,
            code=Code.UNKNOWN,
            state=State.UNKNOWN,
            sentence=f"Nobody knows, because the times of the trigger cannot be computed: {error}",
        )


def _of_template(key: str) -> Answer:
    """The answer about a template, which has no occurrences."""
    sentence = (
        f"Each of its hosts runs a row of its own: ask about one of them, as in {key}@web1"
        f" (psched list '{key}@*' lists them)."
    )
    return Answer(
        key=key, time=None, code=Code.EACH_HOST, state=State.NO_INSTANT, sentence=sentence
    )


def _with_next_time(facts: Facts, row: Row) -> tuple[Facts, Row]:
    """The facts and the row, with the next time that a worker will compute if the row has none."""
    trigger = None if facts.definition is None else facts.definition.trigger
    if row.next_time is not None or trigger is None or not is_live(row):
        return facts, row
    first = attempts.first_time(row, trigger, facts.now)
    row = changed(row, next_time=first)
    return changed(facts, row=row), row


def _of_last(facts: Facts, row: Row, zone: Zone) -> Answer:
    """The answer about the last occurrence that was due, and what comes next."""
    instant = _last_due(facts, row)
    if instant is None:
        return _never_timed(facts, row, zone)
    answer = _with_extra_run(_about(facts, row, instant, zone), facts, zone)
    return _with_next(answer, facts, zone)


def _of_time(facts: Facts, row: Row, asked: Asked, zone: Zone) -> Answer:
    """The answer about the time that was asked about."""
    if row.cron is None:
        return _of_one_shot(facts, row, asked, zone)
    if len(asked.instants) != 1:
        return _of_clock_change(facts, row, asked, zone)
    instant = asked.instants[0]
    if asked.before and (trigger := facts.at(instant).trigger) is not None:
        before = last_before(trigger, instant + 1)
        instant = instant if before is None else before
    return _about(facts, row, instant, zone)


def _about(facts: Facts, row: Row, instant: int, zone: Zone) -> Answer:
    """The answer about one instant of an existing schedule."""
    answer = _about_regular(facts, row, instant, zone)
    if answer.state is not State.DID_NOT_RUN or row.cron is None:
        return answer
    run = next((each for each in facts.backfilled(instant) if each.outcome is not None), None)
    if run is None:
        return answer
    ran = run.outcome == Outcome.FINISHED
    what = "a backfill ran it" if ran else f"a backfill of it {ending(run)}"
    text = f"{what} at {shown_time(zone, run.ended / 1000, instant)}"
    return answer.adding(text, backfill=run.key)


def _about_regular(facts: Facts, row: Row, instant: int, zone: Zone) -> Answer:
    """The answer about one instant, as if no backfill had repeated it."""
    after, pause = _after_pause(facts, row), row.pause
    if after is None or pause is None or instant < (after.next_time or 0):
        return _about_present(facts, row, instant, zone)
    answer = _about_present(changed(facts, row=after), after, instant, zone)
    if answer.state is not State.WILL_RUN:
        return answer
    by = f" by {pause.note}" if pause.note else ""
    paused = f"it is paused until {shown_time(zone, pause.until or 0, instant)}{by}"
    return answer.adding(paused, until=pause.until)


def _about_present(facts: Facts, row: Row, instant: int, zone: Zone) -> Answer:
    """The answer about one instant, if the row stays as it is until a worker claims it."""
    case = Case(facts=facts, zone=zone, instant=instant)
    at_cursor = row.next_time == instant or (case.once and not case.records)
    if at_cursor and (is_live(row) or runs_on(row, facts.now)):
        return answer_at_cursor(case, row)
    if (found := answer_by_fate(case)) is not None:
        return found
    if at_cursor:
        return answer_at_rest(case, row)
    if not case.records and not fires(case.then.trigger, instant):
        return answer_no_instant(case)
    if row.next_time is None or instant > row.next_time:
        return answer_after_cursor(case, row) if is_live(row) else answer_at_rest(case, row)
    return _before_cursor(case)


def _after_pause(facts: Facts, row: Row) -> Row | None:
    """A paused row as it will be after its pause; None for other rows."""
    if row.owner is not None or facts.definition is None:
        return None
    return after_pause(row, facts.definition, facts.now)


def _before_cursor(case: Case) -> Answer:
    """The answer about an occurrence before the one that is due or running next."""
    if (found := answer_by_attempts(case)) is not None:
        return found
    return answer_before_start(case) if case.instant > case.facts.now else answer_missing(case)


def _last_due(facts: Facts, row: Row) -> int | None:
    """The scheduled time of the last occurrence that was due; else of the next one."""
    definition = facts.definition
    if row.cron is None or definition is None or definition.trigger is None:
        return row.next_time
    trigger, ready = definition.trigger, int(facts.now) - definition.delay
    last = last_before(trigger, ready + 1)
    for _ in range(_DELAYS):
        if last is None or definition.first_run(last) <= facts.now:
            break
        last = last_before(trigger, last)
    cursor = row.next_time
    change = next((each for each in facts.audits if changes_trigger(each)), None)
    began = max(row.created_at or 0, 0 if change is None else time_of(change))
    if last is not None and (last >= began or facts.covering(last)):
        return last
    if cursor is not None and (last is None or cursor <= facts.now or not facts.latest):
        return cursor
    return facts.latest[0].scheduled_time if facts.latest else last


def _with_extra_run(answer: Answer, facts: Facts, zone: Zone) -> Answer:
    """Add to an answer how the last extra run has ended, if it is newer than the occurrence."""
    run = next((each for each in facts.extra_runs() if each.outcome is not None), None)
    occurrence = answer.time or 0
    if run is None or run.ended < occurrence * 1000 < facts.now * 1000:
        return answer
    if answer.details.get("backfill") == run.key:
        return answer
    because = f" ({run.reason})" if run.reason else ""
    text = f"its extra run {run.key} {ending(run)} at {shown_time(zone, run.ended / 1000)}{because}"
    return answer.adding(text, extra_run=run.key)


def _with_next(answer: Answer, facts: Facts, zone: Zone) -> Answer:
    """Add to an answer what comes next."""
    row, definition = facts.row, facts.definition
    if row is not None and row.status == PAUSED:
        answer = _with_pause(answer, facts, row, zone)
        row = _after_pause(facts, row) or row
    elif skipped := _left_out(facts, answer.time, zone):
        answer = answer.adding(skipped)
    if row is not None and row.runs_no_more:
        return answer.adding(f"the schedule {RUNS_NO_MORE}")
    if row is None or definition is None or definition.trigger is None or not is_live(row):
        return answer
    after = answer.time or 0
    cursor = row.next_time
    following = cursor if cursor is not None and cursor > after else None
    if following is None:
        following = definition.trigger.next_after(after)
    if following is None:
        return answer
    run_at = definition.first_run(following)
    if following == cursor and row.owner is None and row.next_run_time is not None:
        run_at = row.next_run_time
    when = shown_time(zone, following)
    later = f" (from {shown_time(zone, run_at, following)} on)" if run_at != following else ""
    return answer.adding(f"the next is {when}{later}", next=following, next_run_at=run_at)


def _with_pause(answer: Answer, facts: Facts, row: Row, zone: Zone) -> Answer:
    """Add to an answer who has paused the schedule until when, and what the pause will skip."""
    definition = facts.definition
    # Some answers say already that the schedule is paused, or that the pause comes next.
    if answer.code not in {Code.PAUSED, Code.RUNNING} and "until" not in answer.details:
        case = Case(facts=facts, zone=zone, instant=answer.time or 0)
        by = pause_clause(case, row, "it") or row.reason or "by plain SQL"
        answer = answer.adding(f"the schedule is paused now: {by}")
    if row.owner is not None or definition is None or definition.trigger is None:
        return answer
    skipped = skipped_by_pause(row, definition, facts.now)
    if skipped is None:
        return answer
    what = _span(skipped.first, skipped.until, skipped.count, zone)
    return answer.adding(f"{what} will be skipped", will_skip=skipped.count)


def _left_out(facts: Facts, told: int | None, zone: Zone) -> str:
    """Which coming occurrences besides ``told`` somebody has skipped; empty if there are none."""
    skipped = (
        each
        for each in facts.latest
        if each.fate == Fate.SKIPPED
        and each.scheduled_time != told
        and (each.until or each.scheduled_time) > facts.now
    )
    return " and ".join(
        f"{_span(each.scheduled_time, each.until, each.count, zone)} will not run"
        f" ({each.reason or 'skipped by hand'})"
        for each in reversed([*skipped])
    )


def _span(first: int, until: int | None, count: int | None, zone: Zone) -> str:
    """Neighbouring occurrences, in words."""
    if until is None or until == first:
        return f"the occurrence of {shown_time(zone, first)}"
    number = "the" if count is None else str(count)
    return (
        f"{number} occurrences from {shown_time(zone, first)} to {shown_time(zone, until, first)}"
    )


def _of_one_shot(facts: Facts, row: Row, asked: Asked, zone: Zone) -> Answer:
    """The answer about a schedule that runs only once, whatever time is asked about."""
    for instant in asked.instants:
        if instant == row.next_time or facts.covering(instant):
            return _about(facts, row, instant, zone)
    if row.next_time is None:
        return _never_timed(facts, row, zone)
    answer = _about(facts, row, row.next_time, zone)
    return answer.adding("it has no other occurrence")


def _of_clock_change(facts: Facts, row: Row, asked: Asked, zone: Zone) -> Answer:
    """The answer about a local time that a clock change skips or repeats."""
    wall, instants = asked.wall or 0, asked.instants
    change = zone.change(wall)
    date, clock = _wall_text(wall)
    if instants:
        both = [_about(facts, row, each, zone) for each in instants]
        main = min(both, key=lambda each: _WORST.index(each.state))
        parts = [
            f"the {which} is {shown_time(zone, each)}: {_clause(answer)}"
            for which, each, answer in zip(("first", "second"), instants, both, strict=True)
        ]
        sentence = f"{clock} comes twice on {date} in {zone.name}; {'; '.join(parts)}."
        readings = [each.to_json() for each in both]
        return main.saying(sentence, local_time="twice", readings=readings)
    moved = f"the clocks are set from {_wall_text(change.start)[1]} to {_wall_text(change.end)[1]}"
    absent = f"{clock} does not exist on {date} in {zone.name}, because {moved}"
    trigger = facts.at(change.instant - 1).trigger
    matches = isinstance(trigger, Cron) and trigger.zone == zone
    if matches and trigger.match_after(wall - 1) == wall:  # type: ignore[union-attr]
        if fires(trigger, change.instant) and trigger.fixed:  # type: ignore[union-attr]
            answer = _about(facts, row, change.instant, zone)
            sentence = f"{absent}, and the schedule runs right after instead: {_clause(answer)}."
            return answer.saying(sentence, local_time="skipped")
        effects = clock_change_effects(trigger, change.instant - 1, change.instant)
        effect = next((each.effect for each in effects), "skipped")
        sentence = f"{absent}, so this occurrence of the schedule is {effect} (dst_policy)."
        state = State.DID_NOT_RUN
    else:
        sentence, state = f"{absent}, and the schedule has no occurrence then.", State.NO_INSTANT
    return Answer(
        key=facts.key,
        time=None,
        code=Code.NO_SUCH_LOCAL_TIME,
        state=state,
        sentence=sentence,
        details={"local_time": "skipped", "change": change.instant},
    )


def _clause(answer: Answer) -> str:
    """The sentence of an answer as a part of another sentence."""
    return (answer.sentence[0].lower() + answer.sentence[1:]).rstrip(".")


def _wall_text(wall: int) -> tuple[str, str]:
    """The date and the time of day of a local time."""
    local = datetime.fromtimestamp(wall, UTC)
    return local.strftime("%Y-%m-%d"), local.strftime("%H:%M:%S" if local.second else "%H:%M")


def _never_timed(facts: Facts, row: Row, zone: Zone) -> Answer:
    """The answer if the row has no time yet."""
    case = Case(facts=facts, zone=zone, instant=int(facts.now))
    answer = answer_at_cursor(case, row) if is_live(row) else answer_at_rest(case, row)
    return answer.adding("it has no scheduled time yet")


def _of_no_row(facts: Facts, asked: Asked | None, zone: Zone) -> Answer:
    """The answer if the schedule does not exist now."""
    instant = None
    if asked is not None and asked.instants:
        instant = asked.instants[0]
    elif asked is None and facts.latest:
        instant = facts.latest[0].scheduled_time
    missing = _unknown_key(facts, instant, zone)
    if instant is None:
        return missing
    case = Case(facts=facts, zone=zone, instant=instant)
    found = answer_by_fate(case) or answer_by_attempts(case)
    if found is None:
        return missing
    return found.adding(_gone(facts, zone))


def _unknown_key(facts: Facts, instant: int | None, zone: Zone) -> Answer:
    gone = _gone(facts, zone)
    sentence, details = gone[0].upper() + gone[1:], dict[str, object]()
    if deleted := _deletion(facts):
        details["deleted"] = time_of(deleted)
    elif similar := facts.similar_keys():
        sentence += f"; did you mean {' or '.join(map(repr, similar))}?"
        details["similar"] = [*similar]
    return Answer(
        key=facts.key,
        time=instant,
        code=Code.NO_SUCH_SCHEDULE,
        state=State.DID_NOT_RUN if deleted else State.UNKNOWN,
        sentence=sentence if sentence.endswith("?") else f"{sentence}.",
        details=details,
    )


def _gone(facts: Facts, zone: Zone) -> str:
    """Says that no schedule has the key now, and when it was deleted, as a clause."""
    deleted = _deletion(facts)
    if deleted is None:
        return f"no schedule has the key {facts.key!r} now"
    when = shown_time(zone, time_of(deleted))
    return f"the schedule {facts.key!r} was deleted at {when} {who(deleted)}"


def _deletion(facts: Facts) -> AuditRecord | None:
    return next((each for each in facts.audits if each.action == "delete"), None)
