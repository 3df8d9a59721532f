"""Parses times that people write, such as ``yesterday 02:30``, or ``18:00`` for the next one."""

import re
from dataclasses import dataclass
from dataclasses import replace as changed
from datetime import UTC, datetime, timedelta
from math import ceil, floor

from psched.base.errors import InvalidError
from psched.base.quantities import as_seconds
from psched.core.columns import LATEST_TIME
from psched.core.shorthands import When, instant
from psched.triggers.zone import LATEST, Zone, find_zone

FORMS = (
    "2026-11-22 02:30, 02:30 (the last one), yesterday 02:30, Sun 22 02:30, -2h,"
    " 2026-11-22T02:30+01:00 or Unix seconds"
)
"""The forms of a time, for messages."""

NEXT_FORMS = (
    "18:00 (the next one), tomorrow 08:00, 2026-11-26T08:00, +2h, 2026-11-26T08:00+01:00 or Unix"
    " seconds"
)
"""The forms of a time in the future, for messages."""

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}

_WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")

_NEAREST = 31
"""A weekday and a day of the month mean the nearest such date that is at most so many days away."""

_CLOCK = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"

_DATES_IN_DIGITS = (8, 12)
"""Numbers of digits with which a number can be meant as a date, such as 20260131. Unix seconds have
8 digits from 1970 to 1973, and 12 digits only after the year 5000."""

_LAST = min(LATEST_TIME, LATEST - 86_400)
"""The latest time that is accepted, in Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The time about which somebody asks.

    Attributes:
        instants: the instants that are meant, in Unix seconds. There is none if a clock change
            skips the local time, and there are two if a clock change repeats it.
        wall: the local time, see `psched.triggers.zone`; None if an instant was given.
        before: whether the last occurrence up to the instant is meant, for example for ``-2h``.
    """

    instants: tuple[int, ...]
    wall: int | None = None
    before: bool = False


def parse_asked(given: When | str, zone: Zone, now: float, *, is_next: bool = False) -> Asked:
    """Parse a time.

    Args:
        given: Unix seconds, an aware datetime, or a text in one of `FORMS`.
        zone: the zone of local times.
        now: the present time of the store's clock.
        is_next: whether a time of day without a date means the next one, not the last one.

    Raises:
        InvalidError: the time is none of these.
    """
    if not isinstance(given, str):
        return Asked(instants=(_checked(instant("time", given), given),))
    text = " ".join(given.split())
    ago = re.fullmatch(r"(?:now ?)?- ?([0-9.]+[a-z])", text)
    if ago is not None and not isinstance(seconds := as_seconds(ago[1]), str):
        return Asked(instants=(_checked(floor(now - float(str(seconds))), given),), before=True)
    if text.isdecimal() and text.isascii() and len(text) not in _DATES_IN_DIGITS:
        return Asked(instants=(_checked(int(text[:20]), given),))
    try:
        return _of_date(text, zone, now, is_next=is_next)
    except (ValueError, OverflowError):
        raise _refusal(given) from None


def parse_instant(field: str, given: str, zone: Zone, now: float, *, is_next: bool) -> int:
    """Parse a time in the past or in the future; a date or a day alone means its beginning.

    Of a local time that a clock change repeats, the first one is meant. A local time that a clock
    change skips means the instant of the clock change.

    Args:
        field: the name of the argument, for errors.
        given: a text in one of `FORMS` or `NEXT_FORMS`.
        zone: the zone of local times.
        now: the present time.
        is_next: whether a time of day without a date means the next one, not the last one.

    Raises:
        InvalidError: the text is no time, or could be a date in digits.
    """
    text = " ".join(given.split())
    if text.isdecimal() and text.isascii() and len(text) in _DATES_IN_DIGITS:
        problem = f"{given!r} could be a date or Unix seconds; write a date as 2026-01-31T09:00"
        raise InvalidError(field, problem)
    if text.isdecimal() and text.isascii():
        return int(text[:20])
    if text in _DAYS or re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        text += " 00:00"
    try:
        if text.startswith("+"):
            return _next(text, zone, now)
        asked = parse_asked(text, zone, now, is_next=is_next)
    except (ValueError, OverflowError):
        forms = NEXT_FORMS if is_next else FORMS
        raise InvalidError(field, f"{given!r} is no time; write {forms}") from None
    return (asked.instants or (zone.change(asked.wall or 0).instant,))[0]


