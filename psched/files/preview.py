"""When a schedule will run next, before a change and after it. Pure: the time is an argument."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import ceil
from typing import NamedTuple

from psched.base.errors import InvalidError
from psched.config import Config
from psched.core.columns import LATEST_TIME
from psched.core.definition import parse_row
from psched.core.model import QUARANTINED, WAITING, Row
from psched.files.plan import Item
from psched.triggers import trigger as triggers
from psched.triggers.zone import find_zone

COUNT = 3
"""Firings that are shown."""

_SETTING_ANEW = frozenset({"cron", "timezone", "dst_policy"})
"""Fields whose change sets the next occurrence anew; see `psched.core.declare.redeclare`."""


class Firings(NamedTuple):
    """The next firings of a schedule, as instants, and in its zone.

    Attributes:
        instants: Unix seconds, the next one first.
        shown: the same for people; what is at rest, or cannot be read, says so instead.
    """

    instants: Sequence[int]
    shown: str


def before(item: Item, settings: Config) -> Firings | None:
    """The next firings of a schedule as it stands; None: there is no such schedule."""
    row = item.found
    if row is None:
        return None
    if row.status != WAITING or row.next_time is None:
        return Firings([], "none: it is " + row.state)
    return _firings(row, row.next_time, settings)


def after(item: Item, settings: Config, now: float) -> Firings | None:
    """The next firings once a plan is carried out; None: there will be no such schedule.

    Args:
        item: the schedule, and what is to become of it.
        settings: the installation's.
        now: the store's clock.
    """
    wanted, found = item.wanted, item.found
    if wanted is None:
        return None
    anew = not _SETTING_ANEW.isdisjoint(change.field for change in item.changes)
    if found is not None and not anew:
        if found.status == QUARANTINED and item.changes and found.next_time is not None:
            return _firings(wanted, found.next_time, settings)  # it is taken back into service
        return before(item, settings)
    start = item.fields.get("next_time", ceil(now)) if found is None else ceil(now)
    if not isinstance(start, int):
        start = ceil(start.timestamp())
    return _firings(wanted, start, settings)


def _firings(row: Row, start: int, settings: Config) -> Firings:
    """The firings from an instant on."""
    try:
        definition = parse_row(row, settings)
    except InvalidError as error:
        return Firings([], f"none that is known: {error}")
    trigger = definition.trigger
    if trigger is None:
        return Firings([start], moment(start, definition.timezone))
    instants = list[int]()
    instant = triggers.first(trigger, start)
    while instant is not None and len(instants) < COUNT:
        instants.append(instant)
        instant = trigger.next_after(instant)
    shown = ", ".join(moment(each, definition.timezone) for each in instants)
    return Firings(instants, shown or "none")


def moment(instant: int, timezone: str) -> str:
    """An instant as the clocks of a zone show it, with their offset."""
    if not 0 <= instant <= LATEST_TIME - 86_400:
        return str(instant)
    wall = find_zone(timezone).wall(instant)
    shown = datetime.fromtimestamp(wall, UTC)
    sign, seconds = ("-", instant - wall) if wall < instant else ("+", wall - instant)
    seconds_shown = f"{shown:%Y-%m-%d %H:%M}" + (f":{shown:%S}" if wall % 60 else "")
    return f"{seconds_shown} {sign}{seconds // 3600:02}:{seconds // 60 % 60:02}"
