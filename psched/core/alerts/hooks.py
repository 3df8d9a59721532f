"""Which hooks are told about an alert."""

from collections.abc import Mapping

from psched.config import Config
from psched.core.alerts.alert import Rule

_SETTINGS: Mapping[str, str] = {
    Rule.FAILED: "on_failed",
    Rule.GAVE_UP: "on_failed",
    Rule.QUARANTINED: "on_failed",
    Rule.LATE: "on_late",
    Rule.SILENT: "on_late",
    Rule.LONGEST: "on_late",
    Rule.UNUSUAL: "on_late",
    Rule.NO_SLOT: "on_late",
    Rule.LOST: "on_lost",
    Rule.WORKER_DIED: "on_lost",
}
"""For each rule: the setting that names the hooks."""


def hooks_of(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the hooks that are told about an alert.

    An attempt that has failed is not told if the occurrence is given up after so many attempts:
    ``gave_up`` is told then, or when the schedule pauses itself. With ``alert_on: each_failure``,
    both are told.

    The end of an alert is told only if its beginning was told: nobody is told that something is
    over of which nobody has heard.

    Returns:
        The hooks that are told that the alert was raised, and those that are told that it was
        closed; the fields ``on_raise`` and ``on_close`` of an `Alert`.
    """
    if rule == Rule.FAILED and settings.max_attempts and settings.alert_on == "given_up":
        return (), ()
    if rule == Rule.UNREACHABLE:  # then nothing else can be told
        told = (*dict.fromkeys((*settings.on_failed, *settings.on_late, *settings.on_lost)),)
    else:
        setting = _SETTINGS.get(rule)
        told = getattr(settings, setting) if setting is not None else ()
    return told, settings.on_recovered if told else ()
