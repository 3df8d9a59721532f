"""Triggers: the text that says when a schedule runs, parsed to a function of an instant.

There are three kinds: a cron line in a time zone (`cron`), ``@every SECONDS``, and a user's class
(`psched.triggers.custom`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from psched.base.errors import InvalidError
from psched.triggers.cron import parse_cron
from psched.triggers.custom import CustomTrigger, parse_call
from psched.triggers.zone import LATEST, find_zone

LONGEST_TEXT = 256
"""Characters; it limits the time that parsing takes."""

LONGEST_INTERVAL = 366 * 86_400
"""Seconds."""


class Trigger(Protocol):
    """Decides when a schedule runs: a pure function of an instant."""

    def next_after(self, instant: int) -> int | None:
        """Return the first time strictly after an instant, or None if there is none.

        Both are whole Unix seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Equally spaced times, counted from 1970 whatever the zone.

    So all hosts compute the same times, even after a pause, and nothing drifts.

    Attributes:
        gap: the interval in seconds.
        phase: the offset in seconds, less than `gap`: the first time at or after
            1970-01-01T00:00Z.
    """

    gap: int
    phase: int = 0

    def next_after(self, instant: int) -> int | None:
        """Return the first time strictly after an instant, or None if there is none."""
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
    """Parse a trigger's text.

    ``next_after`` of the result raises no errors, unless it is a user's class. Equal arguments give
    the same object, which threads may share.

    Args:
        text: the trigger's text.
        timezone: the zone of its times.
        dst_policy: what happens to times that a clock change skips or repeats.
        reading: ``perfectsched``: only cron lines, read as PerfectSched does.
        load_path: folders that are searched first for a user's class.
        allowed: the setting ``triggers``: the modules that a user's class may be in.

    Raises:
        NotLoadedError: a user's class cannot be imported in this process, or is not allowed.
        InvalidError: ``cron``, ``timezone`` or ``dst_policy`` (the error's field) is invalid; the
            text names the invalid part and the fix.
    """
    # Checked before the cached call, whose arguments must be hashable.
    for name, value in (("cron", text), ("timezone", timezone), ("dst_policy", dst_policy)):
        if not isinstance(value, str):
            raise InvalidError(name, f"must be text, not {type(value).__name__}")
    if len(text) > LONGEST_TEXT:
        raise InvalidError("cron", f"is too long; use at most {LONGEST_TEXT} characters")
    if reading == "crontab" and is_custom(text):
        find_zone(timezone)
        # A user's class is not cached, because how it is loaded depends on the process, see
        # `triggers.custom.loading_by`.
        return parse_call(text.strip(" \t"), load_path, allowed)
    return _parse(text, timezone, dst_policy, reading)


def is_custom(text: str) -> bool:
    """Whether a trigger's text names a user's class."""
    return re.match(r"[ \t]*@call\b", text) is not None


def check(trigger: Trigger | None, instant: int) -> None:
    """Try a user's class on times after an instant; all other triggers are known to be valid.

    Raises:
        InvalidError: its answers are invalid.
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
