"""Times and durations, as people write and read them."""

from datetime import UTC, datetime

from psched.base.errors import InvalidError
from psched.triggers.zone import find_zone

_DATES_IN_DIGITS = (8, 12)
"""Digits of a date, and of a date with hours and minutes. Unix seconds with so many digits are in
1970, which nobody schedules for, or after the year 5000."""

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def parse_time(field: str, text: str | None, timezone: str) -> int | datetime | None:
    """The instant that a text names as Unix seconds or in ISO 8601; None for None.

    Args:
        field: the name of the option, for errors.
        text: what the user wrote.
        timezone: the zone of a text without an offset.

    Raises:
        InvalidError: the text is neither.
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
    # A time that a clock change skips means the instant of the change.
    return (zone.instants(wall) or (zone.change(wall).instant,))[0]


def format_time(instant: int | None) -> str:
    """An instant in UTC, for people; a dash for None."""
    if instant is None:
        return "-"
    try:
        return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(instant)


def format_distance(seconds: float) -> str:
    """How far in the future or past an instant is, in the distance's two largest units."""
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
