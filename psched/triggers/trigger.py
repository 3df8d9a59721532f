"""When a schedule runs: its text as a function of an instant.

Three kinds: a cron line in a time zone (`cron`), ``@every SECONDS``, and a class of the
user's own (`psched.triggers.custom`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from psched.base.errors import InvalidError
from psched.triggers.cron import parse_cron
from psched.triggers.custom import LATEST, CustomTrigger, parse_call
from psched.triggers.zone import find_zone

LONGEST_TEXT = 256
"""Characters; bounds what reading a text can cost."""

LONGEST_INTERVAL = 366 * 86_400
"""Seconds."""


class Trigger(Protocol):
    """What decides when a schedule runs: a pure function of an instant."""

    def next_after(self, instant: int) -> int | None:
        """Return the first time strictly after an instant, or None: never again.

        Both are whole Unix seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """The times, in whatever zone, that have the same distance from each other since ever.

    So every host finds the same times, also after a pause, and nothing drifts.

    Attributes:
        gap: the interval in seconds.
        phase: less than that; the first of the times at or after 1970-01-01T00:00Z.
    """

    gap: int
    phase: int = 0

    def next_after(self, instant: int) -> int | None:
        """See `Trigger.next_after`."""
        time = instant + self.gap - (instant - self.phase) % self.gap
        return time if time < LATEST else None


def first(trigger: Trigger, start: int) -> int | None:
    """Return a trigger's first time at or after ``start``, both in Unix seconds."""
    return trigger.next_after(start - 1)


def parse(
    text: str,
    timezone: str,
    *,
    dst_policy: str = "debian",
    reading: str = "crontab",
    load_path: Sequence[str] = (),
    allowed: Sequence[str] | None = None,
) -> Trigger:
    """Read a trigger's text.

    What is accepted here is never refused by ``next_after``, but for what is of the user's own.
    Equal arguments give the same object; threads may share it.

    Args:
        text: the trigger's.
        timezone: the zone whose clocks it speaks of.
        dst_policy: what becomes of times that a clock change skips or repeats.
        reading: ``perfectsched`` reads cron lines as PerfectSched does, and nothing else.
        load_path: folders in which a class of the user's own is looked for first.
        allowed: the setting ``triggers``: modules of which such a class may be.

    Raises:
        NotLoadedError: a class of the user's own cannot be imported here, or is not allowed.
        InvalidError: ``cron``, ``timezone`` or ``dst_policy`` (its field) makes no sense; the
            text names the part of it and the mend.
    """
    # Looked at before the cache, which can hold text only.
    for name, value in (("cron", text), ("timezone", timezone), ("dst_policy", dst_policy)):
        if not isinstance(value, str):
            raise InvalidError(name, f"must be text, not {type(value).__name__}")
    if len(text) > LONGEST_TEXT:
        raise InvalidError("cron", f"is too long; use at most {LONGEST_TEXT} characters")
    if reading == "crontab" and is_called(text):
        find_zone(timezone)
        # Not cached here: who asks it depends on the process, see `triggers.custom.loading_by`.
        return parse_call(text.strip(" \t"), load_path, allowed)
    return _parse(text, timezone, dst_policy, reading)


def is_called(text: str) -> bool:
    """Whether a trigger's text names a class of the user's own."""
    return re.match(r"[ \t]*@call\b", text) is not None


def check(trigger: Trigger | None, instant: int) -> None:
    """Try what nobody has vouched for, a class of the user's own, on times after an instant.

    Raises:
        InvalidError: its answers make no sense.
    """
    if isinstance(trigger, CustomTrigger):
        trigger.check(instant)


@lru_cache(maxsize=1024)
def _parse(text: str, timezone: str, dst_policy: str, reading: str) -> Trigger:
    if reading != "crontab" or re.match(r"[ \t]*@every\b", text) is None:
        return parse_cron(text, timezone, dst_policy, reading)
    find_zone(timezone)
    return _parse_every(text.strip(" \t"))


def _parse_every(text: str) -> Every:
    match = re.fullmatch(r"@every[ \t]+([0-9]{1,9})(?:[ \t]+\+([0-9]{1,9}))?", text)
    if match is None or not 1 <= int(match[1]) <= LONGEST_INTERVAL:
        raise InvalidError(
            "cron", f"'@every' takes whole seconds, from 1 to {LONGEST_INTERVAL}, as in '@every 90'"
        )
    gap, phase = int(match[1]), int(match[2] or 0)
    if phase >= gap:
        raise InvalidError(
            "cron", f"'@every {gap}' takes an offset of less than that, as in '@every {gap} +0'"
        )
    return Every(gap, phase)
