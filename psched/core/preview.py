"""What comes next: the occurrences of a schedule, and what is odd about them.

Odd is what a clock change does to the times of a cron line (see `cron`): a time of day that
does not exist on that day, or exists twice. A line that knows every hour and just goes on through
the change has nothing odd.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta, timezone
from math import ceil

from psched.core.catchup import describe_dropped, oldest_kept
from psched.core.columns import LATEST_TIME, check_number
from psched.core.definition import Definition
from psched.core.model import WAITING, Row
from psched.triggers import trigger as triggers
from psched.triggers.cron import CORRECTION, Cron
from psched.triggers.custom import LATEST
from psched.triggers.trigger import Trigger
from psched.triggers.zone import Change, Zone, find_zone

_AROUND = 86_400
"""Seconds; no clock is set by more."""

# What a clock change does to a time of day.
LATE = "runs once, right after the clock change"
LOST = "skipped"
ONCE = "runs the first time only"
TWICE = "runs both times"


_MOST = 1000
"""Occurrences that are looked ahead at most."""


@dataclass(frozen=True, slots=True)
class ClockChangeEffect:
    """A clock change that meddles with a cron line.

    Attributes:
        change: the clock change.
        effect: `LATE`, `LOST`, `ONCE` or `TWICE`.
        text: for people.
    """

    change: Change
    effect: str
    text: str


@dataclass(frozen=True, slots=True)
class UpcomingTime:
    """A coming occurrence; or a time of the schedule's that does not come.

    Attributes:
        time: its scheduled time, Unix seconds; of one that does not come, when the clock skips it.
        run_at: when it may first be run, Unix seconds; None: it is not run.
        local: what the clocks of its zone show then, as ISO 8601.
        note: what is odd about it, for people; None: nothing.
    """

    time: int
    run_at: int | None
    local: str
    note: str | None = None


def clock_change_effects(
    trigger: Trigger | None, start: int, end: int
) -> Iterator[ClockChangeEffect]:
    """What the clock changes after an instant, and up to another, do to a trigger."""
    if not isinstance(trigger, Cron) or (trigger.hourly and not trigger.fixed):
        return
    for change in trigger.zone.changes(min(start, LATEST), min(end, LATEST)):
        wall = trigger.match_after(change.start - 1)
        if wall >= change.end:
            continue
        times = _shown(wall)
        plural = trigger.match_after(wall) < change.end
        if plural:
            times += " and more"
        if trigger.zone.instants(wall):
            effect = ONCE if trigger.fixed and change.size <= CORRECTION else TWICE
            what = "come twice" if plural else "comes twice"
        else:
            effect = LATE if trigger.fixed and change.size < CORRECTION else LOST
            what = "do not exist" if plural else "does not exist"
        yield ClockChangeEffect(change, effect, f"{times} {what} in {trigger.timezone}: {effect}")


def upcoming_times(
    trigger: Trigger | None, timezone: str, after: int, count: int
) -> list[UpcomingTime]:
    """A trigger's first times after an instant; between them those that do not come.

    Args:
        trigger: the trigger; None has no times.
        timezone: the zone in which to show them.
        after: Unix seconds.
        count: how many times, those not counted that do not come.
    """
    times = list(_times(trigger, after, count)) if trigger else []
    return _noted(trigger, find_zone(timezone), times, after)


def upcoming_occurrences(
    row: Row, definition: Definition, count: int, now: float
) -> list[UpcomingTime]:
    """A schedule's coming occurrences, the one that is due or running first.

    Args:
        row: as it stands; at rest, it has none.
        definition: the row, understood.
        count: how many.
        now: the store's clock.

    Raises:
        InvalidError: the row's time, its trigger, or the count makes no sense.
    """
    check_number("number", count, _MOST)
    trigger, cursor = definition.trigger, row.next_time
    if cursor is not None:
        check_number("next_time", cursor, LATEST_TIME)
    if row.status != WAITING or row.next_run_time is None:
        return []
    if cursor is None:
        cursor = triggers.first(trigger, ceil(now)) if trigger else ceil(now)
    oldest, about = cursor, "runs now" if row.owner is not None else None
    if trigger and cursor is not None and row.owner is None and row.attempt < 1:
        # What will be decided when it is claimed.
        oldest = oldest_kept(trigger, cursor, definition, max(now, row.next_run_time))
        about = None if oldest == cursor else describe_dropped(definition, cursor, oldest)
    if oldest is None:
        return []
    times = [oldest, *(_times(trigger, oldest, count - 1) if trigger else ())]
    listed = _noted(trigger, find_zone(definition.timezone), times, oldest - 1)
    notes = {oldest: about} if about else {}
    return [_placed(each, row, definition, notes.get(each.time)) for each in listed]


def _placed(
    each: UpcomingTime, row: Row, definition: Definition, about: str | None
) -> UpcomingTime:
    """An occurrence with what the schedule says about it."""
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


def _noted(trigger: Trigger | None, zone: Zone, times: list[int], after: int) -> list[UpcomingTime]:
    """These times, and those that do not come between them, with what is odd about them."""
    notes: dict[int, str] = {}
    lost: dict[int, str] = {}
    last = times[-1] if times else after
    for odd in clock_change_effects(trigger, after - _AROUND, last + _AROUND) if times else ():
        instant, size = odd.change.instant, odd.change.size
        if odd.effect == LOST:
            if after < instant <= last:
                lost[instant] = odd.text
        elif odd.effect == LATE:
            notes[instant] = odd.text
        else:
            for time in times:
                if instant - size <= time < instant + size:
                    which = "first" if time < instant else "second"
                    notes[time] = f"{_shown(zone.wall(time))} comes twice: {odd.effect}"
                    if odd.effect == TWICE:
                        notes[time] += f", this is the {which}"
    found = [UpcomingTime(time, time, _local(zone, time), notes.get(time)) for time in times]
    found += [UpcomingTime(time, None, _local(zone, time), text) for time, text in lost.items()]
    return sorted(found, key=lambda each: (each.time, each.run_at is not None))


def _shown(wall: int) -> str:
    """A wall time for people."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M")


def _local(zone: Zone, instant: int) -> str:
    if instant >= LATEST:
        return str(instant)  # in some zones it is the year 10000
    offset = timedelta(seconds=zone.wall(instant) - instant)
    return datetime.fromtimestamp(instant, timezone(offset)).isoformat()