def parse_next(field: str, given: When | timedelta | str, zone: Zone, now: float) -> int:
    """Parse a time in the future.

    Of a local time that a clock change repeats, the first one that is in the future is meant. A
    local time that a clock change skips means the instant of the clock change.

    Args:
        field: the name of the argument, for errors.
        given: Unix seconds, an aware datetime, the time from now on, or a text in one of
            `NEXT_FORMS`.
        zone: the zone of local times.
        now: the present time of the store's clock.

    Returns:
        The time in Unix seconds.

    Raises:
        InvalidError: the time is none of these, or not in the future.
    """
    if not isinstance(given, str | timedelta):
        found = instant(field, given)
    else:
        try:
            found = _next(given, zone, now)
        except (ValueError, OverflowError):  # an InvalidError is a ValueError, too
            found = LATEST
    if found > _LAST:
        raise InvalidError(field, f"{given!r} is no time; write {NEXT_FORMS}")
    if found <= now:
        raise InvalidError(field, f"must be in the future, and {given} is not")
    return found


def _next(given: timedelta | str, zone: Zone, now: float) -> int:
    if isinstance(given, timedelta):
        return ceil(now + given.total_seconds())
    text = " ".join(given.split())
    if text.startswith("+"):
        return ceil(now + float(str(as_seconds(text[1:].strip()))))
    if text.isdecimal() and text.isascii() and len(text) not in _DATES_IN_DIGITS:
        return int(text[:20])
    asked = _of_date(text, zone, now, is_next=True)
    found = asked.instants or (zone.change(asked.wall or 0).instant,)
    return next((each for each in found if each > now), found[-1])


def _of_date(text: str, zone: Zone, now: float, *, is_next: bool = False) -> Asked:
    """Parse a text with a time of day.

    Args:
        text: the text.
        zone: the zone of local times.
        now: the present time of the store's clock.
        is_next: whether a time of day without a date means the next one, not the last one.

    Raises:
        ValueError: the text has another form.
        OverflowError: the time is outside the years 1 to 9999.
    """
    if (named := re.fullmatch(rf"(.*{_CLOCK}) ([A-Z]{{2,5}})", text)) is not None:
        return _of_named(named[1], named[2], zone, now, is_next=is_next)
    days = rf"{'|'.join(_DAYS)}|(?:{'|'.join(_WEEKDAYS)}) [0-9]{{1,2}}"
    match = re.fullmatch(rf"(?:({days})[ T])?({_CLOCK})", text)
    if match is None:
        if re.search(rf"[ T]{_CLOCK}", text) is None:
            raise ValueError(text)
        return _of_iso(text, zone)
    today = datetime.fromtimestamp(zone.wall(int(now)), UTC)
    of_day = datetime.strptime(match[2], "%H:%M:%S" if match[2].count(":") > 1 else "%H:%M")  # noqa: DTZ007
    day = today.replace(hour=of_day.hour, minute=of_day.minute, second=of_day.second)
    if match[1] is not None:
        return _of_wall(day + timedelta(days=_days_from(day, match[1])), zone)
    asked = _of_wall(day, zone)
    if is_next:
        last = max(asked.instants, default=zone.change(asked.wall or 0).instant)
        return asked if last > now else _of_wall(day + timedelta(days=1), zone)
    # The last one that is not in the future. A time that today's clock change skips is in the
    # future until the clock change.
    first = min(asked.instants, default=zone.change(asked.wall or 0).instant)
    return asked if first <= now else _of_wall(day - timedelta(days=1), zone)


def _of_named(text: str, name: str, zone: Zone, now: float, *, is_next: bool) -> Asked:
    """Parse a time with the abbreviation of a zone, such as CET: that of this zone, or UTC."""
    zone = find_zone("UTC") if name == "UTC" else zone
    asked = _of_date(text, zone, now, is_next=is_next)
    instants = tuple(each for each in asked.instants if zone.at(each).tzname() == name)
    if not instants:
        raise ValueError(text)
    return changed(asked, instants=instants)


def _days_from(today: datetime, day: str) -> int:
    """How many days after today a day is: ``yesterday``, or ``Fri 27``, the nearest one."""
    if day in _DAYS:
        return _DAYS[day]
    weekday, number = day.split()
    wanted = _WEEKDAYS.index(weekday), int(number)
    for away in sorted(range(-_NEAREST, _NEAREST + 1), key=abs):
        each = today + timedelta(days=away)
        if (each.weekday(), each.day) == wanted:
            return away
    raise ValueError(day)


def _of_iso(text: str, zone: Zone) -> Asked:
    # A space before an offset, as in "02:30 +01:00", is not a part of ISO 8601.
    read = datetime.fromisoformat(re.sub(r" (?=[+-][0-9:]+$)", "", text))
    if read.tzinfo is not None:
        return Asked(instants=(_checked(floor(read.timestamp()), text),))
    return _of_wall(read.replace(tzinfo=UTC), zone)


def _of_wall(local: datetime, zone: Zone) -> Asked:
    wall = _checked(floor(local.timestamp()), local.isoformat())
    return Asked(instants=zone.instants(wall), wall=wall)


def _checked(seconds: int, given: object) -> int:
    if not 0 <= seconds <= _LAST:
        raise _refusal(given)
    return seconds


def _refusal(given: object) -> InvalidError:
    return InvalidError("time", f"{given!r} is no time; write {FORMS}")
