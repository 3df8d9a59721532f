"""Reads and prints times and durations in the forms that users write and read."""

from datetime import UTC, datetime

import click

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds, format_duration
from psched.triggers.zone import find_zone

_DATES_IN_DIGITS = (8, 12)
"""A number with this many digits is refused as a time, because it can be meant as a date: 20260131
has 8 digits, and 202601310900 has 12.

Such a number is hardly ever meant as Unix seconds: Unix seconds have 8 digits from 1970 to 1973,
and 12 digits only after the year 5000."""

_NEAR = 7 * 86_400
"""The distance from now, in seconds, within which a weekday and a day tell the date."""

_SHORT_UNITS = (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def parse_time(field: str, text: str | None, timezone: str) -> int | datetime | None:
    """Parse an instant in Unix seconds or ISO 8601; return None if ``text`` is None.

    Args:
        field: the name of the option, which error texts contain.
        text: the text that the user wrote.
        timezone: the time zone that applies to a text without an offset.

    Raises:
        InvalidError: the text is neither Unix seconds nor ISO 8601, or could be a date in digits.
    """
    if text is None:
        return None
    digits = text.isdecimal() and text.isascii()
    if digits and len(text) in _DATES_IN_DIGITS:
        raise InvalidError(
            field, f"{text!r} could be a date or Unix seconds; write a date as 2026-01-31T09:00"
        )
    try:
        if digits:
            return int(text)  # raises ValueError for thousands of digits
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            field, f"{text!r} is neither Unix seconds nor ISO 8601, such as 2026-01-31T09:00"
        ) from None
    if instant.tzinfo is not None:
        return instant
    zone, wall = find_zone(timezone), int(instant.replace(tzinfo=UTC).timestamp())
    # If a clock change skips the time of day, the result is the instant of the clock change. If a
    # clock change repeats it, the result is the first of the two instants.
    return (zone.instants(wall) or (zone.change(wall).instant,))[0]


def parse_since(text: str | None, *, utc: bool) -> int | str | datetime | None:
    """Parse the beginning of a period: an age such as ``1d``, or a time; None if ``text`` is None.

    Args:
        text: see `read_since`.
        utc: see `read_since`.

    Returns:
        A value for the argument ``since`` of `ScheduleCollection.runs`.

    Raises:
        click.UsageError: the text is neither an age nor a time.
    """
    try:
        return read_since(text, utc=utc)
    except InvalidError as error:
        raise click.UsageError(str(error)) from None


def parse_instant(field: str, text: str, *, utc: bool) -> int | datetime:
    """Parse an instant in Unix seconds or ISO 8601.

    Args:
        field: the name of the option, which error texts contain.
        text: the text that the user wrote.
        utc: see `parse_since`.

    Raises:
        click.UsageError: the text is neither.
    """
    try:
        if text.isdecimal() and text.isascii():
            return parse_time(field, text, "UTC") or 0
        instant = datetime.fromisoformat(text)
    except InvalidError as error:
        raise click.UsageError(str(error)) from None
    except ValueError:
        raise click.UsageError(
            f"{field}: {text!r} is neither Unix seconds nor ISO 8601, such as 2026-01-31T09:00"
        ) from None
    if instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC) if utc else instant.astimezone()


def read_since(text: str | None, *, utc: bool) -> int | str | datetime | None:
    """Read the beginning of a period, like `parse_since`.

    Args:
        text: the text that the user wrote.
        utc: whether a time without an offset is in UTC; otherwise it is in the time zone of this
            process, like the times that the commands show.

    Raises:
        InvalidError: the text is neither an age nor a time.
    """
    if text is None or not isinstance(as_seconds(text), str):
        return text
    if text.isdecimal() and text.isascii():
        return parse_time("since", text, "UTC")
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            "since",
            f"{text!r} is neither an age ({DURATIONS}) nor a time, such as 2026-01-31T09:00",
        ) from None
    if instant.tzinfo is not None:
        return instant
    return instant.replace(tzinfo=UTC) if utc else instant.astimezone()


def format_time(instant: int | None, *, local: bool = False) -> str:
    """Format an instant in Unix seconds as a date and time; None as a dash.

    Args:
        instant: the instant.
        local: whether the time is in the time zone of this process (``TZ``, or /etc/localtime);
            otherwise it is in UTC.
    """
    if instant is None:
        return "-"
    return _format(instant, "%Y-%m-%d %H:%M:%S %Z", local=local)


def format_exactly(instant: int, *, local: bool) -> str:
    """Format an instant as ISO 8601 with an offset, as commands accept it; see `format_time`."""
    text = _format(instant, "%Y-%m-%dT%H:%M:%S%z", local=local)
    return f"{text[:-2]}:{text[-2:]}" if "T" in text else text


def format_both(instant: int | None) -> str:
    """Format an instant in the time zone of this process, and in UTC if that differs."""
    there, utc = format_time(instant, local=True), format_time(instant)
    return utc if there == utc else f"{there} ({utc})"


def short_time(instant: int, now: float, *, utc: bool, seconds: bool = False) -> str:
    """Format an instant in few characters: ``Mon 23 14:05``, or ``2026-12-24 14:05`` if it is far.

    Args:
        instant: the instant, in Unix seconds.
        now: the present time, in Unix seconds.
        utc: whether the time is in UTC; otherwise it is in the time zone of this process.
        seconds: whether the seconds are shown, too.
    """
    form = "%a %d %H:%M" if abs(instant - now) < _NEAR else "%Y-%m-%d %H:%M"
    return _format(instant, f"{form}:%S" if seconds else form, local=not utc)


def format_span(seconds: int, *, most: int = 3) -> str:
    """Format a duration as in settings: ``90m`` is ``1h30m``.

    Args:
        seconds: the duration.
        most: the largest number of units; smaller units are dropped.
    """
    left, parts = seconds, list[str]()
    for unit, size in _SHORT_UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts[:most]) or "0s"


def _format(instant: int, form: str, *, local: bool) -> str:
    try:
        time = datetime.fromtimestamp(instant, UTC)
        return (time.astimezone() if local else time).strftime(form)
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
