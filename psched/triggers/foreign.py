"""Names the line to write instead of an expression of another program.

psched refuses the expressions of Quartz, AWS, systemd, Jenkins and others, because the same number
is another day of the week there. Each function here recognises one form in a refused text, so that
the error contains a line that means the same, and can be copied.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple
from unicodedata import normalize

from psched.base.errors import InvalidError
from psched.base.stable_hash import stable_hash
from psched.triggers.calendar_event import UNITS, NoLineError, times_of

_TRAP = (
    "as a day of the week, 5 is Friday here, Thursday in Quartz and AWS, Saturday in APScheduler"
)

_FIELDS = 5
_ZONE = re.compile(r"(?:CRON_)?TZ ?= ?(\S+) (.+)")

_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LONG_NAME = re.compile(r"\b([a-z]{3})[a-z]*", re.IGNORECASE)
_DAY_NUMBER = re.compile(r"(?<![#/\d])\d+")

_LONGEST = 366 * 86_400
_INTERVAL = re.compile(
    r"(\d{1,9}) ?([smhdw]|(?:sec(?:ond)?|min(?:ute)?|h(?:ou)?r|day|week)s?)(?![a-z])[ ,]*"
)

_RANDOM = re.compile(r"(?<![A-Z])H(?:\((\d+)-(\d+)\))?(?:/([1-9]\d*))?(?![A-Z])|(\d*)~(\d*)")
_RANGES = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
"""The numbers for which ``H`` stands in the five fields in Jenkins."""

_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
TIME_FIELD = re.compile(
    rf"(?=.*[\w*?~])(?:[\d*,/?#LW~-]|{'|'.join((*_DAYS, *_MONTHS))})+", re.IGNORECASE
)
"""Matches a word that looks like a field of a time."""


class _Proposal(NamedTuple):
    """A line that means what a refused text means in another program, with what is said of it."""

    before: str
    line: str
    after: str = ""
    is_numbered: bool = False  # whether the text has a number as the day of the week


def explained(
    error: InvalidError, text: str, refusal: Callable[[str], InvalidError | None]
) -> InvalidError:
    """Return an error that also names the line to write; the same error if there is none.

    Only lines are named for which ``refusal`` returns None, because psched accepts them.
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
        try:
            proposals = [each for each in form(plain) if refusal(each.line) is None]
        except NoLineError as why:
            return InvalidError("cron", f"as a calendar event of systemd, it has {why.problem}")
        if proposals:
            texts = [] if form in _WHOLE else [error.problem]
            texts += [f"{before} {line!r}{after}" for before, line, after, _ in proposals]
            texts += [_TRAP] if any(each.is_numbered for each in proposals) else []
            return InvalidError("cron", "; ".join(texts))
    return error


def as_interval(text: str) -> str | None:
    """Write an interval such as ``1h30m`` with one unit; None if it is none, or is not allowed."""
    total = sum(int(number) * UNITS[unit[0]] for number, unit in _INTERVAL.findall(text))
    if _INTERVAL.sub("", text) or not 0 < total <= _LONGEST:
        return None
    unit = next(unit for unit in ("d", "h", "m", "s") if total % UNITS[unit] == 0)
    return f"{total // UNITS[unit]}{unit}"


def _aws(text: str) -> Iterable[_Proposal]:
    match = re.fullmatch(r"cron\((.+)\)", text, re.IGNORECASE)
    fields = match[1].split() if match else []
    if len(fields) in {5, 6}:
        yield from _days("is AWS's form of", [*fields, "*"][:6])


def _interval(text: str) -> Iterable[_Proposal]:
    bare = re.sub(r"^@?every (?=[a-z])", "1 ", text.lower())
    if interval := as_interval(re.sub(r"^@?every |^rate\((.*)\)$", r"\1", bare)):
        yield _Proposal("is an interval; write", f"@every {interval}")


def _calendar(text: str) -> Iterable[_Proposal]:
    """A calendar event of systemd, such as ``Mon..Fri *-*-* 08:00``; may raise NoLineError."""
    try:
        cron, zone, delay = times_of(re.sub(r"^(OnCalendar ?= ?|@)", "", text), "")
    except NoLineError:
        raise
    except InvalidError:
        return
    after = f" with the delay {delay}s" if delay else ""
    after += f", with {zone} in the option or field timezone" if zone else ""
    yield _Proposal("is systemd's form of", cron, after)


