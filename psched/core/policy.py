"""What becomes of a leased row: pure functions, no store, no clock.

`after_claim` judges a row that has just been claimed: is its occurrence to be run, or is there
something else to do with it? `after_run` turns what came out of a run into a settlement.

**Catch-up** of occurrences that fell due while nobody ran them: see `psched.core.catchup`.

**Giving up** (see `attempts`): the schedule goes on to its next occurrence; what runs only
once has ``failed``, and stays until somebody requeues or deletes it, or has ``expired``.
"""

import math
from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.errors import InvalidError, NotLoadedError
from psched.base.texts import cut, visible
from psched.config import Config
from psched.core import attempts
from psched.core.catchup import describe_dropped, iso, oldest_kept
from psched.core.columns import LATEST_TIME
from psched.core.definition import Definition, parse_row
from psched.core.model import (
    DELETING,
    FAILED,
    FINISHED,
    MARKS,
    QUARANTINED,
    SET_ASIDE,
    STATUSES,
    WAITING,
    Decision,
    Finish,
    Quarantine,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.triggers import trigger as triggers

_SHORTEST_SEARCH = 1
"""Seconds between two searches for a trigger's code, if failures are tried again at once."""

_REASON_LENGTH = 460
"""Characters of a reason that are kept in the row; with the note on what was cut, at most 500."""


@dataclass(frozen=True, slots=True)
class Run:
    """The row's occurrence is to be run.

    Attributes:
        definition: the row, understood.
        scheduled_time: the occurrence's.
    """

    definition: Definition
    scheduled_time: int


def after_claim(row: Row, settings: Config, now: float) -> Run | Settlement:
    """What to do with a row that has just been claimed.

    Args:
        row: as the claim returned it.
        settings: the installation's.
        now: the store's clock.

    Returns:
        Its occurrence to run; or how to settle the lease at once, with a reason, when there is
        nothing to run: the row cannot be understood, is being deleted, has a status that says so,
        was inserted without a time, or its cursor stands on occurrences that are to be dropped.
    """
    if row.status != WAITING:
        # The claim has counted an attempt, but the occurrence is not tried.
        return _resting(changed(row, attempt=max(row.attempt - 1, 0)), settings)
    try:
        definition = parse_row(row, settings)
        if given_up := attempts.give_up_reason(row, definition, now):
            return _gave_up(row, definition, *given_up)
        return _judge(row, definition, now)
    except NotLoadedError as error:
        # Another host may have the code, or this one will have it soon: that was no attempt.
        return _later(row, settings, row.attempt - 1, str(error))
    except InvalidError as error:
        return quarantine(row, str(error))


def after_run(
    leased: Row, current: Row, decision: Decision, settings: Config, now: float = 0.0
) -> Settlement:
    """How to settle a lease after a run.

    Args:
        leased: the row as it was claimed and run.
        current: the row as it stands now; differs if its definition has changed meanwhile.
        decision: what came out of the run.
        settings: the installation's.
        now: the store's clock, if the definition has changed.
    """
    # A one-shot whose task has completed has finished, even if it was cancelled meanwhile.
    done = isinstance(decision, Finish) and current.cron is None and current.status != DELETING
    if current.known_status is None or (current.status in MARKS and not done):
        return _resting(current, settings)
    try:
        definition = parse_row(current, settings)
    except NotLoadedError as error:
        over = isinstance(decision, Finish)
        # Without a time: what comes next is found by who can load its trigger.
        row = changed(current, next_time=None) if over else current
        return _later(row, settings, 0 if over else row.attempt, str(error))
    except InvalidError as error:
        return quarantine(current, str(error))
    try:
        end = _concluded(leased, current, definition, decision, now)
    except InvalidError as error:
        # A trigger is asked only when this occurrence is over: it is not to run again.
        return quarantine(changed(current, next_time=None), str(error))
    if current.status in SET_ASIDE and not end.rest:
        reason = current.reason or end.reason
        return changed(end, rest=True, status=current.status, reason=_plain(reason))
    return end


def _concluded(
    leased: Row, current: Row, definition: Definition, decision: Decision, now: float
) -> Settlement:
    if current.next_time is None:
        current = changed(current, next_time=leased.next_time)
    moved = leased.version != current.version and leased.next_time != current.next_time
    if moved:
        # Somebody has set the schedule's next time while this occurrence ran: that stands.
        return _at(current, definition, current.next_time)
    if isinstance(decision, Finish):
        return _finished(leased, current, definition, now)
    if isinstance(decision, Quarantine) and leased.version == current.version:
        return quarantine(current, decision.reason)
    if isinstance(decision, Release | Quarantine):
        return _again(current, wait=0, attempt=current.attempt - 1)
    return _failed(current, definition, decision)


def _finished(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    if (leased.cron, leased.timezone) == (current.cron, current.timezone):
        return _following(current, definition)
    if definition.settings.type == "rdb_compat":
        return _carried_on(leased, current, definition, now)
    # What another trigger would have shown before it was set was never scheduled.
    onward = _following(current, definition, since=math.ceil(now) - 1)
    if (missed := _next_of(leased, definition.settings)) is None or missed > now:
        return onward
    why = (
        f"its trigger was changed: {iso(missed)}, and what else was due of the old one, is dropped"
    )
    return changed(onward, reason=_plain(why))


def _next_of(leased: Row, settings: Config) -> int | None:
    """The occurrence after the one that ran, by the trigger that the row was claimed with."""
    try:
        trigger = parse_row(leased, settings).trigger
        return trigger.next_after(leased.next_time or 0) if trigger else None
    except InvalidError:
        return None  # a trigger of the user's own whose code is gone


def _carried_on(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    """What comes next in PerfectSched's table, where the trigger was changed under the task.

    PerfectSched's ``modify`` changes a trigger and no times. Its workers go on from the
    occurrence that they have run, with the trigger that they had acquired: so no backlog is
    dropped. We go on from there as well, with the new trigger, unless an earlier occurrence of
    the old one has been due by now: the change may be later than that.
    """
    cursor = current.next_time or 0
    before, after = parse_row(leased, definition.settings).trigger, definition.trigger
    due = before.next_after(cursor) if before else None
    following = after.next_after(cursor) if after else None
    if due is not None and due <= now and (following is None or due < following):
        following = due
    onward = "rests" if following is None else f"goes on with {iso(following)}"
    return _at(
        current,
        definition,
        following,
        reason=f"while {iso(cursor)} ran, its trigger was changed from {leased.cron!r} in"
        f" {leased.timezone} to {current.cron!r} in {current.timezone}: it {onward}",
    )


def _failed(row: Row, definition: Definition, failure: Retry) -> Settlement:
    if attempts.is_exhausted(row, definition):
        why = f"gave up after {row.attempt} attempts: {failure.reason}"
        return _gave_up(row, definition, FAILED, why)
    wait = failure.wait
    if wait is None:
        wait = attempts.retry_delay(row, definition)
    return _again(row, wait=wait, attempt=row.attempt, reason=failure.reason)


def _resting(row: Row, settings: Config) -> Settlement:
    """Put at rest a row whose status says that it is not to be run."""
    if row.status == DELETING:
        return removal(row)
    if row.status in SET_ASIDE:
        return Settlement.of(
            row, rest=True, attempt=row.attempt, status=row.status, reason=_plain(row.reason)
        )
    mark = MARKS.get(row.status)
    if mark is None:
        known = ", ".join(sorted(STATUSES))
        return quarantine(row, f"status: {row.status!r} is unknown; there are {known}")
    try:
        own = parse_row(row, settings).settings
    except InvalidError:
        own = settings  # the row is not run, so its other columns need not make sense
    return _ended(row, own, mark, row.reason if mark == row.status else None)


def quarantine(row: Row, reason: str) -> Settlement:
    """Set aside a row that cannot be understood; nothing runs on guessed data."""
    return Settlement.of(
        row,
        rest=True,
        attempt=row.attempt,
        status=QUARANTINED,
        reason=_plain(reason),
    )


def _later(row: Row, settings: Config, attempt: int, reason: str) -> Settlement:
    """Leave a row that cannot be judged here to whoever claims it next, after ``retry_wait``."""
    wait = max(settings.retry_wait, _SHORTEST_SEARCH)
    told = _plain(f"{reason}; tried again every {wait} s")
    return changed(postpone(row, wait), attempt=attempt, reason=told)


def postpone(row: Row, wait: int) -> Settlement:
    """Leave a row for so many seconds to whoever claims it next; that was no attempt."""
    return Settlement.of(
        row,
        wait=wait,
        attempt=row.attempt - 1,
        status=row.status,
    )


def removal(row: Row) -> Settlement:
    """Remove a row that was deleted while it was leased."""
    return Settlement.of(row, remove=True)


def _judge(row: Row, definition: Definition, now: float) -> Run | Settlement:
    cursor, trigger = row.next_time, definition.trigger
    if cursor is not None and not 0 <= cursor <= LATEST_TIME:
        raise InvalidError("next_time", f"must be from 0 to {LATEST_TIME}, not {cursor}")
    if cursor is None:
        # Inserted by plain SQL. Written down before it is run, so that every attempt has the
        # same scheduled time.
        now = math.ceil(now)
        return _at(row, definition, triggers.first(trigger, now) if trigger else now)
    if row.created_at is None and row.fence == 1 and definition.first_run(cursor) > now:
        # Inserted by plain SQL, which need not know of ``next_run_time``.
        return _at(row, definition, cursor)
    if row.attempt < 1:
        # Set under a lease that nobody has settled (see `declare`): due in its own time.
        return _at(row, definition, cursor)
    if trigger is None or row.attempt > 1:
        return Run(definition, cursor)
    oldest = oldest_kept(trigger, cursor, definition, now)
    if oldest == cursor:
        return Run(definition, cursor)
    return _at(row, definition, oldest, reason=describe_dropped(definition, cursor, oldest))


def _following(row: Row, definition: Definition, *, since: int = 0) -> Settlement:
    scheduled_time, trigger = row.next_time, definition.trigger
    if trigger is None or scheduled_time is None:
        return _at(row, definition, None)
    return _at(row, definition, trigger.next_after(max(scheduled_time, since)))


def _at(
    row: Row, definition: Definition, next_time: int | None, *, reason: str | None = None
) -> Settlement:
    """The row's next occurrence is this one; None: there is none."""
    if next_time is None:
        return _ended(row, definition.settings, FINISHED, reason)
    return Settlement.of(
        row,
        next_time=next_time,
        not_before=definition.first_run(next_time),
        reason=reason,
    )


def _gave_up(row: Row, definition: Definition, status: str, reason: str) -> Settlement:
    """Nothing more is tried of this occurrence."""
    if definition.trigger is None:
        return _ended(row, definition.settings, status, reason)
    left = iso(row.next_time or 0)
    return changed(_following(row, definition), reason=_plain(f"{left}: {reason}"))


def _ended(row: Row, own: Config, status: str, reason: str | None = None) -> Settlement:
    """The row rests; what runs only once may be purged later, but for what has failed.

    With a ``retention_time`` of 0 it does not rest: it is removed at once, and its key is free.

    Args:
        row: as it stands.
        own: the installation's settings with those of the row.
        status: what it becomes.
        reason: why, for people.
    """
    stays = row.cron is not None or status == FAILED
    retain = None if stays else own.retention_time
    return Settlement.of(
        row,
        rest=True,
        remove=retain == 0,
        retain=retain,
        attempt=0 if status == FINISHED else row.attempt,
        status=status,
        reason=_plain(reason),
    )


def _again(row: Row, *, wait: float, attempt: int, reason: str | None = None) -> Settlement:
    """The same occurrence once more."""
    return Settlement.of(
        row,
        # Rounded up: nothing runs before its wait is over.
        wait=math.ceil(wait),
        attempt=max(attempt, 0),
        reason=_plain(reason),
    )


def _plain(reason: str | None) -> str | None:
    """A reason that any database keeps and any terminal shows."""
    if reason is None:
        return None
    return cut(visible(cut(reason, _REASON_LENGTH)), _REASON_LENGTH)
