"""Cron lines: the next time of a line in a time zone after an instant.

**The line** has the five fields of crontab(5): minute, hour, day of month, month, day of week. Or
it is one of seven names such as ``@daily``. If neither day field begins with ``*``, a day must
match one of the two; otherwise it must match both. Beyond crontab(5), ranges wrap (``22-2``,
``FRI-MON``), ``5/15`` is ``5-59/15``, ``?`` is ``*`` in a day field, and there are ``L`` (last day
of the month), ``15W`` (the day from Monday to Friday nearest the 15th, in its month), ``FRI#3``
(third Friday) and ``5L`` or ``L5`` (last Friday).

**The clock changes.** A line whose minute or hour begins with ``*`` is a *wildcard* line. Every
other line is a *fixed-time* line. The policy ``debian`` follows Debian's cron(8):

* a wildcard line runs each time that the clock shows a matching minute. It does not run at skipped
  times, and runs twice at repeated times. So an hourly line runs every hour;
* if the clock change skips times of a fixed-time line, the line runs once, at the instant of the
  change;
* at a repeated wall time, a fixed-time line runs only the first time;
* a change of three hours or more forward, or of more than three hours back, is treated as a
  correction of the clock, not as daylight saving. Then every line is treated as a wildcard line.

Under ``wallclock``, PerfectSched's policy, every line is treated as a wildcard line.

A line is rewritten first. `find_matches` finds the wall times that match a line of plain numbers,
without a time zone, ten times as fast as the library croniter, which does it for other lines. Then
the wall times are converted to instants, and the policy for clock changes is applied.
"""

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from psched.base.errors import InvalidError
from psched.triggers.zone import LATEST, Change, Zone, find_zone

