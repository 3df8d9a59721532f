"""Pauses of single schedules: how a row says that it is paused, and what a resumption changes.

The status of a paused row is ``paused``. Its ``next_time`` stays, and its ``next_run_time`` is the
end of the pause; NULL if the pause has no end. Its ``reason`` says since when, until when, by whom
and why, for people and for psched: `pause_of` reads the times from this text. They are nowhere
else, because a settlement can write neither ``options`` nor a pause's end as ``next_run_time``: in
a leased row, that is the end of the lease. A row that plain SQL has paused has any reason or none.
If the run before the pause was stopped, the text ends with what `stop_of` returns.

If a row is paused while its task runs, the task goes on. Its settlement keeps status and reason
(`set_aside`). If the task is to be stopped, the status is ``stopping`` until then. At the end of
the pause a worker claims the row, and `after_claim` resumes it. A row can also be claimed earlier,
because its worker died; then `after_claim` puts it back.

**What a resumption skips.** The occurrences that fell due during the pause are skipped, and one
span of the run history says so (`psched.core.history.records.Fate.SKIPPED_PAUSED`). An occurrence
that was due or had been tried before the pause runs, unless later ones fell due, too: then it is
skipped with them. What falls due after the end of the pause is not skipped, however late a worker
resumes the row. A one-shot is never skipped.

**Failures.** With the setting ``pause_after_failures``, a schedule pauses itself after so many
failures in a row (`after_failure`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from math import floor

from psched.base.errors import InvalidError, NotLoadedError
from psched.config import Config
from psched.core import attempts
from psched.core.catchup import describe_dropped, last_occurrence, oldest_kept
from psched.core.columns import annotation, plain_reason
from psched.core.definition import Definition, parse_row
from psched.core.history.records import Fate, Outcome, RunRecord, Skipped
from psched.core.history.spans import dropped_spans, span_of
from psched.core.model import (
    FINISHED,
    PAUSED,
    SET_ASIDE,
    STOPPING,
    WAITING,
    Retry,
    Row,
    Settlement,
)
from psched.triggers.trigger import Trigger, first, is_custom
from psched.triggers.zone import Zone, find_zone

SHORTEST_SEARCH = 1
"""The shortest time in seconds between two attempts to load a trigger's code."""

_SKIPPED = "resumed at the end of its pause; what fell due during the pause was skipped"

_BY_FAILURES = "paused after "

_REASON = re.compile(
    rf"(?:paused (?P<since>[0-9]\S*)(?: until (?P<until>[0-9]\S*))? by|{_BY_FAILURES.strip()})"
    r" (?P<why>.*?)(?:; (?P<stop>stopped(?: by .*)?))?",
    re.DOTALL,
)

_COUNTED = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST})
"""The outcomes that count as failures in a row. An attempt that was interrupted counts neither as a
failure nor as a success."""


# --- what a row says -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pause:
    """What the reason of a paused row says.

    Attributes:
        since: when the row was paused, in Unix seconds; None if that is not known.
        until: when the pause ends, in Unix seconds; None if it has no end.
        why: who has paused it, and why: ``ann@web1: deploy``; None if that is not known.
        stop: who has stopped the run before the pause, and why; None if nobody has.
    """

    since: int | None = None
    until: int | None = None
    why: str | None = None
    stop: str | None = None


def pause_of(row: Row) -> Pause | None:
    """The pause of a row, also of one that is paused when its run was stopped; None without."""
    is_paused = row.status == PAUSED or (row.status == STOPPING and is_pause(row.reason))
    return read_reason(row.reason) if is_paused else None


def stop_of(reason: str | None) -> str:
    """Who has stopped a run, and why: ``stopped by ann@web1: it hangs``."""
    return read_reason(reason).stop or (None if is_pause(reason) else reason) or "stopped"


def read_reason(reason: str | None) -> Pause:
    """Read the reason of a paused row, or of a record of what it has skipped."""
    match = _REASON.fullmatch(reason or "")
    if match is None:
        return Pause(why=reason)
    since, until = (_instant(match[name]) for name in ("since", "until"))
    if not match["since"]:
        return Pause(why=(reason or "").removeprefix("paused "))
    return Pause(since, until, match["why"], match["stop"])


