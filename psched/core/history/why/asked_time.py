"""Parses times that people write, such as ``yesterday 02:30``, or ``18:00`` for the next one."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil, floor

from psched.base.errors import InvalidError
from psched.base.quantities import as_seconds
from psched.core.columns import LATEST_TIME
from psched.core.shorthands import When, instant
from psched.triggers.zone import LATEST, Zone

FORMS = (
    "2026-11-22 02:30, 02:30 (the last one), yesterday 02:30, -2h, 2026-11-22T02:30+01:00 or Unix"
    " seconds"
)
"""The forms of a time, for messages."""

NEXT_FORMS = (
    "18:00 (the next one), tomorrow 08:00, 2026-11-26T08:00, +2h, 2026-11-26T08:00+01:00 or Unix"
    " seconds"
)
"""The forms of a time in the future, for messages."""

_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}

_DATES_IN_DIGITS = (8, 12)
"""Numbers of digits with which a number can be meant as a date, such as 20260131."""

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


def parse_asked(given: When | str, zone: Zone, now: float) -> Asked:
    """Parse a time.

    Args:
        given: Unix seconds, an aware datetime, or a text in one of `FORMS`.
        zone: the zone of local times.
        now: the present time of the store's clock.

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
        return _of_date(text, zone, now)
    except (ValueError, OverflowError):
        raise _refusal(given) from None


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
    clock = r"[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?"
    match = re.fullmatch(rf"(?:({'|'.join(_DAYS)})[ T])?({clock})", text)
    if match is None:
        if re.search(rf"[ T]{clock}", text) is None:
            raise ValueError(text)
        return _of_iso(text, zone)
    today = datetime.fromtimestamp(zone.wall(int(now)), UTC)
    of_day = datetime.strptime(match[2], "%H:%M:%S" if match[2].count(":") > 1 else "%H:%M")  # noqa: DTZ007
    day = today.replace(hour=of_day.hour, minute=of_day.minute, second=of_day.second)
    if match[1] is not None:
        return _of_wall(day + timedelta(days=_DAYS[match[1]]), zone)
    asked = _of_wall(day, zone)
    if is_next:
        last = max(asked.instants, default=zone.change(asked.wall or 0).instant)
        return asked if last > now else _of_wall(day + timedelta(days=1), zone)
    # The last one that is not in the future. A time that today's clock change skips is in the
    # future until the clock change.
    first = min(asked.instants, default=zone.change(asked.wall or 0).instant)
    return asked if first <= now else _of_wall(day - timedelta(days=1), zone)


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
