"""Triggers: the text that says when a schedule runs is parsed to an object that computes times.

There are three kinds of triggers: a cron line in a time zone (`cron`), ``@every SECONDS`` (the
number can have a unit, as in ``@every 5m``), and a user's class (`psched.triggers.custom`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from psched.base.errors import InvalidError
from psched.base.quantities import DURATIONS, as_seconds
from psched.triggers.cron import parse_cron
from psched.triggers.custom import CustomTrigger, parse_call
from psched.triggers.zone import LATEST, find_zone

LONGEST_TEXT = 256
"""The largest number of characters in a trigger's text; longer texts would be slow to parse."""

LONGEST_INTERVAL = 366 * 86_400  # the longest interval of ``@every``, in seconds


class Trigger(Protocol):
    """Computes when a schedule runs. The result depends only on the trigger and an instant."""

    def next_after(self, instant: int) -> int | None:
        """Return the first time strictly after an instant, or None if there is none.

        The instant and the result are whole Unix seconds.
        """
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """Equally spaced times, counted from 1970-01-01T00:00Z in every time zone.

    Because of this fixed origin, all hosts compute the same times, and the times do not drift.
    """

    gap: int  # the interval in seconds
    phase: int = 0  # the first time at or after 1970-01-01T00:00Z, in Unix seconds; less than `gap`

    def next_after(self, instant: int) -> int | None:
        """The first time strictly after an instant, in Unix seconds; None if there is none."""
        time = instant + self.gap - (instant - self.phase) % self.gap
        return time if time < LATEST else None


def first(trigger: Trigger, start: int) -> int | None:
    """Return a trigger's first time at or after ``start``, or None. Times are in Unix seconds."""
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

    ``next_after`` of the result raises no errors, unless the trigger is a user's class. Threads can
    share the result. Calls with equal arguments may return the same object.
    """
    # The types are checked before `_parse` is called, because `_parse` is cached and its arguments
    # must be hashable.
    for name, value in (("cron", text), ("timezone", timezone), ("dst_policy", dst_policy)):
        if not isinstance(value, str):
            raise InvalidError(name, f"must be text, not {type(value).__name__}")
    if len(text) > LONGEST_TEXT:
        raise InvalidError("cron", f"is too long; use at most {LONGEST_TEXT} characters")
    if reading == "crontab" and is_custom(text):
        find_zone(timezone)
        # `_parse` is not used here, because its cache must not hold users' classes: the function
        # that loads them can be changed with `base.loader.loading_by`.
        return parse_call(text.strip(" \t"), load_path, allowed)
    try:
        return _parse(text, timezone, dst_policy, reading)
    except InvalidError as error:
        if reading != "crontab" or error.field != "cron":
            raise
        from psched.triggers.foreign import explained  # noqa: PLC0415  # rarely needed

        raise explained(error, text, _refusal) from None


def _refusal(text: str) -> InvalidError | None:
    try:
        _parse(text, "UTC", "debian", "crontab")
    except InvalidError as error:
        return error
    return None


def is_custom(text: str) -> bool:
    """Whether a trigger's text begins with ``@call``, so that the trigger is a user's class."""
    return re.match(r"[ \t]*@call\b", text) is not None


def in_seconds(text: str) -> str:
    """Convert the durations in an ``@every`` trigger to seconds; return other texts unchanged.

    ``@every 5m`` becomes ``@every 300``, which is the form in which triggers are stored.
    """
    if not _is_every(text):
        return text
    duration = r"(?<=[ \t+])[0-9.]{1,20}[a-z](?![^ \t])"
    return re.sub(duration, lambda found: str(as_seconds(found[0])), text)


def check(trigger: Trigger | None, instant: int) -> None:
    """Test a user's class: let it compute a few times after an instant.

    Triggers of other kinds are not tested, because they are always valid after parsing.
    """
    if isinstance(trigger, CustomTrigger):
        trigger.check(instant)


@lru_cache(maxsize=1024)
def _parse(text: str, timezone: str, dst_policy: str, reading: str) -> Trigger:
    if reading != "crontab" or not _is_every(text):
        return parse_cron(text, timezone, dst_policy, reading)
    find_zone(timezone)
    return _parse_every(in_seconds(text).strip(" \t"))


def _is_every(text: str) -> bool:
    return re.match(r"[ \t]*@every\b", text) is not None


def _parse_every(text: str) -> Every:
    match = re.fullmatch(r"@every[ \t]+([0-9]{1,9})(?:[ \t]+\+([0-9]{1,9}))?", text)
    if match is None or not 1 <= int(match[1]) <= LONGEST_INTERVAL:
        raise InvalidError(
            "cron",
            f"'@every' takes whole seconds, from 1 to {LONGEST_INTERVAL}, as in '@every 90', or a"
            f" number with a unit, as in '@every 5m' ({DURATIONS})",
        )
    gap, phase = int(match[1]), int(match[2] or 0)
    if phase >= gap:
        raise InvalidError(
            "cron", f"'@every {gap}' takes an offset of less than that, as in '@every {gap} +0'"
        )
    return Every(gap, phase)
