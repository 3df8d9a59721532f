"""Raises and closes alerts, of any rule, without often asking the store for what it has refused."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace as changed
from typing import NamedTuple

from psched.base.clock import Clock, SystemClock
from psched.config import Config
from psched.core.alerts.alert import Alert
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts

HooksOf = Callable[[str, Config], tuple[tuple[str, ...], tuple[str, ...]]]
"""Returns the names of the hooks that are told of an alert.

Its arguments are the rule, and the settings that apply to the schedule; those of the installation
if the alert is about a host. It returns the names of the hooks that are told that the alert was
raised, and of those that are told that it was closed."""

MOST_RAISED = 200
"""The most alerts that one call raises; the others are raised by later calls."""

KNOWN_TIME = 600.0
"""Seconds after which an alert that the store had is sent again, because the store can have lost
it: somebody has deleted its row, or a failover of Redis has lost it."""

_MOST_KNOWN = 20_000
"""The most alerts that are remembered because the store has them, open or closed."""


class Judged(NamedTuple):
    """What one step of a monitor's judge has done.

    Attributes:
        raised: the alerts that this step has raised.
        closed: the alerts that this step has closed.
        notes: what is not judged, and why, in words for the log; each judge says it once.
        wait: seconds until the next step; None means the usual time.
    """

    raised: Sequence[Alert] = ()
    closed: Sequence[Alert] = ()
    notes: Sequence[str] = ()
    wait: float | None = None


def no_hooks(_rule: str, _settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Nobody is told of any alert."""
    return (), ()


class Raising:
    """Raises and closes alerts in a store.

    Args:
        store: the store.
        hooks_of: returns the hooks of an alert.
        clock: decides when an alert that the store had is sent again; None means the system's.
    """

    def __init__(
        self, store: KeepsAlerts, hooks_of: HooksOf = no_hooks, *, clock: Clock | None = None
    ) -> None:
        self._store = store
        self._hooks_of = hooks_of
        self._clock = clock or SystemClock()
        self._known = dict[tuple[tuple[str, str, str], int], float]()

    def raise_alerts(self, found: Iterable[tuple[Alert, Config]]) -> Sequence[Alert]:
        """Raise alerts that are on.

        An alert that was sent is not sent again for `KNOWN_TIME`: the store has it, open or closed,
        or another alert of its subject is open. In the last case, it can be raised as soon as
        `close_alerts` has closed the other one.

        Returns:
            The alerts that this call has raised, as they are stored.
        """
        new, now = list[Alert](), self._clock.monotonic()
        for alert, settings in found:
            if self._known.get((alert.subject, alert.since), now) > now:
                continue
            on_raise, on_close = self._hooks_of(alert.rule, settings)
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
        for earlier in self._store.alerts(selection):
            if earlier.closed is not None and earlier.closed > alert.since:
                return changed(alert, since=earlier.since)
        return alert

    def close_alerts(self, over: Iterable[tuple[Alert, str]]) -> Sequence[Alert]:
        """Close alerts that are over.

        Returns:
            The alerts that this call has closed, as they are stored.
        """
        by_text = dict[str, list[Alert]]()
        for alert, text in over:
            by_text.setdefault(text, []).append(alert)
        closed = list[Alert]()
        for text, alerts in by_text.items():
            closed += self._store.close_alerts(alerts, text)
        subjects = {alert.subject for alerts in by_text.values() for alert in alerts}
        if subjects:
            ended = {(alert.subject, alert.since) for each in by_text.values() for alert in each}
            self._known = {
                each: until
                for each, until in self._known.items()
                if each[0] not in subjects or each in ended
            }
        return closed
