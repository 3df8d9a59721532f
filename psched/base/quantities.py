"""Durations and sizes, as people write them: a number with a unit, such as ``5m`` or ``16M``.

A duration is a number of seconds, a size a number of bytes. One number has one unit: ``90m`` is
accepted, ``1h30m`` is not. A number can have decimal places, as in ``1.5h``.

`format_duration` writes a measured duration, such as ``4.2 min``, for people to read.
"""

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import NamedTuple

Duration = float | str | timedelta
"""A duration: a number of seconds, a text such as ``"5m"``, or a `timedelta`."""

DURATIONS = "30s, 5m, 1h, 30d"
"""Examples of durations, which messages show."""

RATES = "10/s, 30/m, 100/h"
"""Examples of rates, which messages show."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
"""The units of durations, in seconds."""

_LIMITS = (("s", 1, 60), ("min", 60, 60), ("h", 3600, 24))
"""For units in which measured durations are shown: the length in seconds, and the number of them
that is shown in the next unit."""

_BYTES = {"K": 2**10, "M": 2**20, "G": 2**30}
"""The units of sizes, in bytes."""


def as_seconds(value: object) -> object:
    """Convert a text such as ``5m``, or a `timedelta`, to seconds; return other values unchanged.

    A result that is a whole number is an int.
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, timedelta(seconds=1))
        return value.total_seconds() if rest else whole
    return _converted(value, _SECONDS)


def as_bytes(value: object) -> object:
    """Convert a text such as ``16M`` to bytes; return other values unchanged.

    The units are powers of 1024. A result that is a whole number is an int.
    """
    return _converted(value, _BYTES)


def as_rate(value: object) -> float | None:
    """A rate such as ``10/s``, ``30/m`` or ``100/h`` as a number per second; None if it is none."""
    count, _, unit = value.partition("/") if isinstance(value, str) else ("", "", "")
    if not re.fullmatch(r"[0-9]{1,9}", count) or int(count) == 0 or unit not in _SECONDS:
        return None
    return int(count) / _SECONDS[unit]


def format_duration(seconds: float) -> str:
    """Write how long something took: ``12 ms``, or ``4.2 min``, with one decimal place."""
    if abs(milliseconds := round(seconds * 1000)) < 1000:  # noqa: PLR2004  # a second
        return f"{milliseconds} ms"
    for unit, size, most in _LIMITS:
        if abs(number := round(seconds / size, 1)) < most:
            return f"{number:.1f} {unit}"
    return f"{seconds / 86_400:.1f} d"


class Quantity(NamedTuple):
    """How the values of a quantity are written.

    Attributes:
        convert: converts a value with a unit to a number; returns other values unchanged.
        forms: examples of values with a unit, which messages show.
    """

    convert: Callable[[object], object]
    forms: str


QUANTITIES: Mapping[str, Quantity] = {
    "seconds": Quantity(as_seconds, DURATIONS),
    "bytes": Quantity(as_bytes, "64K, 16M, 1G"),
}
"""For the unit of a plain number: the quantity whose values can have larger units."""


def _converted(value: object, units: Mapping[str, int]) -> object:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([A-Za-z])", value)
    if match is None or match[2] not in units:
        return value
    # Not at the top, because it is a large module.
    from decimal import Decimal  # noqa: PLC0415

    # Decimal, because 1.1 * 3600 is not 3960 in binary floating-point arithmetic.
    exact = Decimal(match[1]) * units[match[2]]
    return int(exact) if exact == int(exact) else float(exact)
