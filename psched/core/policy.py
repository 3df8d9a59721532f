"""Decisions about leased rows: pure functions, which use neither a store nor a clock.

`after_claim` decides about a row that has just been claimed: run its occurrence, or settle the
lease at once. `after_run` decides how to settle the lease after a run. The module `catchup` decides
which missed occurrences run, and the module `attempts` decides when to retry or give up.

When an occurrence is given up, its schedule continues with the next occurrence. A one-shot that is
given up gets the status ``failed`` or ``expired``. A failed one-shot stays in the store until it is
requeued or deleted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

from psched.base.errors import InvalidError, NotLoadedError
from psched.config import Config
from psched.core import attempts, local_times
from psched.core.catchup import describe_dropped, iso, oldest_kept
from psched.core.columns import LATEST_TIME, plain_reason
from psched.core.definition import Definition, parse_row
from psched.core.history.records import Fate, Skipped
from psched.core.model import (
    BEING_DELETED,
    CANCELLED,
    EXPIRED,
    FAILED,
    FINISHED,
    MARKS,
    PAUSED,
    QUARANTINED,
    SET_ASIDE,
    STATUSES,
    STOPPING,
    WAITING,
    Decision,
    Finish,
    Quarantine,
    ReasonCode,
    Release,
    Retry,
    Row,
    Settlement,
)
from psched.core.operations import pausing
from psched.core.operations.pauses import PastPause, skipped_by_pause
from psched.triggers.trigger import Trigger


@dataclass(frozen=True, slots=True)
class Run:
    """The decision to run the row's occurrence.

    Attributes:
        definition: the schedule's definition, parsed from the row.
        scheduled_time: the occurrence's scheduled time.
    """

    definition: Definition
    scheduled_time: int


def after_claim(
    row: Row, settings: Config, now: float, pauses: Sequence[PastPause] = ()
) -> Run | Settlement:
    """Decide what to do with a row that has just been claimed: run an occurrence, or settle it.

    There is nothing to run if the row is invalid, has a status other than ``waiting``, or was
    inserted without a time; or if the row's next occurrences are dropped or not due yet.
    """
    if row.status != WAITING:
        return _not_waiting(row, settings, now)
    try:
        definition = parse_row(row, settings)
        if given_up := attempts.give_up_reason(row, definition, now):
            return _give_up(row, definition, *given_up)
        return _next_step(row, definition, now, pauses)
    except NotLoadedError as error:
        # This is not counted as an attempt, because another host might be able to load the code, or
        # the code might be installed on this host soon.
        return _retry_elsewhere(row, settings, attempts.before_claim(row), str(error))
    except InvalidError as error:
        return quarantine(row, str(error))


def _not_waiting(row: Row, settings: Config, now: float) -> Settlement:
    # The claim has counted an attempt. We subtract it again, because nothing was tried.
    row = changed(row, attempt=attempts.before_claim(row))
    if row.status == STOPPING:
        return after_run(row, row, Release(), settings, now)
    try:
        return pausing.after_claim(row, settings, now) or _resting(row, settings)
    except InvalidError as error:
        return quarantine(row, str(error))


def after_run(
    leased: Row,
    current: Row,
    decision: Decision,
    settings: Config,
    now: float = 0.0,
    *,
    definition: Definition | None = None,
) -> Settlement:
    """Decide how to settle a lease after a run; ``definition`` is that of the current row if known.

    The worker knows it, unless the row was changed during the run.
    """
    end = _after_run(leased, current, decision, settings, now, definition=definition)
    return end if current.status == WAITING else pausing.set_aside(end, current)


def _after_run(
    leased: Row,
    current: Row,
    decision: Decision,
    settings: Config,
    now: float,
    *,
    definition: Definition | None = None,
) -> Settlement:
    if current.status == STOPPING:
        return _stopped(leased, current, decision, settings, now)
    # A one-shot that has succeeded becomes finished, even if it was cancelled during the run.
    done = (
        isinstance(decision, Finish)
        and current.cron is None
        and current.status not in BEING_DELETED
    )
    if current.known_status is None or (current.status in MARKS and not done):
        end = _resting(current, settings)
        return changed(end, fate=Fate.FINISHED) if isinstance(decision, Finish) else end
    try:
        definition = definition or parse_row(current, settings)
    except NotLoadedError as error:
        return _continue_elsewhere(leased, current, decision, settings, now=now, reason=str(error))
    except InvalidError as error:
        end = quarantine(current, str(error))
        return changed(end, fate=Fate.FINISHED) if isinstance(decision, Finish) else end
    try:
        return _settlement(leased, current, definition, decision, now)
    except InvalidError as error:
        # The trigger raised this error. We call a trigger here only for an occurrence that has
        # succeeded or was given up. Such an occurrence must not run again, so we clear its time.
        fate = Fate.FINISHED if isinstance(decision, Finish) else Fate.GAVE_UP
        return changed(quarantine(changed(current, next_time=None), str(error)), fate=fate)


def _stopped(
    leased: Row, current: Row, decision: Decision, settings: Config, now: float
) -> Settlement:
    """The settlement of a run that was to be stopped: its schedule goes on as after a success."""
    end = _after_run(leased, changed(current, status=WAITING), Finish(), settings, now)
    if not isinstance(decision, Finish):
        fate = Fate.STOPPED
        if current.cron is None:
            end, fate = _resting(changed(current, status=CANCELLED), settings), Fate.CANCELLED
        if end.status != QUARANTINED:
            reason = plain_reason(current.reason or "stopped")
            end = changed(end, reason=reason, reason_code=ReasonCode.STOPPED)
        end = changed(end, fate=fate)
    if current.pause is not None:
        told: dict[str, Any] = {"reason": end.reason, "reason_code": end.reason_code}
        end = pausing.set_aside(end, changed(current, status=PAUSED, **told))
    return changed(end, seen_status=STOPPING)


def _settlement(
    leased: Row, current: Row, definition: Definition, decision: Decision, now: float
) -> Settlement:
    if current.next_time is None:
        current = changed(current, next_time=leased.next_time)
    if _is_moved(leased, current):
        # A client changed the schedule's next time during the run, so we keep the client's time.
        fate = Fate.FINISHED if isinstance(decision, Finish) else Fate.CANCELLED
        return changed(_at(current, definition, current.next_time), fate=fate)
    if isinstance(decision, Finish):
        end = _finished(leased, current, definition, now)
        end.fate = Fate.FINISHED
        return end
    if isinstance(decision, Quarantine) and leased.version == current.version:
        return quarantine(current, decision.reason)
    if isinstance(decision, Release | Quarantine):
        # A payload that was read is invalid no more if the definition was changed meanwhile.
        found = decision if isinstance(decision, Release) else Release()
        attempt, code = attempts.before_claim(current), ReasonCode.INTERRUPTED
        return _repeat(current, wait=found.wait, attempt=attempt, reason=found.reason, code=code)
    end = _failed(current, definition, decision)
    return pausing.after_failure(end, current, definition, decision)


def _is_moved(leased: Row, current: Row) -> bool:
    """Whether a client has changed the schedule's next time during the run."""
    same = {None, leased.next_time}
    return leased.version != current.version and current.next_time not in same


