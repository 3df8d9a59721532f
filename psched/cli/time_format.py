"""Instants, as people write and read them."""

from datetime import UTC, datetime

from psched.base.errors import InvalidError
from psched.triggers.zone import find_zone

_DATES_IN_DIGITS = (8, 12)
"""Digits of a date, and of one with hours and minutes. As Unix seconds they are in 1970, when
nobody schedules anything, and after the year 5000."""


def when(field: str, text: str | None, timezone: str) -> int | datetime | None:
    """The instant that was written as Unix seconds or in ISO 8601; None: nothing was.

    Args:
        field: for the error.
        text: what was written.
        timezone: of a text that says none.

    Raises:
        InvalidError: it is neither.
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
            return int(text)  # no integer has more than a few thousand digits
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidError(
            field, f"{text!r} is neither Unix seconds nor ISO 8601, such as 2026-01-31T09:00"
        ) from None
    if instant.tzinfo is not None:
        return instant
    zone, wall = find_zone(timezone), int(instant.replace(tzinfo=UTC).timestamp())
    # A time that the clock skips is the instant at which it does.
    return (zone.instants(wall) or (zone.change(wall).instant,))[0]


def moment(instant: int | None) -> str:
    """An instant for people, in UTC; a dash for none."""
    if instant is None:
        return "-"
    try:
        return datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return str(instant)
