"""The shapes of messages between processes: a receiver accepts only messages of these shapes.

A task's code can take over the process that runs it, and send arbitrary messages. So each receiver
declares which messages it accepts, and its `Link` or `Channel` checks every message before the
receiver reads a field. Fields that no shape names are ignored, so that a newer version of psched
can add fields to the messages that it sends to an older version.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from psched.base.texts import LONGEST_BRIEF

Check = Callable[[Any], bool]
"""A function that returns whether the receiver accepts a field's value, as decoded from JSON."""

_LARGEST = 2**63 - 1
"""The greatest whole number that a column of a table can store."""

LONGEST_TIME = 1e12
"""Seconds. The limit for times in messages: no clock's time, and no difference between the times of
two clocks, is greater."""

_LONGEST_LINE = 1100
"""The most characters of a text such as a key, a type or a log line in a message."""


class Shapes(NamedTuple):
    """The messages that one side of a link accepts.

    Attributes:
        kinds: the kinds of messages that are accepted. The key is the name of the field by which a
            message of the kind is recognized; the value maps each field that such a message must
            have to its check. If there are no kinds, any object is accepted.
        longest: the most bytes of a message's JSON text; a longer message is invalid.
    """

    kinds: Mapping[str, Mapping[str, Check]]
    longest: int

    def fault(self, message: object) -> str | None:
        """A description of the mistake in a message, for a log line; None if it is accepted."""
        if type(message) is not dict:
            return "a message that is no object"
        known = not self.kinds
        for kind in message:
            # Check a message that has the marking fields of several kinds as each of these kinds.
            if (fields := self.kinds.get(kind)) is not None:
                known = True
                for name, accepts in fields.items():
                    if name not in message:
                        return f"the message {kind!r} without {name!r}"
                    if not accepts(message[name]):
                        return f"the message {kind!r} with an impossible {name!r}"
        return None if known else "a message of no known kind"


ANY = Shapes({}, longest=2**16)
"""Accepts any object. A link has these shapes until its owner sets `Link.expects`."""


def flag(value: object) -> bool:
    """Check that a value is True or False."""
    return value is True or value is False


def text(most: int) -> Check:
    """Check that a value is a text of at most ``most`` characters, without NUL and surrogates.

    Such a text can be stored in every file and every database.
    """

    def accepts(value: object) -> bool:
        if type(value) is not str or len(value) > most or "\0" in value:
            return False
        return value.isascii() or not any("\ud800" <= c <= "\udfff" for c in value)

    return accepts


def attached(value: object) -> bool:
    """Check that a value is bytes: the data that a message carries. `Link` limits their length."""
    return type(value) is bytes


def whole(least: int = 0, most: int = _LARGEST) -> Check:
    """Check that a value is a whole number from ``least`` to ``most``, neither True nor False."""
    return lambda value: type(value) is int and least <= value <= most


any_whole = whole(-_LARGEST - 1)
"""A whole number that a column of a table can store."""


def number(least: float = 0, most: float = LONGEST_TIME) -> Check:
    """Check that a value is a number from ``least`` to ``most``; refuse True, False and NaN."""
    return lambda value: type(value) in (int, float) and least <= value <= most


def maybe(accepts: Check) -> Check:
    """Check that a value is None, or that ``accepts`` accepts the value."""
    return lambda value: value is None or accepts(value)


def one_of(*values: str) -> Check:
    """Check that a value is one of these texts."""
    return lambda value: type(value) is str and value in values


def listed(accepts: Check, most: int) -> Check:
    """Check that a value is a list of at most ``most`` values that ``accepts`` accepts."""
    return lambda value: type(value) is list and len(value) <= most and all(map(accepts, value))


def each(*checks: Check) -> Check:
    """Check that a value is a list with one item for each check, which accepts this item."""

    def accepts(value: object) -> bool:
        if type(value) is not list or len(value) != len(checks):
            return False
        return all(accepts(one) for accepts, one in zip(checks, value, strict=True))

    return accepts


def record(**fields: Check) -> Check:
    """Check that a value is an object with at least these fields, each accepted by its check."""

    def accepts(value: object) -> bool:
        return type(value) is dict and all(
            name in value and accepts(value[name]) for name, accepts in fields.items()
        )

    return accepts


def extended(accepts: Check, **fields: Check) -> Check:
    """An object that another check accepts, and that may have these fields.

    The fields may be absent, because older versions do not send them.
    """

    def accepts_both(value: object) -> bool:
        return (
            accepts(value)
            and type(value) is dict
            and all(check(value[name]) for name, check in fields.items() if name in value)
        )

    return accepts_both


line = text(_LONGEST_LINE)


brief_text = text(LONGEST_BRIEF)
"""Checks that a value is a text no longer than `texts.brief` returns."""


pid = whole(2, 2**31 - 1)
"""Checks that a value can be a pid of a child. 1 is refused, because it is the init process."""
