"""Pauses of single schedules: how a row says that it is paused, and what a resumption changes.

The status of a paused row is ``paused``. Its ``next_time`` stays, and its ``next_run_time`` is the
end of the pause; NULL if the pause has no end. `Row.pause` says since when, until when, by whom and
why; the end is stored there, too, because ``next_run_time`` of a leased row is the end of its
lease. The ``reason`` says the same for people. A row that plain SQL has paused has any reason or
none.

If a row is paused while its task runs, the task goes on. Its settlement keeps status, reason and
pause (`set_aside`). If the task is to be stopped, the status is ``stopping`` until then, and the
reason says who has stopped it. At the end of the pause a worker claims the row, and `after_claim`
resumes it. A row can also be claimed earlier, because its worker died; then `after_claim` puts it
back.

**What a resumption skips.** The occurrences that fell due during the pause are skipped, and one
span of the run history says so (`psched.core.history.records.Fate.SKIPPED_PAUSED`). An occurrence
that was due or had been tried before the pause runs, unless later ones fell due, too: then it is
skipped with them. What falls due after the end of the pause is not skipped, however late a worker
resumes the row. A one-shot is never skipped.

**Failures.** With the setting ``pause_after_failures``, a schedule pauses itself after so many
failures in a row (`after_failure`).
"""

from collections.abc import Iterable
from dataclasses import replace as changed
from datetime import datetime, timedelta, timezone
from functools import partial
from math import floor

from psched.base.errors import InvalidError, NotLoadedError
from psched.config import Config
from psched.core import attempts
from psched.core.catchup import describe_dropped, last_occurrence, oldest_kept
from psched.core.columns import plain_reason
from psched.core.definition import Definition, parse_row
from psched.core.history.records import MOST_COUNTED, Fate, Outcome, RunRecord, Skipped
from psched.core.model import (
    FINISHED,
    NO_PAUSE,
    PAUSED,
    SET_ASIDE,
    STOPPING,
    WAITING,
    Pause,
    ReasonCode,
    Retry,
    Row,
    Settlement,
)
from psched.triggers.trigger import Trigger, first, is_custom
from psched.triggers.zone import Zone, find_zone

SHORTEST_SEARCH = 1
"""The shortest time in seconds between two attempts to load a trigger's code."""

_SKIPPED = "resumed at the end of its pause; what fell due during the pause was skipped"

_COUNTED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})
"""The outcomes that count as failures in a row. An attempt that was interrupted counts neither as a
failure nor as a success."""


# --- what a row says -------------------------------------------------------------------


def describe(pause: Pause, zone: Zone) -> str:
    """A pause for people: by whom and why, since when and until when."""
    by = f" by {pause.note}" if pause.note else ""
    times = [
        f"{word} {_iso(zone, time)}"
        for word, time in (("since", pause.since), ("until", pause.until))
        if time is not None
    ]
    return plain_reason(f"paused{by}" + (f" ({' '.join(times)})" if times else "")) or ""


def note_of(by: str, note: str | None) -> str:
    """What `Pause.note` says: who has paused a schedule, and why."""
    return plain_reason(f"{by}: {note}" if note else by) or ""


def zone_of(row: Row, settings: Config) -> Zone:
    """The zone of a row, in which the times of its pause are written and read."""
    try:
        return find_zone(row.timezone or settings.timezone)
    except InvalidError:
        return find_zone(settings.timezone)


# --- the change of a row by a client ---------------------------------------------------


def paused(row: Row, pause: Pause, zone: Zone) -> Row:
    """The row, paused; its reason has its times in a zone."""
    new = changed(row, **pause.columns)
    if row.status == STOPPING:
        return new
    return changed(
        new,
        status=PAUSED,
        next_run_time=pause.until,
        reason=describe(pause, zone),
        reason_code=ReasonCode.PAUSED,
    )


def resumed(
    row: Row, settings: Config, now: float, *, backfill: bool
) -> tuple[Row, Skipped | None]:
    """The row of a paused schedule, resumed, and what is skipped; None if nothing is."""
    definition = parse_row(row, settings)
    back = changed(row, status=WAITING, reason=None, reason_code=None, **NO_PAUSE)
    if row.owner is not None:
        return back, None  # its occurrence is running
    next_time, skipped = _onward(row, definition, now, backfill=backfill)
    if next_time is None:
        return changed(back, status=FINISHED, next_run_time=None, attempt=0), skipped
    return _going_on(back, row, definition, next_time), skipped


def _going_on(back: Row, row: Row, definition: Definition, next_time: int) -> Row:
    """A row that is resumed with an occurrence; ``row`` is the row as it was paused."""
    return changed(
        back,
        next_time=next_time,
        next_run_time=definition.first_run(next_time),
        attempt=_attempt_of(row, next_time),
        decided_until=None,
        moved_at=None,
        local_time=definition.local_time(next_time),
    )


