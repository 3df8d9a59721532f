"""Raises and closes alerts of any rule, without often asking the store for what it has refused.

The settings of the alert's schedule say which hooks are told about it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as changed
from typing import NamedTuple

from psched.base.clock import Clock
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts

MOST_RAISED = 200
"""The most alerts that one call raises; the others are raised by later calls."""

KNOWN_TIME = 600.0
"""Seconds after which an alert that the store had is sent again, because the store can have lost
it: somebody has deleted its row, or a failover of Redis has lost it."""

_MOST_KNOWN = 20_000
"""The most alerts that are remembered because the store has them, open or closed."""

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


class Judged(NamedTuple):
    """What one step of a monitor's judge has done.

    ``notes`` say what is not judged, and why, in words for the log; each judge says it once.
    ``wait`` is the seconds until the next step; None means the usual time.
    """

    raised: Sequence[Alert] = ()
    closed: Sequence[Alert] = ()
    notes: Sequence[str] = ()
    wait: float | None = None


def hooks_of(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of the hooks that are told that an alert was raised, and that it was closed.

    An attempt that has failed is not told if the occurrence is given up after so many attempts:
    ``gave_up`` is told then, or when the schedule pauses itself. With ``alert_on: each_failure``,
    both are told.

    The end of an alert is told only if its beginning was told: nobody is told that something is
    over of which nobody has heard.

    They are the fields ``on_raise`` and ``on_close`` of an `Alert`.
    """
    if rule == Rule.FAILED and settings.max_attempts and settings.alert_on == "given_up":
        return (), ()
    if rule == Rule.UNREACHABLE:  # then nothing else can be told
        told = (*dict.fromkeys((*settings.on_failed, *settings.on_late, *settings.on_lost)),)
    else:
        setting = _SETTINGS.get(rule)
        told = getattr(settings, setting) if setting is not None else ()
    return told, settings.on_recovered if told else ()


class Raising:
    """Raises and closes alerts in a store."""

    def __init__(self, store: KeepsAlerts, *, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._known = dict[tuple[tuple[str, str, str], int], float]()

    def raise_alerts(self, found: Iterable[tuple[Alert, Config]]) -> Sequence[Alert]:
        """Raise alerts that are on; return those that this call has raised, as they are stored.

        An alert that was sent is not sent again for `KNOWN_TIME`: the store has it, open or closed,
        or another alert of its subject is open. In the last case, it can be raised as soon as
        `close_alerts` has closed the other one.
        """
        new, now = list[Alert](), self._clock.monotonic()
        for alert, settings in found:
            if self._known.get((alert.subject, alert.since), now) > now:
                continue
            on_raise, on_close = hooks_of(alert.rule, settings)
            new.append(changed(alert, on_raise=on_raise, on_close=on_close))
            if len(new) == MOST_RAISED:
                break
        if not new:
            return ()
        raised = self._store.raise_alerts(new)
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()
        until = now + KNOWN_TIME
        self._known.update(((alert.subject, alert.since), until) for alert in new)
        return raised

    def begun_before(self, alert: Alert) -> Alert:
        """An alert with the beginning of an earlier one of the same incident, if there is one.

        Monitors that have looked at different times can know different beginnings. If an alert of
        the same subject was closed after the incident surely was on, somebody has closed it, and
        nobody must be told of the incident again.
        """
        selection = AlertSelection(key=alert.key, rules=frozenset({alert.rule}), limit=1)
        for earlier in self._store.find_alerts(selection):
            if earlier.closed is not None and earlier.closed > alert.since:
                return changed(alert, since=earlier.since)
        return alert

    def close_alerts(self, over: Iterable[tuple[Alert, str]]) -> Sequence[Alert]:
        """Close alerts that are over; return those that this call has closed, as stored."""
        by_text = dict[str, list[Alert]]()
        for alert, text in over:
            by_text.setdefault(text, []).append(alert)
        closed = list[Alert]()
        for text, alerts in by_text.items():
            closed += self._store.close_alerts(alerts, text)
        ended = {(alert.subject, alert.since) for each in by_text.values() for alert in each}
        subjects = {subject for subject, _ in ended}
        for each in [*self._known] if ended else ():
            if each[0] in subjects and each not in ended:
                del self._known[each]
        return closed
