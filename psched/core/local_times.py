"""The local times of occurrences, and what new zone data make of them.

The trigger of a schedule names local times, such as 02:30 in Berlin. ``next_time`` is an instant,
computed with the zone data of a host. So ``local_time`` says what the clocks of the zone show then
according to these data, and which release they are: ``2027-03-28T03:00+02:00 2026b``. If the offset
of the zone is changed, a host with the new release computes the instant of the same local time
anew: it moves a row that waits (`renewed`), and continues after the local time that has run
(`continued_from`). A host with an older release takes the times as they are, so that two hosts do
not undo each other's changes.

If plain SQL has changed ``next_time``, ``local_time`` is another instant, and is ignored.
"""

from dataclasses import replace as changed
from datetime import UTC, datetime
from typing import NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.catchup import iso
from psched.core.definition import Definition, parse_row
from psched.core.model import PAUSED, WAITING, ReasonCode, Row
from psched.triggers import zone as zones


class _Told(NamedTuple):
    wall: int
    release: str


def renewed(row: Row, definition: Definition) -> int | None:
    """The instant that newer zone data give to the occurrence of ``next_time``; None if it stays.

    A time at which the trigger has an occurrence with the newer data, too, stays: so a schedule
    that runs each minute neither rests nor repeats an hour.
    """
    cron, told = definition.local_cron, _told(row)
    if cron is None or told is None or row.next_time is None:
        return None
    if told.release >= zones.VERSION or cron.zone.wall(row.next_time) == told.wall:
        return None
    if cron.next_after(row.next_time - 1) == row.next_time:
        return None
    return cron.next_after(min(cron.zone.readings(told.wall)) - 1)


def renewed_row(row: Row, settings: Config) -> Row | None:
    """The row with the time that newer zone data give to its next occurrence; None if it stays.

    The time of a row that is leased, or whose occurrence has been tried, stays. A template rests.
    """
    if row.each_host or row.local_time is None or row.local_time.endswith(f" {zones.VERSION}"):
        return None
    if row.status not in {WAITING, PAUSED} or row.owner is not None or row.is_tried:
        return None
    try:
        definition = parse_row(row, settings)
    except InvalidError:
        return None
    instant = renewed(row, definition)
    if instant is None or row.next_time is None:
        return None
    new = changed(row, next_time=instant, local_time=definition.local_time(instant))
    if row.status == PAUSED:
        return new
    return changed(
        new,
        next_run_time=definition.first_run(instant),
        reason=reason(row.next_time, instant),
        reason_code=ReasonCode.NEW_ZONE_DATA,
    )


def reason(before: int, after: int) -> str:
    """Why an occurrence was moved, for people."""
    return f"{iso(before)} is now {iso(after)}, by the zone data {zones.VERSION}"


def continued_from(row: Row, definition: Definition) -> int:
    """The instant after which a schedule continues when the occurrence of ``next_time`` is over.

    If other zone data have computed ``next_time``, its local time can come again.
    """
    scheduled_time, cron, told = row.next_time or 0, definition.local_cron, _told(row)
    if cron is None or told is None:
        return scheduled_time
    # If the data are the same, the row's zone has been changed.
    if told.release == zones.VERSION or cron.zone.wall(scheduled_time) == told.wall:
        return scheduled_time
    if cron.next_after(scheduled_time - 1) == scheduled_time:
        return scheduled_time
    return max(scheduled_time, *cron.zone.readings(told.wall))


def _told(row: Row) -> _Told | None:
    text, _, release = (row.local_time or "").partition(" ")
    try:
        shown = datetime.fromisoformat(text)
        if shown.tzinfo is None or shown.timestamp() != row.next_time:
            return None
    except (ValueError, OverflowError):
        return None
    return _Told(int(shown.replace(tzinfo=UTC).timestamp()), release)
