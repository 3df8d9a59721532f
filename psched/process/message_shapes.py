"""The shapes of messages between processes: what a receiver accepts, and nothing else.

A peer may have been taken over by the code that runs in it. So each side declares what it accepts,
and its `Link` or `Channel` compares every message with that before anybody reads a field. Fields
that no shape names are ignored: a message may say more than its receiver knows.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from psched.base.texts import LONGEST_BRIEF

Check = Callable[[Any], bool]
"""Whether a field's value, as JSON yields it, is acceptable."""

_LARGEST = 2**63 - 1
"""What a column of a table can hold."""

LONGEST_TIME = 1e12
"""Seconds; no clock, and no difference of two, is further from 0."""

_LONGEST_LINE = 1100
"""Characters of a key, a type or a line that a log remembers."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The messages that one side of a line accepts.

    Attributes:
        kinds: by a field that makes a message one of that kind, all fields that this kind needs;
            if empty, any object is accepted.
        longest: bytes of a message as JSON; a longer one is not even received.
    """

    kinds: Mapping[str, Mapping[str, Check]]
    longest: int

    def fault(self, message: object) -> str | None:
        """What is wrong with a message, for a log line; None if nothing is."""
        if type(message) is not dict:
            return "a message that is no object"
        known = not self.kinds
        for kind in message:
            # A message may be of several kinds: then it is checked as each of them.
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
    """A text of so many characters at most, which every file and every database can hold."""

    def accepts(value: object) -> bool:
        if type(value) is not str or len(value) > most or "\0" in value:
            return False
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)

    return accepts


def attached(value: object) -> bool:
    """The bytes beside a message; `Link` bounds them."""
    return type(value) is bytes


def whole(least: int = 0, most: int = _LARGEST) -> Check:
    """A whole number within bounds; true and false are none."""
    return lambda value: type(value) is int and least <= value <= most


any_whole = whole(-_LARGEST - 1)
"""A whole number that a column of a table can hold."""


def number(least: float = 0, most: float = LONGEST_TIME) -> Check:
    """A finite number within bounds; true and false are none."""
    return lambda value: type(value) in (int, float) and least <= value <= most


def maybe(accepts: Check) -> Check:
    """Null, or what another check accepts."""
    return lambda value: value is None or accepts(value)


def one_of(*values: str) -> Check:
    """One of some words."""
    return lambda value: type(value) is str and value in values


def listed(accepts: Check, most: int) -> Check:
    """A list of so many values at most, each of which another check accepts."""
    return lambda value: type(value) is list and len(value) <= most and all(map(accepts, value))


def each(*checks: Check) -> Check:
    """A list of as many values as there are checks, each accepted by its own."""

    def accepts(value: object) -> bool:
        if type(value) is not list or len(value) != len(checks):
            return False
        return all(accepts(one) for accepts, one in zip(checks, value, strict=True))

    return accepts


def record(**fields: Check) -> Check:
    """An object that has all these fields."""

    def accepts(value: object) -> bool:
        return type(value) is dict and all(
            name in value and accepts(value[name]) for name, accepts in fields.items()
        )

    return accepts


line = text(_LONGEST_LINE)


brief_text = text(LONGEST_BRIEF)
"""What `texts.brief` returns."""


pid = whole(2, 2**31 - 1)
"""A process's number; 1 is never a child of ours."""