def record_of(row: Row, skipped: Skipped, *, owner: str, host: str, now: float) -> RunRecord:
    """The record of what a client has skipped, which holds no lease: its ``fence`` is 0."""
    return RunRecord(
        key=row.key,
        type=row.type,
        label=row.label,
        scheduled_time=skipped.first,
        until=None if skipped.count == 1 else skipped.until,
        count=skipped.count,
        owner=owner,
        fence=0,
        host=host,
        ended=floor(now * 1000),
        fate=skipped.fate,
        reason=skipped.reason,
    )


# --- the settlements of a worker -------------------------------------------------------


def after_claim(row: Row, settings: Config, now: float) -> Settlement | None:
    """The settlement of a paused row that has just been claimed: resume it, or put it back.

    None if the row is not paused, or its pause has no end.
    """
    pause = row.pause
    if pause is None or pause.until is None:
        return None
    if now < pause.until:
        return set_aside(Settlement.of(row, attempt=row.attempt), row)
    try:
        definition = parse_row(row, settings)
    except NotLoadedError:
        # Another host might be able to load the trigger.
        wait = max(settings.retry_wait, SHORTEST_SEARCH)
        return Settlement.of(
            row,
            wait=wait,
            attempt=row.attempt,
            status=PAUSED,
            reason=row.reason,
            reason_code=row.reason_code,
        )
    next_time, skipped = _onward(row, definition, now)
    spans: tuple[Skipped, ...] = () if skipped is None else (skipped,)
    reason, code = (None, None) if skipped is None else (_SKIPPED, ReasonCode.RESUMED)
    trigger, attempt = definition.trigger, _attempt_of(row, next_time)
    if next_time is not None and trigger is not None and attempt < 1:
        # The catch-up policy is applied now, because after this settlement the row seems to have
        # fallen due only now, as if an earlier occurrence had been running.
        oldest = oldest_kept(trigger, next_time, definition, now)
        if oldest != next_time:
            reason, code = describe_dropped(definition, next_time, oldest), ReasonCode.CATCHUP
            spans += missed_spans(trigger, definition, next_time, oldest, now=now, reason=reason)
            next_time = oldest
    if next_time is None:
        return Settlement.of(
            row,
            rest=True,
            attempt=0,
            status=FINISHED,
            reason=reason,
            reason_code=code,
            skipped=spans,
        )
    return Settlement.of(
        row,
        next_time=next_time,
        local_time=definition.local_time(next_time),
        not_before=definition.first_run(next_time),
        attempt=attempt,
        reason=reason,
        reason_code=code,
        skipped=spans,
    )


def set_aside(end: Settlement, row: Row) -> Settlement:
    """The settlement of a row that somebody has paused or otherwise set aside while its task ran.

    The row keeps its status and its reason. The end of a pause becomes the time of the next claim.
    """
    if row.status not in SET_ASIDE or end.rest:
        return end
    told = row if row.reason else end
    reason, code = plain_reason(told.reason), told.reason_code
    end = changed(end, rest=True, status=row.status, reason=reason, reason_code=code)
    pause = row.pause
    if pause is None:
        return end
    end = changed(end, **pause.columns)
    if pause.until is None:
        return end
    return changed(end, rest=False, wait=0, not_before=pause.until)


def after_failure(end: Settlement, row: Row, definition: Definition, failure: Retry) -> Settlement:
    """The settlement after a failed attempt, by which the schedule may pause itself."""
    most, number = definition.settings.pause_after_failures, row.attempt + failure.earlier
    if not 0 < most <= number or end.rest or end.remove or row.status != WAITING:
        return end
    failures = "1 failure" if number == 1 else f"{number} failures in a row"
    because = f": {failure.reason}" if failure.reason else ""
    text, code = plain_reason(f"paused after {failures}{because}"), ReasonCode.PAUSED_AFTER_FAILURES
    return changed(end, rest=True, status=PAUSED, reason=text, reason_code=code)


def earlier_failures(records: Iterable[RunRecord], row: Row, history: str) -> int:
    """The number of failed attempts in a row before the occurrence of a leased row.

    They end at the last success, at the last pause by failures, and at the creation of the row.
    """
    number, fence = 0, row.fence
    for record in records:
        if not record.fence:
            continue  # a client wrote it
        is_gap = history == "failures" and record.fence < fence - 1
        is_older = record.ended < (row.created_at or 0) * 1000
        is_pause = record.reason_code == ReasonCode.PAUSED_AFTER_FAILURES
        ended = is_pause or Fate.FINISHED in {record.fate, record.outcome}
        if is_gap or is_older or ended:
            break
        fence = min(fence, record.fence)
        number += record.outcome in _COUNTED and record.scheduled_time != row.next_time
    return number


# --- what comes next -------------------------------------------------------------------