def reason_of(since: int, until: int | None, zone: Zone, *, by: str, note: str | None) -> str:
    """The reason of a row that somebody pauses."""
    end = "" if until is None else f" until {_iso(zone, until)}"
    because = f": {note}" if note else ""
    return plain_reason(f"paused {_iso(zone, since)}{end} by {by}{because}") or ""


def is_pause(reason: str | None) -> bool:
    """Whether a reason is that of a row which somebody has paused."""
    return read_reason(reason).since is not None


def is_by_failures(reason: str | None) -> bool:
    """Whether a reason says that a schedule was paused by ``pause_after_failures``."""
    return reason is not None and reason.startswith(_BY_FAILURES)


def zone_of(row: Row, settings: Config) -> Zone:
    """The zone of a row, in which the times of its pause are written and read."""
    try:
        return find_zone(row.timezone or settings.timezone)
    except InvalidError:
        return find_zone(settings.timezone)


# --- the change of a row by a client ---------------------------------------------------


def paused(row: Row, until: int | None, reason: str) -> Row:
    """The row, paused."""
    if row.status == STOPPING:
        return changed(row, reason=plain_reason(f"{reason}; {stop_of(row.reason)}"))
    return changed(row, status=PAUSED, next_run_time=until, reason=reason)


def resumed(
    row: Row, settings: Config, now: float, *, backfill: bool
) -> tuple[Row, Skipped | None]:
    """The row of a paused schedule, resumed, and what is skipped; None if nothing is."""
    definition = parse_row(row, settings)
    back = changed(row, status=WAITING, reason=None)
    if row.owner is not None:
        return back, None  # its occurrence is running
    next_time, skipped = _onward(row, definition, now, backfill=backfill)
    if next_time is None:
        return changed(back, status=FINISHED, next_run_time=None, attempt=0), skipped
    run_at, attempt = definition.first_run(next_time), _attempt_of(row, next_time)
    return changed(back, next_time=next_time, next_run_time=run_at, attempt=attempt), skipped


