"""Alerts about this host: due rows wait because no slot is free, or workers have died."""

from collections.abc import Callable, Sequence
from typing import Protocol

from psched.base.clock import Clock
from psched.base.texts import counted
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.failures import Step
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.alerts.raising import HooksOf
from psched.core.history.protocol import KeepsHistory
from psched.core.store_protocol import Store
from psched.master.totals import Host

WAITED = 60
"""So many seconds a due row waits for a slot before an alert is raised."""

QUIET = 600.0
"""Seconds without a further death of a worker after which the alert about deaths is over."""

_GONE = 300
"""Seconds after which a host counts as gone on which no worker is alive."""

_EVERY = 60.0
"""Seconds between two searches for alerts about hosts that are gone."""

_MOST = 1000
"""The most open alerts about hosts that are read."""


class HostAlertStore(Store, KeepsHistory, KeepsAlerts, Protocol):
    """What `HostAlerts` needs of a store."""


class HostAlerts:
    """Raises and closes the alerts about this host, and closes those about hosts that are gone.

    Args:
        store: contains the alerts.
        settings: the settings of the installation.
        host: the name of this host.
        observe: returns what is true of the workers of this host; None if that is not known.
        hooks_of: tells which hooks are told.
        clock: measures how long no worker has died.
    """

    def __init__(
        self,
        store: HostAlertStore,
        settings: Config,
        *,
        host: str,
        observe: Callable[[], Host | None],
        hooks_of: HooksOf,
        clock: Clock,
    ) -> None:
        self._store = store
        self._settings = settings
        self._host = host
        self._observe = observe
        self._hooks_of = hooks_of
        self._clock = clock
        self._open: dict[str, Alert] | None = None  # by rule; None before they were read
        self._deaths: int | None = None
        self._last_death = clock.monotonic()
        self._look_at = clock.monotonic()

    def step(self) -> Step:
        """Raise and close what is due.

        Raises:
            StoreError: the store does not answer.
        """
        host = self._observe()
        if host is None:
            return Step()
        if self._open is None:
            self._open = {
                alert.rule: alert for alert in self._all_open() if alert.host == self._host
            }
        raised: list[Alert] = []
        closed: list[Alert] = []
        self._judge_slots(host, raised, closed)
        self._judge_deaths(host, raised, closed)
        closed += self._close_gone()
        return Step(raised, closed)

    def _judge_slots(self, host: Host, raised: list[Alert], closed: list[Alert]) -> None:
        if host.due and not host.free and host.slots and host.late >= WAITED:
            text = (
                f"{counted(host.due, 'due row')} cannot start, the oldest is {host.late} s late:"
                f" none of {counted(host.slots, 'slot')} is free; raise concurrency or processors"
            )
            raised += self._raise(Rule.NO_SLOT, text)
        elif host.slots and not host.due:
            closed += self._close(Rule.NO_SLOT, "no due row waits for a slot any more")

    def _judge_deaths(self, host: Host, raised: list[Alert], closed: list[Alert]) -> None:
        now = self._clock.monotonic()
        before, self._deaths = self._deaths, host.deaths
        if before is not None and host.deaths > before:
            self._last_death = now
            died = counted(host.deaths - before, "worker")
            text = f"{died} died unexpectedly; the log of psched-master says how"
            try:
                raised += self._raise(Rule.WORKER_DIED, text)
            except Exception:
                self._deaths = before  # tried again by the next step
                raise
        elif now >= self._last_death + QUIET:
            closed += self._close(
                Rule.WORKER_DIED, f"no worker has died for {QUIET / 60:.0f} minutes"
            )

    def _raise(self, rule: Rule, text: str) -> Sequence[Alert]:
        if self._open is None or rule in self._open:
            return ()
        on_raise, on_close = self._hooks_of(rule, self._settings)
        alert = Alert(
            key="",
            host=self._host,
            rule=rule,
            since=round(self._store.now() * 1000),
            text=text,
            on_raise=on_raise,
            on_close=on_close,
        )
        raised = self._store.raise_alerts([alert])
        # If none was raised, another master on this host has raised it.
        self._open[rule] = raised[0] if raised else alert
        return raised

    def _close(self, rule: Rule, why: str) -> Sequence[Alert]:
        if not self._open or rule not in self._open:
            return ()
        closed = self._store.close_alerts([self._open[rule]], why)
        del self._open[rule]
        return closed

    def _all_open(self) -> Sequence[Alert]:
        return [*self._store.alerts(AlertSelection(key="", only_open=True, limit=_MOST))]

    def _close_gone(self) -> Sequence[Alert]:
        """Close the alerts about hosts that have no worker any more: nobody else would."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return ()
        others = [alert for alert in self._all_open() if alert.host != self._host]
        closed: Sequence[Alert] = ()
        if others:
            alive = {each.host for each in self._store.workers(int(self._store.now()) - _GONE)}
            gone = [alert for alert in others if alert.host not in alive]
            closed = self._store.close_alerts(gone, "no worker of the host is alive any more")
        self._look_at = now + _EVERY
        return closed
