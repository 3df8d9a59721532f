"""Decisions about leased rows: pure functions, which use neither a store nor a clock.

`after_claim` decides about a row that has just been claimed: run its occurrence, or settle the
lease at once. `after_run` decides how to settle the lease after a run. Which missed occurrences
run is decided in `catchup`, and when to retry or give up in `attempts`.

When an occurrence is given up, its schedule continues with the next one. A one-shot that is given
up gets the status ``failed`` or ``expired``. A failed one-shot stays in the store until it is
requeued or deleted.
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
"""Seconds between two attempts to load a trigger's code, if ``retry_wait`` is 0."""

_REASON_LENGTH = 460
"""The number of characters of a reason that are kept; with the note on the cut, at most 500."""


@dataclass(frozen=True, slots=True)
class Run:
    """Run the row's occurrence.

    Attributes:
        definition: parsed from the row.
        scheduled_time: the occurrence's scheduled time.
    """

    definition: Definition
    scheduled_time: int


def after_claim(row: Row, settings: Config, now: float) -> Run | Settlement:
    """What to do with a row that has just been claimed.

    Args:
        row: as the claim returned it.
        settings: the installation's settings.
        now: the time of the store's clock.

    Returns:
        The occurrence to run; or a settlement, if there is nothing to run. There is nothing to run
        if the row is invalid, has a status other than ``waiting``, was inserted without a time, or
        if its next occurrences are dropped or not due yet.
    """
    if row.status != WAITING:
        # The claim has counted an attempt. The count is reduced by one, because nothing was tried.
        return _resting(changed(row, attempt=max(row.attempt - 1, 0)), settings)
    try:
        definition = parse_row(row, settings)
        if given_up := attempts.give_up_reason(row, definition, now):
            return _give_up(row, definition, *given_up)
        return _next_step(row, definition, now)
    except NotLoadedError as error:
        # This does not count as an attempt, because another host may have the code, or it may be
        # installed on this host soon.
        return _retry_elsewhere(row, settings, row.attempt - 1, str(error))
    except InvalidError as error:
        return quarantine(row, str(error))


def after_run(
    leased: Row, current: Row, decision: Decision, settings: Config, now: float = 0.0
) -> Settlement:
    """How to settle a lease after a run.

    Args:
        leased: the row as it was claimed and run.
        current: the row as it is stored now; it differs if its definition was changed meanwhile.
        decision: the result of the run.
        settings: the installation's settings.
        now: the time of the store's clock; needed only if the definition was changed.
    """
    # A one-shot that has completed is finished, even if it was cancelled meanwhile.
    done = isinstance(decision, Finish) and current.cron is None and current.status != DELETING
    if current.known_status is None or (current.status in MARKS and not done):
        return _resting(current, settings)
    try:
        definition = parse_row(current, settings)
    except NotLoadedError as error:
        over = isinstance(decision, Finish)
        # The row is settled without a time, so that a host that can load the trigger computes it.
        row = changed(current, next_time=None) if over else current
        return _retry_elsewhere(row, settings, 0 if over else row.attempt, str(error))
    except InvalidError as error:
        return quarantine(current, str(error))
    try:
        end = _settlement(leased, current, definition, decision, now)
    except InvalidError as error:
        # The time is cleared, because the trigger is called only if the occurrence has succeeded,
        # and then the occurrence must not run again.
        return quarantine(changed(current, next_time=None), str(error))
    if current.status in SET_ASIDE and not end.rest:
        reason = current.reason or end.reason
        return changed(end, rest=True, status=current.status, reason=_plain(reason))
    return end


def _settlement(
    leased: Row, current: Row, definition: Definition, decision: Decision, now: float
) -> Settlement:
    if current.next_time is None:
        current = changed(current, next_time=leased.next_time)
    moved = leased.version != current.version and leased.next_time != current.next_time
    if moved:
        # The schedule's next time was changed while this occurrence ran, so the new time is kept.
        return _at(current, definition, current.next_time)
    if isinstance(decision, Finish):
        return _finished(leased, current, definition, now)
    if isinstance(decision, Quarantine) and leased.version == current.version:
        return quarantine(current, decision.reason)
    if isinstance(decision, Release | Quarantine):
        return _repeat(current, wait=0, attempt=current.attempt - 1)
    return _failed(current, definition, decision)


