"""Parses times that people write, such as ``yesterday 02:30``, or ``18:00`` for the next one."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor

from psched.base.errors import InvalidError
from psched.base.quantities import as_seconds
from psched.core.columns import LATEST_TIME, Until, instant
from psched.triggers.zone import LATEST, Zone

FORMS = (
    "2026-11-22 02:30, 02:30 (the last one), yesterday 02:30, Sun 22 02:30, -2h,"
    " ISO 8601 with an offset, or Unix seconds"
)
"""The forms of a time, for messages."""

NEXT_FORMS = (
    "18:00 (the next one), tomorrow 08:00, 2026-11-26T08:00, +2h, ISO 8601 with an offset, or Unix"
    " seconds"
)
"""The forms of a time in the future, for messages."""

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_NEAREST = 31
"""A weekday and a day of the month mean the nearest such date that is at most so many days away."""

_DAY = rf"{'|'.join(_DAYS)}|(?:{'|'.join(_WEEKDAYS)}) [0-9]{{1,2}}|[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}"

_TIME = re.compile(
    rf"(?:(?P<day>{_DAY})[ T])?(?P<clock>[0-9]{{1,2}}:[0-9]{{2}}(?::[0-9]{{2}})?)(?:\.[0-9]+)?"
    # The zone: its abbreviation, or an offset; psched also shows the name of the zone behind.
    r"(?: ?(?P<zone>[A-Z]{1,5}|[+-][0-9]{2}(?::?[0-9]{2})?)(?: \(.*\))?)?"
)

_DATES_IN_DIGITS = (8, 12)
"""Numbers of digits with which a number can be meant as a date, such as 20260131. Unix seconds have
8 digits from 1970 to 1973, and 12 digits only after the year 5000."""

_LAST = min(LATEST_TIME, LATEST - 86_400)
"""The latest time that is accepted, in Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The time about which somebody asks, as instants in Unix seconds.

    There is none if a clock change skips the local time ``wall``, and there are two if a clock
    change repeats it. ``before`` means the last occurrence up to the instant, as ``-2h`` does.
    """

    instants: tuple[int, ...]
    wall: int | None = None
    before: bool = False


def parse_asked(
    given: Until, zone: Zone, now: float, *, field: str = "time", is_next: bool = False
) -> Asked:
    """Parse a time in the past or in the future; a date or a day alone means its beginning."""
    if not isinstance(given, str | timedelta):
        asked = Asked(instants=(instant(field, given),))
    else:
        try:
            asked = _read(given, zone, now, is_next=is_next)
        except InvalidError as error:
            raise InvalidError(field, f"{given!r} {error.problem}") from None
        except (ValueError, OverflowError):
            asked = Asked(instants=(-1,))
    if not all(0 <= each <= _LAST for each in asked.instants or (asked.wall or 0,)):
        forms = NEXT_FORMS if is_next else FORMS
        raise InvalidError(field, f"{given!r} is no time; write {forms}")
    return asked


def parse_instant(field: str, given: Until, zone: Zone, now: float, *, is_next: bool) -> int:
    """Parse a time like `parse_asked`, and return one instant, in Unix seconds.

    Of a local time that a clock change repeats, the first one is meant; if ``is_next``, the first
    one that is in the future. A local time that a clock change skips means the instant of the clock
    change.
    """
    asked = parse_asked(given, zone, now, field=field, is_next=is_next)
    found = asked.instants or (zone.change(asked.wall or 0).instant,)
    return next((each for each in found if is_next and each > now), found[0])


def parse_next(field: str, given: Until, zone: Zone, now: float) -> int:
    """Parse a time in the future like `parse_instant`."""
    if (found := parse_instant(field, given, zone, now, is_next=True)) <= now:
        raise InvalidError(field, "must be in the future")
    return found


def _read(given: timedelta | str, zone: Zone, now: float, *, is_next: bool) -> Asked:
    """Read a time."""
    if isinstance(given, timedelta):
        return Asked(instants=(ceil(now + given.total_seconds()),))
    text = " ".join(given.split())
    if away := re.fullmatch(r"(?:now ?)?([+-]) ?([0-9.]+[a-z])", text):
        seconds = float(str(as_seconds(away[2])))
        if away[1] == "-":
            return Asked(instants=(floor(now - seconds),), before=True)
        return Asked(instants=(ceil(now + seconds),))
    if text.isdecimal() and text.isascii():
        if len(text) in _DATES_IN_DIGITS:
            problem = "could be a date or Unix seconds; write a date as 2026-01-31T09:00"
            raise InvalidError("time", problem)
        return Asked(instants=(int(text[:20]),))
    match = _TIME.fullmatch(f"{text} 00:00" if re.fullmatch(_DAY, text) else text)
    if match is None:
        raise ValueError(text)
    day, clock, name = match["day"], match["clock"], match["zone"]
    if name is None:
        return _local(day, clock, zone, now, is_next=is_next)
    is_named = name.isalpha() and name not in {"Z", "UTC"}
    if not is_named:
        offset = None if name.isalpha() else datetime.strptime(name.ljust(5, "0"), "%z").tzinfo
        zone = Zone(name, offset or UTC)
    found = _local(day, clock, zone, now, is_next=is_next).instants
    instants = tuple(each for each in found if not is_named or zone.at(each).tzname() == name)
    if not instants:
        problem = f"is no time in {zone.name}; write an offset in place of {name}"
        raise InvalidError("time", problem)
    return Asked(instants=instants)


def _local(day: str | None, clock: str, zone: Zone, now: float, *, is_next: bool) -> Asked:
    """Read a day and a time of day in a zone; without a day, the last or the next such time."""
    today = datetime.fromtimestamp(zone.wall(int(now)), UTC)
    of_day = datetime.strptime(clock, "%H:%M:%S" if clock.count(":") > 1 else "%H:%M")  # noqa: DTZ007
    local = today.replace(hour=of_day.hour, minute=of_day.minute, second=of_day.second)
    if day is not None:
        return _of_wall(_date_of(day, local), zone)
    asked = _of_wall(local, zone)
    if is_next:
        last = max(asked.instants, default=zone.change(asked.wall or 0).instant)
        return asked if last > now else _of_wall(local + timedelta(days=1), zone)
    # The last one that is not in the future. A time that today's clock change skips is in the
    # future until the clock change.
    first = min(asked.instants, default=zone.change(asked.wall or 0).instant)
    return asked if first <= now else _of_wall(local - timedelta(days=1), zone)


def _date_of(day: str, today: datetime) -> datetime:
    """The day that is meant: ``yesterday``, ``2026-11-27``, or ``Fri 27``, the nearest one."""
    if day in _DAYS:
        return today + timedelta(days=_DAYS[day])
    if day[0].isdecimal():
        year, month, number = map(int, day.split("-"))
        return today.replace(year=year, month=month, day=number)
    weekday, _, of_month = day.partition(" ")
    for away in sorted(range(-_NEAREST, _NEAREST + 1), key=abs):
        each = today + timedelta(days=away)
        if (_WEEKDAYS[each.weekday()], each.day) == (weekday, int(of_month)):
            return each
    raise ValueError(day)


def _of_wall(local: datetime, zone: Zone) -> Asked:
    wall = floor(local.timestamp())
    return Asked(instants=zone.instants(wall), wall=wall)
