"""Translates the times of systemd.time(7), as in ``OnCalendar=Mon *-*-* 03:00``, and its durations.

A weekday and a date must both match in systemd. In a cron line one of them is enough, unless the
day of the month begins with ``*``. So ``Mon *-*-01..07`` becomes ``MON#1``, ``Mon *-*~07/1``
becomes ``1L``, and what no cron line says is refused. A second becomes a delay, as cron lines have
none.
"""

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from psched.base.errors import InvalidError
from psched.triggers.zone import zone_names

_NAMES = {
    "minutely": "*:*",
    "hourly": "*:00",
    "daily": "00:00",
    "weekly": "Mon *-*-*",
    "monthly": "*-*-01",
    "quarterly": "*-01,04,07,10-01",
    **dict.fromkeys(["yearly", "annually", "anually"], "*-01-01"),
    **dict.fromkeys(["semiannually", "semi-annually", "biannually", "bi-annually"], "*-01,07-01"),
}

_WEEKDAYS = ["MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"]
_ENDINGS = ["DAY", "SDAY", "NESDAY", "RSDAY", "DAY", "URDAY", "DAY"]
_WEEK = 7

_DATE = re.compile(r"(?:(?P<year>[^-~]+)-)?(?P<month>[^-~]+)(?P<from>[-~])(?P<day>[^-~]+)")
_ITEM = re.compile(r"(\d{1,9})(?:\.\.(\d{1,9}))?(?:/(0*[1-9]\d{0,8}))?", re.ASCII)