def after_pause(row: Row, definition: Definition, now: float) -> Row | None:
    """A paused row as a worker will resume it at the end of its pause, for forecasts.

    None if it is not paused, if its pause has no end, or if nothing comes after it.
    """
    pause = row.pause
    if pause is None or pause.until is None:
        return None
    next_time, _ = _onward(row, definition, max(now, pause.until))
    if next_time is None:
        return None
    back = changed(row, status=WAITING, reason=None, reason_code=None, **NO_PAUSE)
    after = _going_on(back, row, definition, next_time)
    return changed(after, next_run_time=max(definition.first_run(next_time), pause.until))


def skipped_by_pause(row: Row, definition: Definition, now: float) -> Skipped | None:
    """What a paused row will skip when it is resumed: at the end of its pause, else now."""
    pause = row.pause or Pause()
    return _onward(row, definition, max(now, pause.until or 0))[1]


def _onward(
    row: Row, definition: Definition, now: float, *, backfill: bool = False
) -> tuple[int | None, Skipped | None]:
    """The occurrence with which a resumed row continues, and what is skipped before it."""
    trigger, pause = definition.trigger, row.pause or Pause()
    cursor = row.next_time
    if cursor is None:
        cursor = attempts.first_time(row, trigger, now)
    # What falls due from this instant on is not skipped.
    end = floor(now) + 1 if pause.until is None else min(floor(now) + 1, pause.until)
    if backfill or trigger is None or cursor is None or definition.first_run(cursor) >= end:
        return cursor, None
    onward = first(trigger, max(cursor, end - definition.delay - definition.settings.jitter))
    while onward is not None and definition.first_run(onward) < end:
        onward = trigger.next_after(onward)
    # Attempts alone do not tell, because a worker that dies while it resumes a row has counted one.
    since, tried = pause.since, row.is_tried
    was_due = tried
    if since is not None:
        was_due = definition.first_run(cursor) <= since or (tried and cursor <= since)
    if was_due and onward == trigger.next_after(cursor):
        return cursor, None
    reason = _why_skipped(row, pause, find_zone(definition.timezone))
    skipped_until = end if onward is None else onward
    fate = Fate.SKIPPED_PAUSED
    return onward, span_of(trigger, definition, cursor, skipped_until, fate, reason=reason)


def _why_skipped(row: Row, pause: Pause, zone: Zone) -> str:
    """The reason of what a pause skips, as what can be said of the schedule."""
    if pause.since is not None:
        return describe(pause, zone)
    if row.reason_code == ReasonCode.PAUSED_AFTER_FAILURES and row.reason:
        return row.reason
    return plain_reason(f"paused: {row.reason}" if row.reason else "paused") or ""


def missed_spans(
    trigger: Trigger,
    definition: Definition,
    cursor: int,
    oldest: int | None,
    *,
    now: float,
    reason: str,
    busy_until: int | None = None,
) -> tuple[Skipped, ...]:
    """What the catch-up policy drops from ``cursor`` to before ``oldest``; None means up to now."""
    catchup = definition.settings.catchup
    end = floor(now) + 1 if oldest is None else oldest
    span = partial(span_of, trigger, definition, reason=reason)
    if catchup != "skip":
        fate = Fate.COALESCED if catchup == "latest" else Fate.SKIPPED_CATCHUP
        return (span(cursor, end, fate),)
    if busy_until is None or busy_until < cursor:
        return (span(cursor, end, Fate.SKIPPED_CATCHUP),)
    missed = trigger.next_after(busy_until)
    if missed is None or missed >= end:
        return (span(cursor, end, Fate.SKIPPED_OVERLAP),)
    return (
        span(cursor, missed, Fate.SKIPPED_OVERLAP),
        span(missed, end, Fate.SKIPPED_CATCHUP),
    )


def span_of(
    trigger: Trigger, definition: Definition, first: int, end: int, fate: Fate, *, reason: str
) -> Skipped:
    """Describe the occurrences from ``first`` to before ``end``, which are at least one."""
    # A user's trigger can take long for each answer, and must answer all questions in time.
    most = 0 if is_custom(definition.cron or "") else MOST_COUNTED
    count, last = 1, first
    while count <= most:
        following = trigger.next_after(last)
        if following is None or following >= end:
            return Skipped(fate=fate, first=first, until=last, count=count, reason=reason)
        last = following
        count += 1
    until = last_occurrence(definition, trigger, first, end) if most else max(first, end - 1)
    return Skipped(fate=fate, first=first, until=until, count=None, reason=reason)


def _attempt_of(row: Row, next_time: int | None) -> int:
    """The ``attempt`` of a row that is resumed with an occurrence.

    A schedule that was paused after failures begins to count anew. But its occurrence counts as
    tried, so that the catch-up policy does not drop it.
    """
    if row.next_time != next_time or not row.is_tried:
        return 0
    by_failures = row.reason_code == ReasonCode.PAUSED_AFTER_FAILURES
    return 1 if by_failures else row.attempt


def _iso(zone: Zone, instant: int) -> str:
    offset = timezone(timedelta(seconds=zone.wall(instant) - instant))
    precision = "seconds" if instant % 60 else "minutes"
    return datetime.fromtimestamp(instant, offset).isoformat(timespec=precision)
