"""When a schedule runs: its text as a function of an instant.

Two kinds: a cron line in a time zone (`psched.cron`), and ``@every SECONDS``.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from psched.cron import parse_cron
from psched.errors import InvalidError
from psched.zone import find_zone

LONGEST_TEXT = 256
"""Characters; bounds what reading a text can cost."""

LONGEST_INTERVAL = 366 * 86_400
"""Seconds."""

_END = 253_402_214_400  # 9999-12-31T00:00Z, as for cron lines


class Trigger(Protocol):
    """What decides when a schedule runs: a pure function of an instant."""

    def most_in(self, span: int) -> int:
        """Return a number that the times within so many seconds, both ends included, never exceed.

        It is worked out, not counted, and need not be small.
        """
        ...

    def next_after(self, instant: int) -> int | None:
        """Return the first time strictly after an instant, or None: never again.

        Both are whole Unix seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Whole multiples of an interval since 1970-01-01T00:00Z, in whatever zone.

    So every host finds the same times, also after a pause, and nothing drifts.

    Attributes:
        gap: the interval in seconds.
    """

    gap: int

    def most_in(self, span: int) -> int:
        """See `Trigger.most_in`."""
        return span // self.gap + 1

    def next_after(self, instant: int) -> int | None:
        """See `Trigger.next_after`."""
        time = (instant // self.gap + 1) * self.gap
        return time if time < _END else None


def first(trigger: Trigger, start: int) -> int | None:
    """Return a trigger's first time at or after ``start``, both in Unix seconds."""
    return trigger.next_after(start - 1)


def parse(
    text: str, timezone: str, *, dst_policy: str = "debian", reading: str = "crontab"
) -> Trigger:
    """Read a trigger's text; what is accepted here is never refused by ``next_after``.

    Equal arguments give the same object; threads may share it.

    Args:
        text: the trigger's.
        timezone: the zone whose clocks it speaks of.
        dst_policy: what becomes of times that a clock change skips or repeats.
        reading: ``perfectsched`` reads cron lines as PerfectSched does, and nothing else.

    Raises:
        InvalidError: ``cron``, ``timezone`` or ``dst_policy`` (its field) makes no sense; the
            text names the part of it and the mend.
    """
    # Looked at before the cache, which can hold text only.
    for name, value in (("cron", text), ("timezone", timezone), ("dst_policy", dst_policy)):
        if not isinstance(value, str):
            raise InvalidError(name, f"must be text, not {type(value).__name__}")
    return _parse(text, timezone, dst_policy, reading)


@lru_cache(maxsize=1024)
def _parse(text: str, timezone: str, dst_policy: str, reading: str) -> Trigger:
    if len(text) > LONGEST_TEXT:
        raise InvalidError("cron", f"is too long; use at most {LONGEST_TEXT} characters")
    # Kinds of triggers are told apart here, by the first word of the text.
    if reading == "crontab" and re.match(r"[ \t]*@every\b", text):
        find_zone(timezone)
        return _parse_every(text.strip(" \t"))
    return parse_cron(text, timezone, dst_policy, reading)


def _parse_every(text: str) -> Every:
    match = re.fullmatch(r"@every[ \t]+([0-9]{1,9})", text)
    if match is None or not 1 <= int(match[1]) <= LONGEST_INTERVAL:
        raise InvalidError(
            "cron", f"'@every' takes whole seconds, from 1 to {LONGEST_INTERVAL}, as in '@every 90'"
        )
    return Every(int(match[1]))