UNITS = {
    **dict.fromkeys(["us", "usec"], 0.000_001),
    **dict.fromkeys(["ms", "msec"], 0.001),
    **dict.fromkeys(["", "s", "sec", "second"], 1),
    **dict.fromkeys(["m", "min", "minute"], 60),
    **dict.fromkeys(["h", "hr", "hour"], 3600),
    **dict.fromkeys(["d", "day"], 86_400),
    **dict.fromkeys(["w", "week"], 604_800),
    **dict.fromkeys(["M", "month"], 2_629_800),
    **dict.fromkeys(["y", "year"], 31_557_600),
}
"""The length of each unit of a duration in seconds."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)


class NoLineError(InvalidError):
    """A calendar event is valid, but no trigger of psched has exactly its times."""


_refusal, _no_line = partial(InvalidError, ""), partial(NoLineError, "")


class Times(NamedTuple):
    """When a schedule runs: ``delay`` seconds after the times of a cron line or ``@every``."""

    cron: str
    timezone: str
    delay: int = 0


def times_of(text: str, timezone: str) -> Times:
    """Translate a calendar event, the value of an ``OnCalendar=``."""
    words = text.split()
    if len(words) > 1 and (words[-1].upper() == "UTC" or words[-1] in zone_names()):
        zone = words.pop()
        timezone = "UTC" if zone.upper() == "UTC" else zone
    if len(words) == 1:
        words = _NAMES.get(words[0].lower(), words[0]).split()
    weekdays = _weekdays(words.pop(0)) if words and words[0][0].isalpha() else None
    date = words.pop(0) if words and ":" not in words[0] else "*-*-*"
    time = [*(words.pop(0) if words else "00:00").split(":"), "00"]
    match = _DATE.fullmatch(date)
    if text.startswith("@") or (match and (match["year"] or "*") != "*"):
        raise _no_line(
            "a year: cron lines have none; write * for the year, or for one run psched push --at"
        )
    if not text or words or match is None or len(time) not in (3, 4):
        raise _refusal("it is no calendar event; systemd-analyze calendar explains them")
    hours, minutes, seconds = map(_numbers, time, (0, 0, 0), (23, 59, 59))
    months = _field(_numbers(match["month"], 1, 12), 1, 12)
    if seconds is None or len(seconds) > 1:
        is_any_time = date == "*-*-*" and weekdays is hours is minutes is None
        return Times(_every(seconds or range(60), is_any_time=is_any_time), timezone)
    day, weekday = _days(match["day"], weekdays, is_from_end=match["from"] == "~")
    cron = f"{_field(minutes, 0, 59)} {_field(hours, 0, 23)} {day} {months} {weekday}"
    return Times(cron, timezone, seconds[0])


def merged(times: Iterable[Times]) -> Sequence[Times]:
    """Join times whose cron lines differ in one field only, such as 06:00 and 18:00."""
    left = list[Times]()
    for one in dict.fromkeys(times):
        joined = ((place, _joined(other, one)) for place, other in enumerate(left))
        place, both = next((each for each in joined if each[1]), (len(left), one))
        left[place : place + 1] = [both or one]
    return left


def _joined(one: Times, other: Times) -> Times | None:
    pairs = [*zip(one.cron.split(), other.cron.split(), strict=False)]
    differing = [place for place, (a, b) in enumerate(pairs) if a != b]
    if one[1:] != other[1:] or len(differing) != 1 or one.cron.startswith("@"):
        return None
    # A field that begins with * changes what the others mean; FRI#1 and 5L go with nothing else.
    if {*"*#L"} & {*"".join(pairs[differing[0]])}:
        return None
    return Times(" ".join(a if a == b else f"{a},{b}" for a, b in pairs), *one[1:])


def seconds_of(text: str) -> float | None:
    """The length of a duration such as ``1h 30min`` in seconds; None for ``infinity``."""
    if text == "infinity":
        return None
    parts = _DURATION.findall(text)
    lengths = [UNITS.get(unit) or UNITS.get(unit.removesuffix("s"), 0) for _, unit in parts]
    if not parts or _DURATION.sub("", text) or not all(lengths):
        raise _refusal(f"{text!r} is no duration; write one such as 1h 30min")
    return sum(float(number) * each for (number, _), each in zip(parts, lengths, strict=True))


def _weekdays(text: str) -> Sequence[int] | None:
    """The numbers of weekdays from 0, Monday; None if all are meant."""
    found = set[int]()
    for item in text.removesuffix(",").split(","):
        begin, _, end = item.replace("..", "-").partition("-")
        first, last = _weekday(begin), _weekday(end or begin)
        if last < first:
            raise _refusal(f"the weekdays {item} run backwards; write two ranges")
        found.update(range(first, last + 1))
    return sorted(found) if len(found) < _WEEK else None


def _weekday(name: str) -> int:
    for number, short in enumerate(_WEEKDAYS):
        if name.upper() in (short, short + _ENDINGS[number]):
            return number
    raise _refusal(f"{name!r} is no weekday, and no name such as daily")


def _numbers(text: str, low: int, high: int) -> Sequence[int] | None:
    """The values of a part; None if it is ``*``."""
    if text == "*":
        return None
    found = set[int]()
    for item in text.split(","):
        parts = _ITEM.fullmatch(item)
        begin, end, step = parts.groups() if parts else ("-1", None, None)
        is_open = step is not None and end is None
        last = high if is_open else end or begin
        values = range(int(begin), int(last) + 1, int(step or 1))
        # systemd refuses a step that leads to no second value, as in 30/45.
        if values.start < low or values.stop > high + 1 or len(values) < 1 + is_open:
            raise _refusal(f"{item!r} is not in {low}..{high}, or no whole number, range or step")
        found.update(values)
    return sorted(found)


def _every(seconds: Sequence[int], *, is_any_time: bool) -> str:
    first, step = seconds[0], seconds[1] - seconds[0]
    if not is_any_time or 60 % step or [*seconds] != [*range(first % step, 60, step)]:
        raise _no_line(
            "several seconds of a minute: cron lines have none; write one second, or a step of all"
            " minutes, such as *:*:0/10"
        )
    return f"@every {step} +{first}" if first else f"@every {step}"


def _days(text: str, weekdays: Sequence[int] | None, *, is_from_end: bool) -> tuple[str, str]:
    """The fields for the day of the month and the weekday."""
    days = _numbers(text, 1, 31)
    if is_from_end:
        if weekdays is None and days == [1]:
            return "L", "*"
        if weekdays is not None and re.fullmatch(r"0?7/1", text):
            return "*", ",".join(f"{(day + 1) % _WEEK}L" for day in weekdays)
        raise _no_line(
            "days from the end of a month: cron lines know the last day (~01), and the last of a"
            " weekday (Fri *-*~07/1); write one of these, or days from the beginning"
        )
    day = _field(days, 1, 31)
    if days is None or weekdays is None or day.startswith("*"):
        return day, _field(weekdays, 0, 6, _WEEKDAYS)
    if days[0] % _WEEK == 1 and days == [*range(days[0], min(days[0] + _WEEK, 32))]:
        return "*", ",".join(f"{_WEEKDAYS[each]}#{days[0] // _WEEK + 1}" for each in weekdays)
    raise _no_line(
        "a weekday and a day of the month: in a cron line one of them is enough; write weeks from"
        " the 1st, 8th, 15th, 22nd or 29th (Mon *-*-01..07), or let the command test one of them"
    )


def _field(
    numbers: Sequence[int] | None, low: int, high: int, names: Sequence[object] = range(60)
) -> str:
    """A field of a cron line; None means all numbers."""
    if numbers is None or len(numbers) == high - low + 1:
        return "*"
    first, last, step = numbers[0], numbers[-1], numbers[len(numbers) > 1] - numbers[0]
    # A step of weekdays counts from Sunday.
    if step > 1 and names is not _WEEKDAYS and [*numbers] == [*range(low, high + 1, step)]:
        return f"*/{step}"
    if step == 1 and last - first == len(numbers) - 1 > 1:
        return f"{names[first]}-{names[last]}"
    return ",".join(f"{names[each]}" for each in numbers)