def record_of(row: Row, skipped: Skipped, *, owner: str, host: str, now: float) -> RunRecord:
    """The record of what a client has skipped, which holds no lease: its ``fence`` is 0."""
    return RunRecord(
        key=row.key,
        type=row.type,
        label=annotation(row, "label"),
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

    Returns:
        The settlement; None if the row is not paused, or its pause has no end.
    """
    pause = pause_of(row)
    if pause is None or pause.until is None:
        return None
    if now < pause.until:
        return set_aside(Settlement.of(row, attempt=row.attempt), row)
    try:
        definition = parse_row(row, settings)
    except NotLoadedError:
        # Another host might be able to load the trigger.
        wait = max(settings.retry_wait, SHORTEST_SEARCH)
        return Settlement.of(row, wait=wait, attempt=row.attempt, status=PAUSED, reason=row.reason)
    next_time, skipped = _onward(row, definition, now)
    spans: tuple[Skipped, ...] = () if skipped is None else (skipped,)
    reason = None if skipped is None else _SKIPPED
    trigger, attempt = definition.trigger, _attempt_of(row, next_time)
    if next_time is not None and trigger is not None and attempt < 1:
        # The catch-up policy is applied now, because after this settlement the row seems to have
        # fallen due only now, as if an earlier occurrence had been running.
        oldest = oldest_kept(trigger, next_time, definition, now)
        if oldest != next_time:
            reason = describe_dropped(definition, next_time, oldest)
            spans += missed_spans(trigger, definition, next_time, oldest, now=now, reason=reason)
            next_time = oldest
    if next_time is None:
        return Settlement.of(
            row, rest=True, attempt=0, status=FINISHED, reason=reason, skipped=spans
        )
    return Settlement.of(
        row,
        next_time=next_time,
        not_before=definition.first_run(next_time),
        attempt=attempt,
        reason=reason,
        skipped=spans,
    )


def set_aside(end: Settlement, row: Row) -> Settlement:
    """The settlement of a row that somebody has paused or otherwise set aside while its task ran.

    The row keeps its status and its reason. The end of a pause becomes the time of the next claim.
    """
    if row.status not in SET_ASIDE or end.rest:
        return end
    reason = plain_reason(row.reason or end.reason)
    end = changed(end, rest=True, status=row.status, reason=reason)
    pause = pause_of(row)
    if pause is None or pause.until is None:
        return end
    return changed(end, rest=False, wait=0, not_before=pause.until)


def after_failure(end: Settlement, row: Row, definition: Definition, failure: Retry) -> Settlement:
    """The settlement after a failed attempt, by which the schedule may pause itself."""
    most, number = definition.settings.pause_after_failures, row.attempt + failure.earlier
    if not 0 < most <= number or end.rest or end.remove or row.status != WAITING:
        return end
    failures = "1 failure" if number == 1 else f"{number} failures in a row"
    because = f": {failure.reason}" if failure.reason else ""
    text = plain_reason(f"{_BY_FAILURES}{failures}{because}")
    return changed(end, rest=True, status=PAUSED, reason=text)


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
        ended = Fate.FINISHED in {record.fate, record.outcome} or is_by_failures(record.reason)
        if is_gap or is_older or ended:
            break
        fence = min(fence, record.fence)
        number += record.outcome in _COUNTED and record.scheduled_time != row.next_time
    return number


# --- what comes next -------------------------------------------------------------------


def after_pause(row: Row, definition: Definition, now: float) -> Row | None:
    """A paused row as a worker will resume it at the end of its pause, for forecasts.

    Returns:
        The row; None if it is not paused, if its pause has no end, or if nothing comes after it.
    """
    pause = pause_of(row)
    if pause is None or pause.until is None:
        return None
    next_time, _ = _onward(row, definition, max(now, pause.until))
    if next_time is None:
        return None
    return changed(
        row,
        status=WAITING,
        reason=None,
        next_time=next_time,
        next_run_time=max(definition.first_run(next_time), pause.until),
        attempt=_attempt_of(row, next_time),
    )


def skipped_by_pause(row: Row, definition: Definition, now: float) -> Skipped | None:
    """What a paused row will skip when it is resumed: at the end of its pause, else now."""
    pause = pause_of(row) or Pause()
    return _onward(row, definition, max(now, pause.until or 0))[1]


def _onward(
    row: Row, definition: Definition, now: float, *, backfill: bool = False
) -> tuple[int | None, Skipped | None]:
    """The occurrence with which a resumed row continues, and what is skipped before it."""
    trigger, pause = definition.trigger, pause_of(row) or Pause()
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
    since, tried = pause.since, row.attempt > 0
    was_due = tried
    if since is not None:
        was_due = definition.first_run(cursor) <= since or (tried and cursor <= since)
    if was_due and onward == trigger.next_after(cursor):
        return cursor, None
    return onward, span_of(
        trigger,
        cursor,
        end if onward is None else onward,
        Fate.SKIPPED_PAUSED,
        last_before=partial(last_occurrence, definition, trigger, cursor),
        reason=row.reason,
        counts=not is_custom(definition.cron or ""),
    )


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
    """What the catch-up policy drops from ``cursor`` to ``oldest``; see `dropped_spans`."""
    return dropped_spans(
        trigger,
        cursor,
        floor(now) + 1 if oldest is None else oldest,
        catchup=definition.settings.catchup,
        busy_until=busy_until,
        last_before=partial(last_occurrence, definition, trigger, cursor),
        reason=reason,
        # A user's trigger can take long for each answer, and must answer all questions in time.
        counts=not is_custom(definition.cron or ""),
    )


def _attempt_of(row: Row, next_time: int | None) -> int:
    """The ``attempt`` of a row that is resumed with an occurrence.

    A schedule that was paused after failures begins to count anew. But its occurrence counts as
    tried, so that the catch-up policy does not drop it.
    """
    if row.next_time != next_time:
        return 0
    attempt = max(row.attempt, 0)
    return min(attempt, 1) if is_by_failures(row.reason) else attempt


def _iso(zone: Zone, instant: int) -> str:
    offset = timezone(timedelta(seconds=zone.wall(instant) - instant))
    precision = "seconds" if instant % 60 else "minutes"
    return datetime.fromtimestamp(instant, offset).isoformat(timespec=precision)


def _instant(text: str | None) -> int | None:
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return None if time.tzinfo is None else floor(time.astimezone(UTC).timestamp())
