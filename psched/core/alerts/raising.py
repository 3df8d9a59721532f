"""Raises and closes alerts, of any rule, without asking the store again for what it has refused."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace as changed

from psched.config import Config
from psched.core.alerts.alert import Alert
from psched.core.alerts.protocol import KeepsAlerts

HooksOf = Callable[[str, Config], tuple[tuple[str, ...], tuple[str, ...]]]
"""Returns the names of the hooks that are told of an alert.

Its arguments are the rule, and the settings that apply to the schedule; those of the installation
if the alert is about a host. It returns the names of the hooks that are told that the alert was
raised, and of those that are told that it was closed."""

MOST_RAISED = 200
"""The most alerts that one call raises; the others are raised by later calls."""

_MOST_KNOWN = 20_000
"""The most alerts that are remembered because the store has them, open or closed."""


def no_hooks(_rule: str, _settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Nobody is told of any alert."""
    return (), ()


class Raising:
    """Raises and closes alerts in a store.

    Args:
        store: the store.
        hooks_of: returns the hooks of an alert.
    """

    def __init__(self, store: KeepsAlerts, hooks_of: HooksOf = no_hooks) -> None:
        self._store = store
        self._hooks_of = hooks_of
        self._known = set[tuple[tuple[str, str, str], int]]()

    def raise_alerts(self, found: Iterable[tuple[Alert, Config]]) -> Sequence[Alert]:
        """Raise alerts that are on.

        An alert that the store has refused once is not sent again: the store has it, open or
        closed, or another alert of its subject is open. In the last case, the alert can be raised
        after the other one has been closed by `close_alerts`.

        Args:
            found: each alert, with the settings that apply to its schedule.

        Returns:
            The alerts that this call has raised, as they are stored.
        """
        new = list[Alert]()
        for alert, settings in found:
            if (alert.subject, alert.since) in self._known:
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
        self._known.update((alert.subject, alert.since) for alert in new)
        return raised

    def close_alerts(self, over: Iterable[tuple[Alert, str]]) -> Sequence[Alert]:
        """Close alerts that are over.

        Args:
            over: each open alert, with the reason why it is over.

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
            self._known = {each for each in self._known if each[0] not in subjects or each in ended}
        return closed