def _finished(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    if (leased.cron, leased.timezone) == (current.cron, current.timezone):
        return _following(current, definition)
    if definition.settings.store_kind.new_trigger_starts_at_cursor:
        return _keep_backlog(leased, current, definition, now)
    # Times of the new trigger before now are omitted, because they were never scheduled.
    following = _following(current, definition, since=math.ceil(now) - 1)
    if (missed := _next_of(leased, definition.settings)) is None or missed > now:
        return following
    why = f"its trigger was changed: {iso(missed)} and later times of the old one are dropped"
    return changed(following, reason=_plain(why))


def _next_of(leased: Row, settings: Config) -> int | None:
    """The occurrence after the one that ran, by the trigger that the row was claimed with."""
    try:
        trigger = parse_row(leased, settings).trigger
        return trigger.next_after(leased.next_time or 0) if trigger else None
    except InvalidError:
        return None  # the code of a user's trigger has been removed


def _keep_backlog(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    """Continue with the next occurrence in PerfectSched's table after a change of the trigger.

    PerfectSched's ``modify`` changes a trigger, but no times. PerfectSched's workers continue from
    the occurrence that they have run, with the trigger that they had claimed, so that no backlog is
    dropped. psched also continues from that occurrence, but with the new trigger. If the old
    trigger has an earlier occurrence that is due by now, that occurrence is next, because the
    trigger may have been changed after the occurrence was due.
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
        return _give_up(row, definition, FAILED, why)
    wait = failure.wait
    if wait is None:
        wait = attempts.retry_delay(row, definition)
    return _repeat(row, wait=wait, attempt=row.attempt, reason=failure.reason)


def _resting(row: Row, settings: Config) -> Settlement:
    """Settle a row whose status says that it does not run."""
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
        own = settings  # the row does not run, so its other columns may be invalid
    return _ended(row, own, mark, row.reason if mark == row.status else None)


def quarantine(row: Row, reason: str) -> Settlement:
    """Set aside an invalid row, because nothing runs on guessed data."""
    return Settlement.of(
        row,
        rest=True,
        attempt=row.attempt,
        status=QUARANTINED,
        reason=_plain(reason),
    )


def _retry_elsewhere(row: Row, settings: Config, attempt: int, reason: str) -> Settlement:
    """Postpone a row whose trigger cannot be loaded here; another host may be able to load it."""
    wait = max(settings.retry_wait, _SHORTEST_SEARCH)
    text = _plain(f"{reason}; tried again every {wait} s")
    return changed(postpone(row, wait), attempt=attempt, reason=text)


def postpone(row: Row, wait: int) -> Settlement:
    """Release a row that no worker may claim for some seconds; it was not an attempt."""
    return Settlement.of(
        row,
        wait=wait,
        attempt=row.attempt - 1,
        status=row.status,
    )


def removal(row: Row) -> Settlement:
    """Remove a row that was deleted while it was leased."""
    return Settlement.of(row, remove=True)


def _next_step(row: Row, definition: Definition, now: float) -> Run | Settlement:
    cursor, trigger = row.next_time, definition.trigger
    if cursor is not None and not 0 <= cursor <= LATEST_TIME:
        raise InvalidError("next_time", f"must be from 0 to {LATEST_TIME}, not {cursor}")
    if cursor is None:
        # The row was inserted by plain SQL, or settled, without a time. A time is stored before the
        # row runs, so that all attempts have the same scheduled time.
        now = math.ceil(now)
        return _at(row, definition, triggers.first(trigger, now) if trigger else now)
    if row.created_at is None and row.fence == 1 and definition.first_run(cursor) > now:
        # Plain SQL inserted the row without a ``next_run_time``, so it was claimed too early.
        return _at(row, definition, cursor)
    if row.attempt < 1:
        # The time was set during a lease that was never settled (see `declare`), so the row is
        # settled with this time.
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
    """Set the row's next occurrence; if ``next_time`` is None, there is none: the schedule ends."""
    if next_time is None:
        return _ended(row, definition.settings, FINISHED, reason)
    return Settlement.of(
        row,
        next_time=next_time,
        not_before=definition.first_run(next_time),
        reason=reason,
    )


def _give_up(row: Row, definition: Definition, status: str, reason: str) -> Settlement:
    """Give up the row's occurrence."""
    if definition.trigger is None:
        return _ended(row, definition.settings, status, reason)
    occurrence = iso(row.next_time or 0)
    return changed(_following(row, definition), reason=_plain(f"{occurrence}: {reason}"))


def _ended(row: Row, own: Config, status: str, reason: str | None = None) -> Settlement:
    """End a row: it rests. A one-shot may be purged later, unless it has failed.

    With a ``retention_time`` of 0 a one-shot does not rest: it is removed at once.

    Args:
        row: as it is stored now.
        own: the settings of the row's definition.
        status: its new status.
        reason: why it rests, for people.
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


def _repeat(row: Row, *, wait: float, attempt: int, reason: str | None = None) -> Settlement:
    """Run the same occurrence again."""
    return Settlement.of(
        row,
        # The wait is rounded up, so that the occurrence does not run before the wait has ended.
        wait=math.ceil(wait),
        attempt=max(attempt, 0),
        reason=_plain(reason),
    )


def _plain(reason: str | None) -> str | None:
    """A reason in a form that any database can store and any terminal can show."""
    if reason is None:
        return None
    return cut(visible(cut(reason, _REASON_LENGTH)), _REASON_LENGTH)