DST_POLICIES = ("debian", "wallclock")
ALIASES = {  # the names of crontab(5), without @reboot, which stands for no time
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

# The following numbers are in seconds.
CORRECTION = 3 * 3600  # the limit between changes for daylight saving and corrections
_GREGORIAN_CYCLE = 146_097 * 86_400  # 400 years, after which the weekdays of all dates repeat
_RARE = 40 * 366 * 86_400  # within it, each date, even 29 February, has each weekday once
_BEGIN = -2_208_988_800  # 1900-01-01T00:00Z; no search for the next time begins earlier


def parse_cron(text: str, timezone: str, dst_policy: str, reading: str = "crontab") -> "Cron":
    """Parse a cron line; `Cron.next_after` of the result raises no errors."""
    if dst_policy not in DST_POLICIES:
        raise InvalidError("dst_policy", f"{dst_policy!r} is not one of {', '.join(DST_POLICIES)}")
    if reading == "perfectsched":
        from psched.triggers.chrono import rewritten  # noqa: PLC0415  # rarely used

        minute, hour, day, month, weekday = _split(rewritten(text))
    else:
        minute, hour, day, month, weekday = _split(text)
    wildcard = minute.startswith("*") or hour.startswith("*")
    line, either = _rewrite(minute, hour, day, month, weekday)
    return Cron(
        text,
        timezone,
        dst_policy,
        reading,
        hourly=_HOUR.is_all(line.split()[1]),
        fixed=dst_policy == "debian" and not wildcard,
        zone=find_zone(timezone),
        match_after=_calendar(line, either=either),
    )


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron line in a time zone. Created by `parse_cron`. Threads can share a `Cron`.

    Two objects are equal if their first four attributes are equal.
    """

    text: str  # the line
    timezone: str  # the name of the zone
    dst_policy: str  # one of `DST_POLICIES`
    reading: str = field(repr=False)  # see `parse_cron`
    # Whether the line's hour field matches every hour of the day.
    hourly: bool = field(repr=False, compare=False)
    # Whether the line is treated as a fixed-time line.
    fixed: bool = field(repr=False, compare=False)
    zone: Zone = field(repr=False, compare=False)  # the time zone
    # A function that returns the first matching wall time strictly after a wall time.
    match_after: Callable[[int], int] = field(repr=False, compare=False)

    def next_after(self, instant: int) -> int | None:
        """The first time strictly after an instant, in Unix seconds; None if there is none."""
        instant = max(instant, _BEGIN)
        if instant >= LATEST:
            return None
        wall = self.zone.wall(instant)
        if len(self.zone.instants(wall)) == 1:  # usually: no clock change repeats this wall time
            return self._next(wall, instant)
        repeated = self.zone.change(wall)
        in_first_pass = instant < repeated.instant
        if self.fixed and repeated.size <= CORRECTION:
            return self._next(wall if in_first_pass else repeated.end - 1, instant)
        following = self._next(wall, instant)
        if in_first_pass and (following is None or following >= repeated.instant):
            # The search begins at the first repeated wall time, because matches up to ``wall`` are
            # shown again after the clock is set back, before the next match after ``wall``.
            return self._next(repeated.start - 1, instant)
        return following

    def _next(self, wall: int, instant: int) -> int | None:
        """Return the first instant after ``instant`` for a match after the wall time ``wall``.

        For a match that a clock change skips, a fixed-time line runs at the instant of the change.
        None means that no match leads to a later time.
        """
        match = self.match_after(wall)
        while match < LATEST:
            for time in self.zone.instants(match):
                if time > instant:
                    return time if time < LATEST else None
            skipped = self.zone.change(match)
            if self.fixed and skipped.size < CORRECTION:
                return skipped.instant
            if match > wall + _RARE:
                # We try no more matches, because clock changes skip all of them. An example is a
                # line that matches only the skipped hour on the Sundays when summer time begins.
                return None
            match = self.match_after(skipped.end - 1)
        return None


@dataclass(frozen=True, slots=True)
class _Field:
    """The values that one of the five fields accepts."""

    name: str  # the name of the field, for error messages
    low: int  # the smallest number
    high: int  # the largest number. For the day of week it is 7, which is Sunday, like 0
    size: int  # the number of different values
    allowed: str  # the accepted values, for error messages
    # The names of the numbers in order, beginning with the name of ``low``; empty if the numbers
    # have no names.
    names: tuple[str, ...] = ()

    def is_all(self, written: str) -> bool:
        """Whether a field matches every value: it is ``*`` or a list of all numbers."""
        return written == "*" or written.count(",") + 1 == self.size

    def number(self, word: str) -> int:
        """Convert one word of the field, a name or digits, to a number."""
        if word.upper() in self.names:
            return self.low + self.names.index(word.upper())
        if word.isdecimal() and self.low <= int(word) <= self.high:
            return int(word)
        raise self._refusal(word)

    def words(self, items: list[str]) -> list[str]:
        """Convert the items of a list to numbers as text, sorted and without duplicates.

        The list with the single item ``*`` is returned unchanged.
        """
        if items == ["*"]:
            return items
        return [str(n) for n in sorted({n for item in items for n in self._numbers(item)})]

    def _numbers(self, item: str) -> Iterator[int]:
        parts = _ITEM.fullmatch(item)
        step = int(parts["step"] or 1) if parts else 0
        if parts is None or step == 0:
            raise self._refusal(item)
        begin = self.number(parts["begin"] or str(self.low))
        # The last value is below ``begin`` if that is Sunday as 7, from which no day is left.
        last = (
            begin if parts["begin"] and not parts["step"] else max(begin, self.low + self.size - 1)
        )
        end = self.number(parts["end"]) if parts["end"] else last
        if end < begin:
            end += self.size  # the range wraps around the end of the field
        return (self.low + (n - self.low) % self.size for n in range(begin, end + 1, step))

    def _refusal(self, part: str) -> InvalidError:
        fix = f"use {self.allowed}, ranges such as 1-5, steps from /1 on, and lists"
        return InvalidError("cron", f"{self.name} {part!r} is not allowed; {fix}")


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = (
    _Field("minute", 0, 59, 60, "0-59"),
    _Field("hour", 0, 23, 24, "0-23"),
    _Field("day of month", 1, 31, 31, "1-31, or just L, or just 15W"),
    _Field("month", 1, 12, 12, "1-12, JAN-DEC", _MONTHS),
    _Field("day of week", 0, 7, 7, "0-7, SUN-SAT, FRI#1 to FRI#5, 5L", _WEEKDAYS),
)
_ITEM = re.compile(r"(?:\*|(?P<begin>\w+)(?:-(?P<end>\w+))?)(?:/(?P<step>\d+))?")
_NEAREST = re.compile(r"(\d+)W", re.IGNORECASE)
_OF_MONTH = re.compile(r"(?P<day>\w+)(?:#(?P<nth>[1-5])|L)|L(?P<last>\w+)", re.IGNORECASE)


def excessive_steps(text: str) -> Iterator[str]:
    """Find the steps in a valid cron line that are longer than their field, such as ``*/90``."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        return  # another trigger
    for kind, written in zip(_FIELDS, fields, strict=True):
        for item in written.split(","):
            parts = _ITEM.fullmatch(item)
            if parts and int(parts["step"] or 1) > kind.size:
                [first] = kind.words([item])
                yield (
                    f"{kind.name} {item!r} matches only {first}, because its step is longer than"
                    " the field"
                )


def _split(text: str) -> list[str]:
    """Split a line, or the line that a name such as ``@daily`` means, into its five fields.

    The fields keep their upper and lower case, so that an error shows a field as it was written.
    """
    line = text.strip(" \t")
    if line.startswith("@"):
        if line not in ALIASES:
            known = ", ".join(ALIASES)
            raise InvalidError("cron", f"{line!r} is unknown; use one of {known}, or @every 90")
        line = ALIASES[line]
    if not line.isascii():
        raise InvalidError("cron", "has characters beyond ASCII; use plain digits, blanks and tabs")
    fields = re.findall(r"[^ \t]+", line)
    if len(fields) != len(_FIELDS):
        wanted = ", ".join(known.name for known in _FIELDS)
        count = "1 field" if len(fields) == 1 else f"{len(fields)} fields"
        raise InvalidError("cron", f"has {count}; write five: {wanted}")
    return fields


def _rewrite(minute: str, hour: str, day: str, month: str, weekday: str) -> tuple[str, bool]:
    """Rewrite a line for croniter. Also return whether a day needs to match only one day field.

    Ranges and steps are replaced by lists, because croniter interprets ``5-5`` as the whole field,
    and miscounts steps in a range that wraps.
    """
    day, weekday = ("*" if days == "?" else days for days in (day, weekday))
    either = not (day.startswith("*") or weekday.startswith("*"))
    days, months, weekdays = _days(day), _MONTH.words(month.split(",")), _weekdays(weekday)
    if (day[-1] in "Ww" or not {*weekday}.isdisjoint("#Ll")) and "*" not in (day, weekday):
        # We refuse such a line, because croniter treats these forms separately, and would require
        # both fields to match.
        pair = f"day of month {day!r} and day of week {weekday!r}"
        raise InvalidError("cron", f"{pair} do not go together; write * for one of them")
    longest = max((monthrange(2000, int(n))[1] for n in months if n != "*"), default=31)
    if all(word.isdecimal() and int(word) > longest for word in days):
        if not either:
            never = f"day of month {day!r} does not come in month {month!r}"
            raise InvalidError("cron", f"{never}; use a day that does, or L for the last one")
        # No month has such a day, so only the weekdays are kept. Otherwise croniter would search 50
        # years for the day first.
        days = ["*"]
    times = [_MINUTE.words(minute.split(",")), _HOUR.words(hour.split(","))]
    return " ".join(",".join(words) for words in (*times, days, months, weekdays)), either


def _days(text: str) -> list[str]:
    if nearest := _NEAREST.fullmatch(text):
        return [f"{_DAY.number(nearest[1])}W"]
    items = text.split(",")
    numbers = [item for item in items if item not in ("L", "l")]
    return _DAY.words(numbers) + ["L"] * (len(numbers) < len(items))


def _weekdays(text: str) -> list[str]:
    items = text.split(",")
    places = [place for item in items if (place := _OF_MONTH.fullmatch(item))]
    if places and len(places) < len(items):
        raise InvalidError("cron", f"day of week {text!r} mixes FRI#3 or 5L with others; use one")
    return [_place(place) for place in places] or _WEEKDAY.words(items)


def _place(match: re.Match[str]) -> str:
    day = _WEEKDAY.number(match["day"] or match["last"])
    return f"{day}#{match['nth']}" if match["nth"] else f"L{day}"


def _calendar(line: str, *, either: bool) -> Callable[[int], int]:
    """Return a function that finds the first match strictly after a wall time.

    Only this function uses croniter. It imports croniter when the first line is parsed that needs
    it, because most lines do not. Threads share the returned function, and a croniter object stores
    the time of its last search. So each call of the function searches with a copy of the object.
    """
    if plain := find_matches(line, either=either):

        def match_plain_after(wall: int) -> int:
            # See below: a match of the year 9999 may be followed by one that no date can represent.
            cycles, wall = divmod(wall, _GREGORIAN_CYCLE)
            return cycles * _GREGORIAN_CYCLE + plain(wall)

        return match_plain_after

    from croniter import croniter  # noqa: PLC0415

    untouched = vars(croniter(line, start_time=0.0, ret_type=float, day_or=either))

    def match_after(wall: int) -> int:
        # The wall time is moved to the same date in the first 400 years after 1970, because
        # croniter fails near the limits of datetime.
        cycles, wall = divmod(wall, _GREGORIAN_CYCLE)
        search = croniter.__new__(croniter)  # ten times as fast as copy.copy()
        search.__dict__.update(untouched)
        return cycles * _GREGORIAN_CYCLE + int(search.get_next(start_time=float(wall)))

    return match_after


# --- the wall times that match a line -----------------------------------------------------------

_SECONDS_OF_DAY = 86_400
_MINUTES = 60
_EPOCH = date(1970, 1, 1).toordinal()
_ONE_DAY = timedelta(days=1)
_DECEMBER = 12

_ALL = tuple(range(60)), tuple(range(24))
"""The numbers that ``*`` means in the fields minute and hour."""


def find_matches(line: str, *, either: bool) -> Callable[[int], int] | None:
    """Return a function that finds the first match strictly after a wall time; None for ``L``.

    The function accepts the wall times of the years 1 to 9600, and must not be called with a line
    that has no match.
    """
    fields = line.split()
    if not all(field == "*" or field.replace(",", "").isdecimal() for field in fields):
        return None
    minutes, hours, days, months, weekdays = (
        None if field == "*" else tuple(map(int, field.split(","))) for field in fields
    )
    return _WallTimes(
        minutes or _ALL[0], hours or _ALL[1], days, months, weekdays, either
    ).match_after


@dataclass(frozen=True, slots=True)
class _WallTimes:
    """The wall times that match a line; a day field or a month that is None matches every day."""

    minutes: Sequence[int]
    hours: Sequence[int]
    days: Collection[int] | None
    months: Collection[int] | None
    weekdays: Collection[int] | None
    either: bool

    def match_after(self, wall: int) -> int:
        """The first match strictly after a wall time."""
        number, second = divmod(wall, _SECONDS_OF_DAY)
        day = date.fromordinal(_EPOCH + number)
        if self._is_match(day):
            hour, minute = divmod(second // 60 + 1, _MINUTES)
            place = bisect_left(self.hours, hour)
            if place < len(self.hours):
                after = 0
                if self.hours[place] == hour:
                    after = bisect_left(self.minutes, minute)
                    if after == len(self.minutes):
                        after, place = 0, place + 1
                if place < len(self.hours):
                    return self._instant(day, self.hours[place], self.minutes[after])
        return self._instant(self._day_after(day), self.hours[0], self.minutes[0])

    def _day_after(self, day: date) -> date:
        day += _ONE_DAY
        while not self._is_match(day):
            if self.months is None or day.month in self.months:
                day += _ONE_DAY
            elif day.month == _DECEMBER:
                day = date(day.year + 1, 1, 1)
            else:
                day = date(day.year, day.month + 1, 1)
        return day

    def _is_match(self, day: date) -> bool:
        if self.months is not None and day.month not in self.months:
            return False
        in_month = self.days is None or day.day in self.days
        in_week = self.weekdays is None or day.isoweekday() % 7 in self.weekdays
        if self.either and self.days is not None and self.weekdays is not None:
            return in_month or in_week
        return in_month and in_week

    def _instant(self, day: date, hour: int, minute: int) -> int:
        return (day.toordinal() - _EPOCH) * _SECONDS_OF_DAY + (hour * _MINUTES + minute) * 60


# --- what clock changes do to a line ----------------------------------------------------------

# The effects of a clock change on a time that a cron line matches.
LATE = "runs once, right after the clock change"
LOST = "skipped"
ONCE = "runs the first time only"
TWICE = "runs both times"


@dataclass(frozen=True, slots=True)
class ClockChangeEffect:
    """The effect of a clock change on a cron line: `LATE`, `LOST`, `ONCE` or `TWICE`."""

    change: Change
    effect: str
    text: str


def clock_change_effects(trigger: object, start: int, end: int) -> Iterator[ClockChangeEffect]:
    """The effects of the clock changes after ``start``, up to ``end``; only cron lines have any.

    A clock change affects a line if it skips or repeats a time of day that the line matches. But a
    line that runs every hour still does so, and is not affected.
    """
    if not isinstance(trigger, Cron) or (trigger.hourly and not trigger.fixed):
        return
    for change in trigger.zone.changes(min(start, LATEST), min(end, LATEST)):
        wall = trigger.match_after(change.start - 1)
        if wall >= change.end:
            continue
        times = wall_text(wall)
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


def wall_text(wall: int) -> str:
    """A wall time as text, without seconds."""
    return datetime.fromtimestamp(wall, UTC).strftime("%Y-%m-%d %H:%M")
