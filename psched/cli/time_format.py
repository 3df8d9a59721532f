"""Reads and prints times and durations in the forms that users write and read."""

from datetime import UTC, datetime

from psched.base.errors import InvalidError
from psched.triggers.zone import find_zone

_DATES_IN_DIGITS = (8, 12)
"""Lengths of numbers that are refused, because they may be dates: 20260131, 202601310900.

Unix seconds of 8 digits are in the years 1970 to 1973, those of 12 digits after the year 5000."""

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def parse_time(field: str, text: str | None, timezone: str) -> int | datetime | None:
    """Parse an instant in Unix seconds or ISO 8601; None if ``text`` is None.

    Args:
        field: the name of the option, for errors.
        text: what the user wrote.
        timezone: the time zone of a text without an offset.

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
            return int(text)  # ValueError for thousands of digits
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            field, f"{text!r} is neither Unix seconds nor ISO 8601, such as 2026-01-31T09:00"
        ) from None
    if instant.tzinfo is not None:
        return instant
    zone, wall = find_zone(timezone), int(instant.replace(tzinfo=UTC).timestamp())
    # For a time that a clock change skips, the instant of the change is returned.
    return (zone.instants(wall) or (zone.change(wall).instant,))[0]


def format_time(instant: int | None) -> str:
    """An instant as a date and time in UTC; a dash for None."""
    if instant is None:
        return "-"
    try:
        return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(instant)


def format_distance(seconds: float) -> str:
    """A distance from now in its two largest units; a negative number of seconds is in the past."""
    left, words = round(abs(seconds)), list[str]()
    for unit, size in _UNITS:
        number, left = divmod(left, size)
        if number or words:
            words.append(f"{number} {unit}")
    span = " ".join(word for word in words[:2] if word[0] != "0")
    if not span:
        return "now"
    return f"in {span}" if seconds > 0 else f"{span} ago"


def format_duration(seconds: float) -> str:
    """A duration in its largest unit, with one decimal place."""
    for unit, size in _UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
