"""Tells that this host's monitor cannot reach the store, by the hooks that need no store."""

import threading
from collections.abc import Sequence
from dataclasses import replace as changed

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.raising import HooksOf
from psched.monitor.delivering import Deliver, Deliveries

PATIENCE = 60.0
"""Seconds for which the store does not answer before somebody is told."""


class _OneAlert:
    """Keeps the alert about the present outage, as a store keeps all others.

    Args:
        clock: tells the time of this host, because that of the store is not known.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.alert: Alert | None = None

    def now(self) -> float:
        return self._clock.wall()

    def raise_alert(self, alert: Alert) -> None:
        """Replace the alert of an earlier outage."""
        now = round(self.now() * 1000)
        self.alert = changed(alert, since=now, raised=now, next_try=now)

    def close_alert(self, text: str) -> None:
        """Close the alert."""
        if self.alert is not None:
            now = round(self.now() * 1000)
            self.alert = changed(self.alert, closed=now, closed_text=text)
            if self.alert.owner is None:
                self.alert = changed(self.alert, next_try=now)

    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Return the alert if a delivery is due."""
        now = round(self.now() * 1000)
        alert = self.alert
        if not limit or alert is None or alert.next_try is None or alert.next_try > now:
            return ()
        self.alert = changed(
            alert, owner=owner, fence=alert.fence + 1, next_try=now + round(lease * 1000)
        )
        return [self.alert]

    def note_deliveries(self, alert: Alert) -> bool:
        """Store what has become of the deliveries."""
        kept = self.alert
        if kept is None or (kept.since, kept.fence) != (alert.since, alert.fence):
            return False
        missed = kept.closed != alert.closed
        self.alert = changed(
            kept,
            deliveries=alert.deliveries,
            next_try=round(self.now() * 1000) if missed else alert.next_try,
            owner=None,
        )
        return True


class Outage:
    """Tells when the store has not answered for `PATIENCE`, and when it answers again.

    Args:
        settings: the settings of the installation.
        host: the name of this host.
        hooks_of: tells which hooks are told. Hooks that need the store must not be among them.
        deliver: see `psched.monitor.delivering.Deliver`.
        clock: measures how long the store does not answer.
        wake: set when `step` has something to do.
    """

    def __init__(
        self,
        settings: Config,
        *,
        host: str,
        hooks_of: HooksOf,
        deliver: Deliver,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._settings = settings
        self._host = host
        self._hooks_of = hooks_of
        self._clock = clock
        self._since: float | None = None
        self._is_told = False
        self._kept = _OneAlert(clock)
        self._deliveries = Deliveries(self._kept, "this monitor", deliver, clock=clock, wake=wake)

    def failed(self, error: Exception) -> None:
        """Note that the store has not answered."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        if self._is_told or now < self._since + PATIENCE:
            return
        self._is_told = True
        on_raise, on_close = self._hooks_of(Rule.UNREACHABLE, self._settings)
        self._kept.raise_alert(
            Alert(
                key="",
                host=self._host,
                rule=Rule.UNREACHABLE,
                since=0,
                text=f"the store does not answer the monitor: {brief(str(error))}",
                on_raise=on_raise,
                on_close=on_close,
            )
        )

    def passed(self) -> None:
        """Note that the store has answered."""
        self._since = None
        if self._is_told:
            self._is_told = False
            self._kept.close_alert("the store answers the monitor again")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered."""
        return self._deliveries.is_idle

    def step(self) -> None:
        """Deliver what is due."""
        self._deliveries.step(self._kept.now)