def _has_same_trigger(leased: Row, current: Row) -> bool:
    return (leased.cron, leased.timezone) == (current.cron, current.timezone)


def _continue_elsewhere(
    leased: Row, current: Row, decision: Decision, settings: Config, *, now: float, reason: str
) -> Settlement:
    """The settlement after a run if the trigger cannot be loaded in this process.

    A host that can load the trigger computes the next time. After a success, the row says until
    when its occurrences are decided, so that this host leaves out none of them.
    """
    finished = isinstance(decision, Finish)
    if _is_moved(leased, current):
        # The next claim applies the delay to the client's time, see `_next_step`.
        end = _retry_elsewhere(current, settings, 0, reason)
        fate = Fate.FINISHED if finished else Fate.CANCELLED
        return changed(end, moved_at=math.floor(now), fate=fate)
    if not finished:
        return _retry_elsewhere(current, settings, current.attempt, reason)
    same, decided = _has_same_trigger(leased, current), leased.next_time or 0
    if not same:
        # The new trigger's times before now were never scheduled, as in `_finished`.
        decided = max(decided, math.ceil(now) - 1)
    row = changed(current, next_time=None, decided_until=decided)
    end = _retry_elsewhere(row, settings, 0, reason)
    skipped = () if same else _dropped_by_change(leased, decided, settings)
    return changed(end, fate=Fate.FINISHED, skipped=skipped)


