"""Names the line to write instead of an expression of another program.

psched refuses the expressions of Quartz, AWS, systemd, Jenkins and others, because it cannot know
whose rules a number follows: as a day of the week, 5 is Friday in a crontab, Thursday in Quartz and
AWS, and Saturday in APScheduler. Each function here recognises one form in a refused text. The
error then contains a line that means the same, and can be copied.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import takewhile
from typing import NamedTuple
from unicodedata import normalize

from psched.base.errors import InvalidError
from psched.base.stable_hash import stable_hash

_TRAP = "as a day of the week, 5 is Friday here, Thursday in Quartz and AWS, Saturday in APScheduler"

_FIELDS = 5
_ZONE = re.compile(r"(?:CRON_)?TZ ?= ?(\S+) (.+)")

_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_DAY_NUMBER = re.compile(r"(?<![#/\d])\d+")
_LONG_NAME = re.compile(
    r"\b(?:(sun|mon|tue|wed(?=n)|thu(?=r)|fri|sat(?=u))(?:s|nes|rs|ur)?day"
    r"|(jan|feb)r?uary|(mar)ch|(apr)il|(jun)e|(jul)y|(aug)ust|(sep|oct|nov|dec)(?:tem|o|em)ber)\b",
    re.IGNORECASE,
)

_UNITS = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "w": 604_800}
"""The units of intervals in seconds, by their first letters."""

_INTERVAL = re.compile(
    r"(\d{1,9}(?:\.\d{1,6})?) ?"
    r"(ms|[smhdw]|(?:sec(?:ond)?|min(?:ute)?|h(?:ou)?r|day|week)s?)(?![a-z])[ ,]*"
)

_CALENDAR_WORDS = {
    "minutely": "* * * * *",
    "hourly": "0 * * * *",
    "daily": "0 0 * * *",
    "weekly": "0 0 * * MON",
    "monthly": "0 0 1 * *",
    "quarterly": "0 0 1 1,4,7,10 *",
    "semiannually": "0 0 1 1,7 *",
    "biannually": "0 0 1 1,7 *",
    "yearly": "0 0 1 1 *",
    "annually": "0 0 1 1 *",
}
"""The names of times in systemd, and the lines that mean the same."""

_WEEKDAYS = re.compile(r"[a-z]{3,9}(?:(?:\.\.|-|,)[a-z]{3,9})*,?", re.IGNORECASE)
_DATE = re.compile(r"(?:\*-)?([\d*./,]+)([-~])([\d*./,]+)")
_TIME = re.compile(r"([\d*./,]+):([\d*./,]+)(?::([\d*./,]+))?")

_RANDOM = re.compile(r"(?<![A-Z])H(?:\((\d+)-(\d+)\))?(?:/([1-9]\d*))?(?![A-Z])|(\d*)~(\d*)")
_RANGES = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
"""The numbers for which ``H`` stands in the five fields in Jenkins."""

_TIME_FIELD = re.compile(rf"(?:[\d*,/?#LW~-]|{'|'.join(_DAYS)})+", re.IGNORECASE)


class _Proposal(NamedTuple):
    """A line that means what a refused text means in another program.

    Attributes:
        before: in which case the line means that.
        line: the line; None if no line means it.
        after: what must be said or set besides.
        is_numbered: whether the text has a number as the day of the week.
    """

    before: str
    line: str | None
    after: str = ""
    is_numbered: bool = False

    def __str__(self) -> str:
        if self.line is None:
            return f"{self.before.removesuffix(' it is')} no line means it"
        return f"{self.before} {self.line!r}{self.after}"


def explained(
    error: InvalidError, text: str, refusal: Callable[[str], InvalidError | None]
) -> InvalidError:
    """Return an error that also names the line to write; the same error if there is none.

    Args:
        error: the error with which the text was refused.
        text: the text of a trigger.
        refusal: returns the error with which psched refuses a line, or None if it accepts the line.
            Only accepted lines are named.
    """
    plain = " ".join(normalize("NFKC", text).strip(" \t\r\n'\"`").split()).replace(", ", ",")
    plain = plain.lower() if plain.startswith("@") else plain
    if plain != text and refusal(plain) is None:
        return InvalidError("cron", f"{error.problem}; write {plain!r}")
    if prefix := _ZONE.fullmatch(plain):
        zone, line = prefix.groups()
        told = f"begins with a time zone; {zone} belongs into the option or field timezone"
        inner = refusal(line)
        rest = f"write {line!r}" if inner is None else explained(inner, line, refusal).problem
        return InvalidError("cron", f"{told}; for the rest: {rest}")
    for form in (*_WHOLE, *_PARTS):
        proposals = [each for each in form(plain) if each.line is None or not refusal(each.line)]
        if any(each.line for each in proposals):
            told = [] if form in _WHOLE else [error.problem]
            trap = [_TRAP] if any(each.is_numbered for each in proposals) else []
            return InvalidError("cron", "; ".join([*told, *map(str, proposals), *trap]))
    return error


def as_interval(text: str) -> str | None:
    """Write an interval such as ``1h30m`` or ``5 minutes`` with one unit.

    None if the text is no interval of whole seconds.
    """
    parts = _INTERVAL.findall(text)
    if not parts or _INTERVAL.sub("", text):
        return None
    total = sum(
        Fraction(number) * (Fraction(1, 1000) if unit == "ms" else _UNITS[unit[0]])
        for number, unit in parts
    )
    if total.denominator != 1 or total == 0:
        return None
    unit = next(unit for unit in ("d", "h", "m", "s") if total % _UNITS[unit] == 0)
    return f"{total // _UNITS[unit]}{unit}"


# --- texts that are no cron line at all ------------------------------------------------


def _aws(text: str) -> Iterable[_Proposal]:
    match = re.fullmatch(r"cron\((.+)\)", text, re.IGNORECASE)
    fields = match[1].split() if match else []
    if len(fields) in {5, 6}:
        yield from _days("is AWS's form of", [*fields, "*"][:6])


def _interval(text: str) -> Iterable[_Proposal]:
    bare = re.sub(r"^(?:rate\((.*)\)|every (.*))$", r"\1\2", text.lower())
    if bare != text.lower() and not bare[:1].isdigit():
        bare = f"1 {bare}"
    if interval := as_interval(bare):
        yield _Proposal("is an interval; write", f"@every {interval}")


def _calendar(text: str) -> Iterable[_Proposal]:
    """A calendar expression of systemd, such as ``Mon..Fri *-*-* 08:00``."""
    before = "is systemd's form of"
    if line := _CALENDAR_WORDS.get(text.lower().replace("-", "").removeprefix("@")):
        yield _Proposal(before, line)
        return
    words = text.split()
    weekday, date, time = (
        pattern.fullmatch(words.pop(0)) if words and pattern.fullmatch(words[0]) else None
        for pattern in (_WEEKDAYS, _DATE, _TIME)
    )
    if len(words) > 1 or not (date or time or (weekday and not words)):
        return
    days = "*" if weekday is None else weekday[0].rstrip(",").replace("..", "-")
    days = re.sub(r"[a-z]+", lambda name: name[0][:3], days, flags=re.IGNORECASE).upper()
    month, sign, day = date.groups() if date else ("*", "-", "*")
    hour, minute, second = time.groups() if time else ("0", "0", None)
    second, minute, hour, day, month = (
        re.sub(r"\b0+(?=\d)", "", (each or "0").replace("..", "-"))
        for each in (second, minute, hour, day, month)
    )
    if sign == "~" or "*" not in {day, days}:
        # In systemd, both day fields must match. Only the following days can be written here.
        weeks = {f"{n * 7 - 6}-{n * 7}": f"{days}#{n}" for n in (1, 2, 3, 4)}
        last = {"1": ("L", "*")} if days == "*" else {"7/1": ("*", f"{days}L")}
        day, days = last.get(day, ("", "")) if sign == "~" else ("*", weeks.get(day, ""))
    line, after = _with_second(second, [minute, hour, day, month, days])
    zone = f", with {words[0]} in the option or field timezone" if words else ""
    yield _Proposal(before, line, after + zone)


# --- cron lines with something else in them --------------------------------------------


def _names(text: str) -> Iterable[_Proposal]:
    """Names that are not abbreviated, such as ``monday``."""
    short = _LONG_NAME.sub(lambda name: "".join(filter(None, name.groups())).upper(), text)
    yield _Proposal("write", short)


def _every(text: str) -> Iterable[_Proposal]:
    """An interval of Go, such as ``@every 1h30m``."""
    if text.startswith("@every") and (interval := as_interval(text.removeprefix("@every").strip())):
        yield _Proposal("write", f"@every {interval}")


def _random(text: str) -> Iterable[_Proposal]:
    """A number that another program chooses: ``H`` in Jenkins, ``0~30`` in cronie."""
    fields = text.split()
    if len(fields) == _FIELDS and _RANDOM.search(text):
        line = " ".join(_chosen(text, *each) for each in zip(fields, _RANGES, strict=True))
        sign, whose = ("~", "cronie") if "~" in text else ("H", "Jenkins")
        yield _Proposal(f"{sign} is a number that {whose} chooses; choose one, as in", line)


def _chosen(text: str, field: str, numbers: tuple[int, int]) -> str:
    """Replace the numbers that another program chooses in a field."""

    def chosen(match: re.Match[str]) -> str:
        low, high = int(match[1] or match[4] or numbers[0]), int(match[2] or match[5] or numbers[1])
        count = max(high - low + 1, 1)
        start = low + stable_hash(f"{text} {numbers}", min(int(match[3] or count), count))
        return f"{start}-{high}/{match[3]}" if match[3] else str(start)

    return _RANDOM.sub(chosen, field)


def _more_fields(text: str) -> Iterable[_Proposal]:
    """Seconds in front, a year or seconds at the end, or a command."""
    fields = text.split()
    is_name = text.startswith("@")
    times = fields[:1] if is_name else [*takewhile(_TIME_FIELD.fullmatch, fields)]
    if len(times) < len(fields) and (is_name or len(times) == _FIELDS):
        yield _Proposal("the command is no part of the line; write", " ".join(times))
    elif times == fields and len(fields) in {6, 7}:
        yield from _days("if the first field is seconds, it is", [*fields[1:], "*"][:6], fields[0])
        if len(fields) == _FIELDS + 1 and re.fullmatch(r"[0-5]?\d", fields[5]):
            line, after = _with_second(fields[5], fields[:5])
            yield _Proposal("if the last field is seconds, it is", line, after)
        elif len(fields) == _FIELDS + 1:
            yield from _days("if the last field is a year, it is", fields)


def _days(before: str, fields: Sequence[str], second: str | None = None) -> Iterable[_Proposal]:
    """Convert five fields and a year of Quartz, AWS or Spring.

    In Quartz and AWS one day field is ``?``, and the week begins with Sunday as 1. Spring, in which
    a line begins with seconds, accepts ``?``, too, but there Sunday is 0 or 7.
    """
    minute, hour, day, month, weekday, year = fields
    is_quartz = "?" in {day, weekday}
    is_numbered = _DAY_NUMBER.search(weekday) is not None
    day, weekday = ("*" if each == "?" else each for each in (day, weekday))
    meanings = {before: _quartz_weekday(weekday) if is_quartz else weekday}
    if second is not None and is_quartz and is_numbered:
        meanings = {"in Quartz, it is": meanings[before], "in Spring, it is": weekday}
    told = "" if "*" in {day, weekday} else ", on each day that matches one of the two day fields"
    if re.fullmatch(r"\d{4}[\d,/-]*", year):
        told += ", but in every year"
    elif year != "*":
        return
    for which, days in meanings.items():
        line, after = _with_second(second or "0", [minute, hour, day, month, days])
        yield _Proposal(which, line, after + told, is_numbered)


def _quartz_weekday(weekday: str) -> str:
    """Replace the numbers from 1, which is Sunday, to 7 by names; others by what is refused."""
    if weekday == "L":
        return "SAT"
    return _DAY_NUMBER.sub(
        lambda number: _DAYS[int(number[0]) - 1] if 1 <= int(number[0]) <= len(_DAYS) else "none",
        weekday,
    )


def _with_second(second: str, five: Sequence[str]) -> tuple[str | None, str]:
    """A line that also expresses seconds, with the text after it; None if no line does."""
    step = re.fullmatch(r"\*|[*0]/([1-9]\d?)", second)
    if step and {*five} == {"*"} and 60 % int(step[1] or 1) == 0:  # noqa: PLR2004
        return f"@every {step[1] or 1}s", ""
    if not re.fullmatch(r"[0-5]?\d", second):
        return None, ""
    return " ".join(five), f" with the delay {int(second)}s" if int(second) else ""


_Form = Callable[[str], Iterable[_Proposal]]
_WHOLE: Sequence[_Form] = (_aws, _interval, _calendar)
_PARTS: Sequence[_Form] = (_names, _every, _random, _more_fields)
