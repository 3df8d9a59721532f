"""Reads and prints times and durations in the forms that users write and read.

All times are in the zone of the reader (`reader_zone`), those that are shown and those that are
read, so that a time can be copied from one command to another.
"""

import os
import re
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from math import floor

from typing_extensions import override

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds, format_duration
from psched.core.asked_time import parse_instant
from psched.triggers.zone import Zone, find_zone, zone_names

_NEAR = 7 * 86_400
"""The distance from now, in seconds, within which a weekday and a day tell the date."""

_HALF_A_YEAR = 182 * 86_400

_SHORT_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))

# In quotes is what somebody has written; what is joined to another character is a part of a name.
_WITH_OFFSET = re.compile(
    r"""(?<![\w./'"-])[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{5,8}(\.[0-9]+)?(?:Z|[+-][0-9:]{5})(?!\w)"""
)


# --- the reader's zone -----------------------------------------------------------------------


class _HostZone(tzinfo):
    """The zone of this process as the C library knows it, if it has no name: for ``TZ=JST-9``."""

    @override
    def utcoffset(self, dt: datetime | None) -> timedelta | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().utcoffset()

    @override
    def tzname(self, dt: datetime | None) -> str | None:
        return None if dt is None else dt.replace(tzinfo=None).astimezone().tzname()

    @override
    def dst(self, dt: datetime | None) -> timedelta | None:
        return None

    @override
    def fromutc(self, dt: datetime) -> datetime:
        instant = dt.replace(tzinfo=UTC).timestamp()
        return datetime.fromtimestamp(instant).replace(tzinfo=self)  # noqa: DTZ006  # has the fold


def reader_zone() -> Zone:
    """The zone of the reader's terminal: that of TZ, which --zone sets, else that of the system."""
    return _zone_of(os.environ.get("TZ"))


@cache
def _zone_of(name: str | None) -> Zone:
    if name is None:
        try:
            name = os.readlink("/etc/localtime").rpartition("zoneinfo/")[2]  # noqa: PTH115
        except OSError:
            name = ""  # a copy of a file, which has no name
    name = name.removeprefix(":")
    return find_zone(name) if name in zone_names() else Zone("this host's zone", _HostZone())


def zone_label(now: float) -> str:
    """The zone for the head of a table: ``UTC``, or ``CET/CEST``, the present one first."""
    zone = reader_zone()
    names = (zone.at(each).tzname() or "" for each in (now, now + _HALF_A_YEAR))
    return "/".join(dict.fromkeys(names))


# --- reading ---------------------------------------------------------------------------------


def parse_time(
    field: str, text: str | None, now: float, *, zone: Zone | None = None, is_next: bool = True
) -> int | None:
    """Parse an instant in one of the forms that people write; return None if ``text`` is None."""
    if text is None:
        return None
    return parse_instant(field, text, zone or reader_zone(), now, is_next=is_next)


def parse_since(text: str | None, now: float) -> int | str | None:
    """Read the beginning of a period: an age such as ``1d``, which stays a text, or a time."""
    if text is None or not isinstance(as_seconds(text), str):
        return text
    try:
        return parse_time("since", text, now, is_next=False)
    except InvalidError:
        if text.isdecimal():
            raise
        raise InvalidError(
            "since",
            f"{text!r} is neither an age ({DURATIONS}) nor a time, such as yesterday, 02:30 or"
            " 2026-01-31T09:00",
        ) from None


# --- printing --------------------------------------------------------------------------------


def format_time(instant: int | None, zone: Zone | None = None, *, named: bool = True) -> str:
    """Format an instant in Unix seconds as a date and time; None as a dash."""
    if instant is None:
        return "-"
    return _format(instant, f"%Y-%m-%d %H:%M:%S{' %Z' if named else ''}", zone)


def local_times(text: str) -> str:
    """A stored text, or that of an error, with its times in the reader's zone: most are in UTC."""
    return _WITH_OFFSET.sub(_in_own_zone, text)


def _in_own_zone(found: re.Match[str]) -> str:
    try:
        instant = floor(datetime.fromisoformat(found[0]).timestamp())
    except ValueError:
        return found[0]
    return _format(instant, f"%Y-%m-%d %H:%M:%S{found[1] or ''} %Z")


def short_time(instant: int, now: float, *, seconds: bool = False) -> str:
    """Format an instant shortly: ``Mon 23 14:05``, or ``2026-12-24 14:05`` if it is far."""
    form = "%a %d %H:%M" if abs(instant - now) < _NEAR else "%Y-%m-%d %H:%M"
    return _format(instant, f"{form}:%S" if seconds else form)


def format_span(seconds: int, *, most: int = 3) -> str:
    """Format a duration as in settings: ``90m`` is ``1h30m``."""
    left, parts = seconds, list[str]()
    for unit, size in _SHORT_UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts[:most]) or "0s"


def _format(instant: int, form: str, zone: Zone | None = None) -> str:
    try:
        return (zone or reader_zone()).at(instant).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(instant)


def format_distance(seconds: float) -> str:
    """Format a distance from now in its two largest units; negative seconds are in the past."""
    if not (span := _two_units(seconds)):
        return "now"
    return f"in {span}" if seconds > 0 else f"{span} ago"


def format_overdue(seconds: float) -> str:
    """Format for how long a run has been due: ``due for 58 s``, or ``now``."""
    span = _two_units(seconds)
    return f"due for {span}" if span else "now"


def _two_units(seconds: float) -> str:
    """A distance in its two largest units, without a sign; empty if it is not a second."""
    left, words = round(abs(seconds)), list[str]()
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or words:
            words.append(f"{number} {unit}")
    return " ".join(word for word in words[:2] if word[0] != "0")


def format_took(seconds: float | None) -> str:
    """Format how long a run took; empty if that is not known."""
    return "" if seconds is None else format_duration(seconds)