def _finished(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    if _has_same_trigger(leased, current):
        return _following(current, definition)
    if definition.settings.store_kind.new_trigger_starts_at_cursor:
        return _keep_backlog(leased, current, definition, now)
    # We omit the new trigger's times before now, because they were never scheduled.
    following = _following(current, definition, since=math.ceil(now) - 1)
    # The new trigger can have an occurrence at this very instant, and that one runs.
    until = min(int(now), (following.next_time or LATEST_TIME) - 1)
    skipped = _dropped_by_change(leased, until, definition.settings)
    if not skipped:
        return following
    code = ReasonCode.TRIGGER_CHANGED
    return changed(following, reason=skipped[0].reason, reason_code=code, skipped=skipped)


def _dropped_by_change(leased: Row, until: int, settings: Config) -> tuple[Skipped, ...]:
    """Describe the occurrences that are dropped because the trigger was changed during a run."""
    missed = _next_of(leased, settings)
    if missed is None or missed > until:
        return ()
    why = f"its trigger was changed: {iso(missed)} and later times of the old one are dropped"
    # The old trigger's later occurrences are not counted, because that could take long.
    return (Skipped(fate=Fate.CANCELLED, first=missed, until=until, count=None, reason=why),)


def _next_of(leased: Row, settings: Config) -> int | None:
    """The next occurrence after the one that ran, by the trigger that the row had when claimed.

    None if there is none, or if the trigger can no longer be loaded.
    """
    try:
        trigger = parse_row(leased, settings).trigger
        return trigger.next_after(leased.next_time or 0) if trigger else None
    except InvalidError:
        return None  # for example, the code of a user's trigger was removed during the run


def _keep_backlog(leased: Row, current: Row, definition: Definition, now: float) -> Settlement:
    """Continue with the next occurrence in PerfectSched's table after a change of the trigger.

    PerfectSched's ``modify`` changes the trigger of a row, but not its times. PerfectSched's
    workers continue from the occurrence that they have run, with the trigger that the row had when
    it was claimed, so no backlog is dropped. psched also continues from this occurrence, but with
    the new trigger. There is one exception: if the old trigger has an occurrence before the new
    trigger's next one, and it is due by now, psched runs the old trigger's occurrence next, because
    the trigger may have been changed only after that occurrence was due.
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
        code=ReasonCode.TRIGGER_CHANGED,
    )


def _failed(row: Row, definition: Definition, failure: Retry) -> Settlement:
    if attempts.is_exhausted(row, definition):
        why = f"gave up after {row.attempt} attempts: {failure.reason}"
        return _give_up(row, definition, FAILED, why)
    wait = failure.wait
    if wait is None:
        wait = attempts.retry_delay(row, definition)
    code = ReasonCode.ATTEMPT_FAILED
    return _repeat(row, wait=wait, attempt=row.attempt, reason=failure.reason, code=code)


def _resting(row: Row, settings: Config) -> Settlement:
    """The settlement of a row that must not run because of its status."""
    if row.status in BEING_DELETED:
        return Settlement.of(row, remove=True, fate=Fate.CANCELLED)
    if row.status in SET_ASIDE:
        return Settlement.of(
            row,
            rest=True,
            attempt=row.attempt,
            status=row.status,
            reason=plain_reason(row.reason),
            reason_code=row.reason_code,
        )
    mark = MARKS.get(row.status)
    if mark is None:
        known = ", ".join(sorted(STATUSES))
        return quarantine(row, f"status: {row.status!r} is unknown; there are {known}")
    try:
        own = parse_row(row, settings).settings
    except InvalidError:
        own = settings  # the row does not run, so we ignore that its other columns are invalid
    if mark != row.status:
        row = changed(row, reason=None, reason_code=None)
    end = _ended(row, own, mark, row.reason, row.reason_code)
    return changed(end, fate=_FATES[mark])


_FATES = {
    FINISHED: Fate.FINISHED,
    CANCELLED: Fate.CANCELLED,
    EXPIRED: Fate.EXPIRED,
    FAILED: Fate.GAVE_UP,
}
"""The fate of the occurrence of a row that ends with a status."""


def quarantine(row: Row, reason: str) -> Settlement:
    """The settlement that quarantines an invalid row: it does not run, and keeps the reason."""
    return Settlement.of(
        row,
        rest=True,
        attempt=row.attempt,
        status=QUARANTINED,
        reason=plain_reason(reason),
        reason_code=ReasonCode.INVALID,
        fate=Fate.QUARANTINED,
    )


def _retry_elsewhere(row: Row, settings: Config, attempt: int, reason: str) -> Settlement:
    """Postpone a row whose trigger cannot be loaded here, because another host might load it."""
    wait = max(settings.retry_wait, pausing.SHORTEST_SEARCH)
    text = plain_reason(f"{reason}; tried again every {wait} s")
    code = ReasonCode.NOT_LOADED
    return changed(postpone(row, wait), attempt=attempt, reason=text, reason_code=code)


def postpone(row: Row, wait: int) -> Settlement:
    """The settlement that releases a row, and lets no worker claim it for ``wait`` seconds.

    The claim does not count as an attempt.
    """
    return Settlement.of(
        row,
        wait=wait,
        attempt=attempts.before_claim(row),
        status=row.status,
        reason=None if row.status == WAITING else row.reason,
        reason_code=None if row.status == WAITING else row.reason_code,
    )


def _next_step(
    row: Row, definition: Definition, now: float, pauses: Sequence[PastPause]
) -> Run | Settlement:
    cursor, trigger = row.next_time, definition.trigger
    if cursor is not None and not 0 <= cursor <= LATEST_TIME:
        raise InvalidError("next_time", f"must be from 0 to {LATEST_TIME}, not {cursor}")
    if cursor is None:
        return _timed(row, definition, now)
    # Plain SQL inserted the row without a ``next_run_time``, so the row was claimed too early.
    is_early = row.created_at is None and row.fence == 1 and definition.first_run(cursor) > now
    # Or a client set the row's time during a lease that was never settled (see `declare`).
    if is_early or row.moved_at is not None:
        # We settle the lease, so that the row gets its ``next_run_time``.
        return _at(row, definition, cursor)
    if trigger is None or row.attempt > 1:
        return Run(definition, cursor)
    if (end := _moved(row, definition, trigger, cursor, pauses)) is not None:
        return end
    oldest = oldest_kept(trigger, cursor, definition, now)
    if oldest == cursor:
        return Run(definition, cursor)
    # The row fell due at its ``next_run_time``. What was scheduled before that could not run,
    # because an earlier occurrence was still running.
    due = row.next_run_time or 0
    busy_until = due - definition.delay if due > definition.first_run(cursor) else None
    return _dropped(
        row, definition, trigger, cursor=cursor, oldest=oldest, now=now, busy_until=busy_until
    )


def _moved(
    row: Row,
    definition: Definition,
    trigger: Trigger,
    cursor: int,
    pauses: Sequence[PastPause],
) -> Settlement | None:
    """The settlement if new zone data, or a pause of its type, move the row's occurrence."""
    if (instant := local_times.renewed(row, definition)) is not None:
        why = local_times.reason(cursor, instant)
        return _at(row, definition, instant, reason=why, code=ReasonCode.NEW_ZONE_DATA)
    found = skipped_by_pause(definition, trigger, cursor, pauses)
    if found is None:
        return None
    resumed, span = found
    why = plain_reason(f"what fell due was skipped: {span.reason}") or ""
    end = _at(row, definition, resumed, reason=why, code=ReasonCode.RESUMED)
    return changed(end, skipped=(span,))


def _timed(row: Row, definition: Definition, now: float) -> Settlement:
    """The settlement that gives a time to a row which has none.

    The row has no time, because plain SQL inserted it, or a host that could not load the trigger
    settled it. We store a time before the row runs, so that all attempts have the same scheduled
    time.
    """
    trigger = definition.trigger
    cursor = attempts.first_time(row, trigger, now)
    if trigger is None or cursor is None:
        return _at(row, definition, cursor)
    oldest = oldest_kept(trigger, cursor, definition, now)
    if oldest == cursor:
        return _at(row, definition, cursor)
    return _dropped(row, definition, trigger, cursor=cursor, oldest=oldest, now=now)


def _dropped(
    row: Row,
    definition: Definition,
    trigger: Trigger,
    *,
    cursor: int,
    oldest: int | None,
    now: float,
    busy_until: int | None = None,
) -> Settlement:
    """The settlement that drops the occurrences which the catch-up policy does not keep."""
    why = describe_dropped(definition, cursor, oldest)
    settled = _at(row, definition, oldest, reason=why, code=ReasonCode.CATCHUP)
    skipped = pausing.missed_spans(
        trigger, definition, cursor, oldest, now=now, reason=why, busy_until=busy_until
    )
    return changed(settled, skipped=skipped)


def _following(row: Row, definition: Definition, *, since: int = 0) -> Settlement:
    scheduled_time, trigger = row.next_time, definition.trigger
    if trigger is None or scheduled_time is None:
        return _at(row, definition, None)
    since = max(local_times.continued_from(row, definition), since)
    return _at(row, definition, trigger.next_after(since))


def _at(
    row: Row,
    definition: Definition,
    next_time: int | None,
    *,
    reason: str | None = None,
    code: ReasonCode | None = None,
) -> Settlement:
    """The settlement that sets the next occurrence; if ``next_time`` is None, it ends the row."""
    if next_time is None:
        return _ended(row, definition.settings, FINISHED, reason, code)
    return Settlement.of(
        row,
        next_time=next_time,
        local_time=definition.local_time(next_time),
        not_before=definition.first_run(next_time),
        reason=reason,
        reason_code=code,
    )


def _give_up(row: Row, definition: Definition, status: str, reason: str) -> Settlement:
    """Give up the row's occurrence: a one-shot ends with ``status``, others continue."""
    code = ReasonCode.EXPIRED if status == EXPIRED else ReasonCode.GAVE_UP
    if definition.trigger is None:
        ended = _ended(row, definition.settings, status, reason, code)
        return changed(ended, fate=_FATES[status])
    occurrence = iso(row.next_time or 0)
    text, following = plain_reason(f"{occurrence}: {reason}"), _following(row, definition)
    return changed(following, reason=text, reason_code=code, fate=_FATES[status])


def _ended(
    row: Row, own: Config, status: str, reason: str | None = None, code: str | None = None
) -> Settlement:
    """The settlement that ends a row, so that it has no next run.

    A one-shot that has not failed can be purged after its ``retention_time``; if that is 0, the row
    is removed at once.
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
        reason=plain_reason(reason),
        reason_code=code,
    )


def _repeat(
    row: Row, *, wait: float, attempt: int, reason: str | None, code: ReasonCode
) -> Settlement:
    """The settlement after which the row's occurrence runs again, in ``wait`` seconds."""
    return Settlement.of(
        row,
        # The wait is rounded up, so that the occurrence does not run before the wait has ended.
        wait=math.ceil(wait),
        attempt=attempt,
        reason=plain_reason(reason),
        reason_code=code,
    )
