"""Rewrites cron lines so that `psched.triggers.cron` finds the times that PerfectSched finds.

PerfectSched reads lines with the Ruby library chrono (r7kamura/chrono on GitHub). In chrono, unlike
in `psched.triggers.cron`:

* only a day field that is exactly ``*`` matches every day without restriction; ``*/2`` is a
  restriction. If both day fields are restrictions, a day needs to match only one of them;
* if the day of month is exactly ``L``, it matches the last day of the month, and the day of week is
  ignored; in a list, ``L`` has no effect;
* ``5/15`` means only 5;
* in the day of week, every digit 7 is replaced by 0 before parsing: ``0-7`` becomes ``0-0``, which
  is Sunday, and ``5-7`` becomes ``5-0``, which is refused;
* ranges do not wrap, and there is no ``?``, ``15W``, ``FRI#3``, ``5L`` or ``@midnight``;
* a list can end with a comma, and the star in ``1*`` is replaced by the field's range.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from psched.base.errors import InvalidError

_LINES = ("@yearly", "@annually", "@monthly", "@weekly", "@daily", "@hourly")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?(?:/([0-9]+))?")


def rewritten(text: str) -> str:
    """Rewrite a PerfectSched line so that `Cron` finds its times, unless it does already."""
    if text in _LINES:
        return text
    fields = re.findall(r"[^ \t]+", text)
    if len(fields) != len(_FIELDS):
        known = ", ".join(_LINES)
        raise InvalidError("cron", f"is not five fields, nor what PerfectSched knows: {known}")
    minute, hour, day, month, weekday = (
        _Part(kind, written) for kind, written in zip(_FIELDS, fields, strict=True)
    )
    if day.written == "L":
        days = ["L", "*"]
    elif "*" in {day.written, weekday.written}:
        days = [day.same, weekday.same]
    else:
        # Both day fields are restrictions, so for chrono a day needs to match only one of them.
        # psched would require both if one field began with a star, so such a field is converted to
        # a list.
        days = [part.listed if part.written[0] == "*" else part.same for part in (day, weekday)]
    line = [minute.same, hour.same, days[0], month.same, days[1]]
    return text if line == fields else " ".join(line)


@dataclass(frozen=True, slots=True)
class _Field:
    """What chrono accepts in one of the five fields."""

    name: str  # the name of the field, for messages
    low: int  # the smallest number
    high: int  # the largest number
    # Texts such as ``jan``, each with the text that replaces it before the field is parsed.
    names: Mapping[str, str]
    # A pattern that the whole field must match before any text is replaced.
    pattern: re.Pattern[str]
    plain: re.Pattern[str]  # a pattern of the items that chrono and psched interpret alike

    def numbers(self, written: str) -> frozenset[int]:
        """Return the numbers that the text of a field matches."""
        if not self.pattern.fullmatch(written):
            raise self._refusal(written)
        items = written.rstrip(",").split(",")
        if len(items) > 1:
            return frozenset().union(*(self._item(item) for item in items))
        return self._item(written)

    def _item(self, written: str) -> frozenset[int]:
        if self.name == "day of month" and written == "L":
            return frozenset()
        text = written.replace("*", f"{self.low}-{self.high}").lower()
        for name, number in self.names.items():
            text = text.replace(name, number)
        match = _RANGE.fullmatch(text)
        if match is None:
            raise self._refusal(written)
        begin = int(match[1])
        end, step = int(match[2] or begin), int(match[3] or 1)
        if not self.low <= begin <= end <= self.high or step == 0:
            raise self._refusal(written)
        return frozenset(range(begin, end + 1, step))

    def _refusal(self, written: str) -> InvalidError:
        return InvalidError("cron", f"{self.name} {written!r} is refused by PerfectSched's workers")


class _Part:
    """One field of a line, parsed."""

    def __init__(self, kind: _Field, written: str) -> None:
        self.written = written  # the text of the field
        self._numbers = kind.numbers(written)
        if not self._numbers and written != "L":
            raise InvalidError("cron", f"{kind.name} {written!r} is never true")
        self._plain = all(kind.plain.fullmatch(item) for item in written.split(","))

    @property
    def listed(self) -> str:
        """The field as a list of numbers."""
        return ",".join(str(number) for number in sorted(self._numbers))

    @property
    def same(self) -> str:
        """The field for psched: unchanged if psched and chrono interpret it alike, else a list."""
        return self.written if self._plain else self.listed


def _field(name: str, low: int, high: int) -> _Field:
    """Create a field whose numbers have no names."""
    plain = _plain("[0-9]+", "[0-9]+")
    return _Field(name, low, high, {}, re.compile(".*"), plain)


def _named_field(
    name: str, low: int, high: int, names: Mapping[str, str], *, digits: str, end: str
) -> _Field:
    """Create a field whose numbers have names."""
    words = "|".join(word for word in names if word.isalpha())
    atom = f"(?:[0-9]+|{words})"
    item = rf"(?:\*|{atom}(?:-{atom})?)(?:/[0-9]+)?"
    pattern = re.compile(rf"{item}(?:,{item})*{end}", re.IGNORECASE)
    return _Field(name, low, high, names, pattern, _plain(f"(?:{digits}+|{words})", f"{digits}+"))


def _plain(atom: str, step: str) -> re.Pattern[str]:
    """Return a pattern of the items that chrono and psched interpret alike.

    In such an item, a step follows only a range or a star.
    """
    return re.compile(rf"(?:\*|{atom}-{atom})(?:/{step})?|{atom}|7", re.IGNORECASE)


_MONTHS = {
    "jan": "1", "feb": "2", "mar": "3", "apr": "4", "may": "5", "jun": "6",
    "jul": "7", "aug": "8", "sep": "9", "oct": "10", "nov": "11", "dec": "12",
}  # fmt: skip
_WEEKDAYS = {
    "7": "0", "sun": "0", "mon": "1", "tue": "2", "wed": "3", "thu": "4", "fri": "5", "sat": "6",
}  # fmt: skip
_FIELDS = (
    _field("minute", 0, 59),
    _field("hour", 0, 23),
    _field("day of month", 1, 31),
    _named_field("month", 1, 12, _MONTHS, digits="[0-9]", end=",*"),
    _named_field("day of week", 0, 6, _WEEKDAYS, digits="[0-689]", end=""),
)
