"""Preview: the next occurrences of a schedule, and how clock changes affect them."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import datetime, timedelta, timezone
from math import ceil

from psched.base.errors import InvalidError
from psched.core import attempts
from psched.core.catchup import describe_dropped, oldest_kept
from psched.core.columns import LATEST_TIME, check_number
from psched.core.definition import Definition
from psched.core.model import STOPPING, WAITING, Row
from psched.core.operations import pausing
from psched.triggers.cron import LATE, LOST, TWICE, clock_change_effects, wall_text
from psched.triggers.trigger import Trigger, first
from psched.triggers.zone import LATEST, Zone, find_zone

_AROUND = 86_400
"""Clock changes are searched from this many seconds before a preview to this many after it.

No clock change is larger than this.
"""

_MOST = 1000
"""The largest number of occurrences in a preview."""


@dataclass(frozen=True, slots=True)
class UpcomingTime:
    """An upcoming occurrence, or a time that the schedule omits because of a clock change.

    Attributes:
        time: the scheduled time in Unix seconds; for a skipped time, the instant of the change.
        run_at: the earliest run in Unix seconds; None if the time is skipped.
        local: ``time`` in the schedule's zone, as ISO 8601 text.
        note: a remark for display, for example on a clock change; None if there is no remark.
    """

    time: int
    run_at: int | None
    local: str
    note: str | None = None


def upcoming_times(
    trigger: Trigger | None, timezone: str, after: int, count: int
) -> list[UpcomingTime]:
    """A trigger's first times after an instant, with the skipped times between them."""
    times = list(_times(trigger, after, count)) if trigger else []
    return _with_skipped(trigger, find_zone(timezone), times, after)


def upcoming_occurrences(
    row: Row, definition: Definition, count: int, now: float
) -> list[UpcomingTime]:
    """A schedule's upcoming occurrences, beginning with the one that is due or running."""
    if not check_number("number", count, _MOST):
        raise InvalidError("number", f"must be from 1 to {_MOST}, not 0")
    trigger, cursor = definition.trigger, row.next_time
    if row.each_host and trigger:  # its hosts run it, from now on
        cursor = first(trigger, ceil(now))
        row = changed(row, next_time=cursor, next_run_time=cursor)
    if cursor is not None:
        check_number("next_time", cursor, LATEST_TIME)
    row = (pausing.after_pause(row, definition, now) if row.owner is None else None) or row
    cursor = row.next_time
    is_stopped = row.status == STOPPING and row.pause is None
    if not (row.status == WAITING or is_stopped) or row.next_run_time is None:
        return []
    if cursor is None:
        cursor = attempts.first_time(row, trigger, now)
    oldest, about = cursor, "runs now" if row.owner is not None else None
    if is_stopped:
        about = "is being stopped"
    if trigger and cursor is not None and row.owner is None and not row.is_tried:
        # We apply the catch-up policy as a worker will apply it when it claims the row.
        # A client other than psched can have written a time that no date has.
        due = min(row.next_run_time, LATEST_TIME)
        oldest = oldest_kept(trigger, cursor, definition, max(now, due))
        about = None if oldest == cursor else describe_dropped(definition, cursor, oldest)
    if oldest is None:
        return []
    times = [oldest, *(_times(trigger, oldest, count - 1) if trigger else ())]
    listed = _with_skipped(trigger, find_zone(definition.timezone), times, oldest - 1)
    notes = {oldest: about} if about else {}
    return [_with_run_time(each, row, definition, notes.get(each.time)) for each in listed]


def _with_run_time(
    each: UpcomingTime, row: Row, definition: Definition, about: str | None
) -> UpcomingTime:
    """Add to an occurrence its earliest run, and the note ``about`` unless it is None."""
    if each.run_at is None:
        return each
    run_at = definition.first_run(each.time)
    if each.time == row.next_time and row.owner is None and row.next_run_time is not None:
        run_at = row.next_run_time
    note = "; ".join(text for text in (about, each.note) if text)
    return changed(each, run_at=run_at, note=note or None)


def _times(trigger: Trigger, after: int, count: int) -> Iterator[int]:
    time: int | None = after
    for _ in range(count):
        time = None if time is None else trigger.next_after(time)
        if time is None:
            return
        yield time


def _with_skipped(
    trigger: Trigger | None, zone: Zone, times: list[int], after: int
) -> list[UpcomingTime]:
    """Add the skipped times to a trigger's times after an instant, and notes on clock changes."""
    notes: dict[int, str] = {}
    skipped: dict[int, str] = {}
    last = times[-1] if times else after
    for each in clock_change_effects(trigger, after - _AROUND, last + _AROUND) if times else ():
        instant, size = each.change.instant, each.change.size
        if each.effect == LOST:
            if after < instant <= last:
                skipped[instant] = each.text
        elif each.effect == LATE:
            notes[instant] = each.text
        else:
            for time in times:
                if instant - size <= time < instant + size:
                    which = "first" if time < instant else "second"
                    notes[time] = f"{wall_text(zone.wall(time))} comes twice: {each.effect}"
                    if each.effect == TWICE:
                        notes[time] += f", this is the {which}"
    found = [UpcomingTime(time, time, local_time(zone, time), notes.get(time)) for time in times]
    found += [
        UpcomingTime(time, None, local_time(zone, time), text) for time, text in skipped.items()
    ]
    return sorted(found, key=lambda each: (each.time, each.run_at is not None))


def local_time(zone: Zone, instant: int) -> str:
    """An instant in a time zone, as ISO 8601 text; Unix seconds if no calendar has it."""
    if instant >= LATEST:
        # We return Unix seconds, because in zones ahead of UTC the local time can be in the year
        # 10000, which datetime cannot represent.
        return str(instant)
    offset = timedelta(seconds=zone.wall(instant) - instant)
    return datetime.fromtimestamp(instant, timezone(offset)).isoformat()
