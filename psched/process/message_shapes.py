"""The shapes of messages between processes: a receiver accepts these and nothing else.

The code that runs in a process may have taken it over. So each receiver declares what it accepts,
and its `Link` or `Channel` compares every message with that before a field is read. Fields that no
shape names are ignored, so that a newer sender may add some.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from psched.base.texts import LONGEST_BRIEF

Check = Callable[[Any], bool]
"""Whether a field's value, as JSON yields it, is acceptable."""

_LARGEST = 2**63 - 1
"""The greatest whole number that a column of a table can store."""

LONGEST_TIME = 1e12
"""Seconds; no clock, and no difference of two, is further from 0."""

_LONGEST_LINE = 1100
"""Characters of a key, a type or a remembered log line."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The messages that one side of a link accepts.

    Attributes:
        kinds: the kinds of messages, by the field that marks a message as one of that kind. Each
            has a check for every field that it must have. Without kinds, any object is accepted.
        longest: bytes of a message as JSON; a longer one is not received.
    """

    kinds: Mapping[str, Mapping[str, Check]]
    longest: int

    def fault(self, message: object) -> str | None:
        """What is wrong with a message, for a log line; None: it is accepted."""
        if type(message) is not dict:
            return "a message that is no object"
        known = not self.kinds
        for kind in message:
            # A message that has the fields of several kinds is checked as each of them.
            if (fields := self.kinds.get(kind)) is not None:
                known = True
                for name, accepts in fields.items():
                    if name not in message:
                        return f"the message {kind!r} without {name!r}"
                    if not accepts(message[name]):
                        return f"the message {kind!r} with an impossible {name!r}"
        return None if known else "a message of no known kind"


ANY = Shapes({}, longest=2**16)
"""Any object: what a link accepts until its owner says what it expects."""


def flag(value: object) -> bool:
    """True or false."""
    return value is True or value is False


def text(most: int) -> Check:
    """A text of at most so many characters, which every file and every database can store."""

    def accepts(value: object) -> bool:
        if type(value) is not str or len(value) > most or "\0" in value:
            return False
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)

    return accepts


def attached(value: object) -> bool:
    """The data that a message carries; `Link` limits their length."""
    return type(value) is bytes


def whole(least: int = 0, most: int = _LARGEST) -> Check:
    """A whole number within bounds; true and false are not numbers."""
    return lambda value: type(value) is int and least <= value <= most


any_whole = whole(-_LARGEST - 1)
"""A whole number that a column of a table can store."""


def number(least: float = 0, most: float = LONGEST_TIME) -> Check:
    """A finite number within bounds; true and false are not numbers."""
    return lambda value: type(value) in (int, float) and least <= value <= most


def maybe(accepts: Check) -> Check:
    """Null, or a value that another check accepts."""
    return lambda value: value is None or accepts(value)


def one_of(*values: str) -> Check:
    """One of these words."""
    return lambda value: type(value) is str and value in values


def listed(accepts: Check, most: int) -> Check:
    """A list of at most so many values, each of which another check accepts."""
    return lambda value: type(value) is list and len(value) <= most and all(map(accepts, value))


def each(*checks: Check) -> Check:
    """A list with exactly one value for each check; the check must accept its value."""

    def accepts(value: object) -> bool:
        if type(value) is not list or len(value) != len(checks):
            return False
        return all(accepts(one) for accepts, one in zip(checks, value, strict=True))

    return accepts


def record(**fields: Check) -> Check:
    """An object with at least these fields, each accepted by its check."""

    def accepts(value: object) -> bool:
        return type(value) is dict and all(
            name in value and accepts(value[name]) for name, accepts in fields.items()
        )

    return accepts


line = text(_LONGEST_LINE)


brief_text = text(LONGEST_BRIEF)
"""A text that `texts.brief` has returned."""


pid = whole(2, 2**31 - 1)
"""A process's number; 1 is never a child of ours."""