def _names(text: str) -> Iterable[_Proposal]:
    """Names that are not abbreviated, such as ``monday``."""
    yield _Proposal("write", _LONG_NAME.sub(r"\1", text).upper())


def _random(text: str) -> Iterable[_Proposal]:
    """A number that another program chooses: ``H`` in Jenkins, ``0~30`` in cronie."""

    def chosen(limits: tuple[int, int], match: re.Match[str]) -> str:
        low, high = int(match[1] or match[4] or limits[0]), int(match[2] or match[5] or limits[1])
        step = int(match[3] or high - low + 1)
        start = low + stable_hash(f"{text} {limits}", max(min(step, high - low + 1), 1))
        return f"{start}-{high}/{step}" if match[3] else str(start)

    fields = text.split()
    if len(fields) == _FIELDS and _RANDOM.search(text):
        pairs = zip(_RANGES, fields, strict=True)
        line = " ".join(_RANDOM.sub(partial(chosen, limits), field) for limits, field in pairs)
        sign, whose = ("~", "cronie") if "~" in text else ("H", "Jenkins")
        yield _Proposal(f"{sign} is a number that {whose} chooses; choose one, as in", line)


def _more_fields(text: str) -> Iterable[_Proposal]:
    """Seconds in front, a year or seconds at the end, or a command."""
    fields = text.split()
    is_name = text.startswith("@")
    times = fields[:1] if is_name else [*takewhile(TIME_FIELD.fullmatch, fields)]
    if len(times) < len(fields) and (is_name or len(times) == _FIELDS):
        yield _Proposal("the command is no part of the line; write", " ".join(times))
    elif times == fields and len(fields) in {6, 7}:
        yield from _days("if the first field is seconds, it is", [*fields[1:], "*"][:6], fields[0])
        if len(fields) == _FIELDS + 1 and re.fullmatch(r"[0-5]?\d", fields[5]):
            line, after = _with_second(fields[5], fields[:5])
            yield _Proposal("if the last field is seconds, it is", line, after)
        elif len(fields) == _FIELDS + 1:
            yield from _days("if the last field is a year, it is", fields)


def _days(before: str, fields: Sequence[str], second: str = "0") -> Iterable[_Proposal]:
    """Convert five fields and a year; if one is ``?``, as in Quartz and AWS, 1 is Sunday."""
    minute, hour, day, month, weekday, year = fields
    is_quartz = "?" in {day, weekday}
    is_numbered = _DAY_NUMBER.search(weekday) is not None
    day, weekday = ("*" if each == "?" else each for each in (day, weekday))
    if is_quartz:
        names = dict(enumerate(_DAYS, start=1))
        weekday = _DAY_NUMBER.sub(lambda number: names.get(int(number[0]), "none"), weekday)
        weekday = "SAT" if weekday == "L" else weekday
    told = "" if "*" in {day, weekday} else ", on each day that matches one of the two day fields"
    if re.fullmatch(r"\d{4}[\d,/-]*", year):
        told += ", but in every year"
    elif year != "*":
        return
    line, after = _with_second(second, [minute, hour, day, month, weekday])
    yield _Proposal(before, line, after + told, is_numbered)


def _with_second(second: str, five: Sequence[str]) -> tuple[str, str]:
    """A line that also expresses seconds, with the text after it; empty if no line does."""
    step = re.fullmatch(r"\*|[*0]/([1-9]\d?)", second)
    if step and {*five} == {"*"} and 60 % int(step[1] or 1) == 0:
        return f"@every {step[1] or 1}s", ""
    if not re.fullmatch(r"[0-5]?\d", second):
        return "", ""
    return " ".join(five), f" with the delay {int(second)}s" if int(second) else ""


# A text of the first forms is no cron line, so that nobody asks how many fields it has.
_WHOLE = (_aws, _interval, _calendar)
_PARTS = (_names, _random, _more_fields)
