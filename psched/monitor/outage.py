"""Tells that this host's monitor cannot reach the store, by the hooks that need no store."""

import threading
from collections.abc import Sequence
from dataclasses import replace as changed

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.raising import HooksOf
from psched.monitor.delivering import Deliverer, Deliveries

PATIENCE = 60.0
"""Seconds for which the store does not answer before somebody is told."""


_MOST_KEPT = 10
"""The most outages whose alerts are kept until they are delivered."""


class _Shelf:
    """Keeps the alerts about outages, as a store keeps others, by the clock of this host."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._alerts: list[Alert] = []

    def now(self) -> float:
        return self._clock.wall()

    def add(self, alert: Alert) -> None:
        """Add the alert about an outage that has begun."""
        now = round(self.now() * 1000)
        kept = [each for each in self._alerts if each.next_try is not None]
        self._alerts = [*kept[1 - _MOST_KEPT :], changed(alert, raised=now, next_try=now)]

    def close_last(self, text: str) -> None:
        """Close the alert about the present outage."""
        alert, now = self._alerts[-1], round(self.now() * 1000)
        next_try = alert.next_try if alert.owner is not None else now
        self._alerts[-1] = changed(alert, closed=now, closed_text=text, next_try=next_try)

    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Return alerts of which a delivery is due."""
        now = round(self.now() * 1000)
        taken = list[Alert]()
        for number, alert in enumerate(self._alerts):
            if len(taken) < limit and alert.next_try is not None and alert.next_try <= now:
                until = now + round(lease * 1000)
                held = changed(alert, owner=owner, fence=alert.fence + 1, next_try=until)
                self._alerts[number] = held
                taken.append(held)
        return taken

    def note_deliveries(self, alert: Alert) -> bool:
        """Store what has become of the deliveries."""
        for number, kept in enumerate(self._alerts):
            if (kept.since, kept.fence) == (alert.since, alert.fence):
                missed = kept.closed != alert.closed
                next_try = round(self.now() * 1000) if missed else alert.next_try
                self._alerts[number] = changed(
                    kept, deliveries=alert.deliveries, next_try=next_try, owner=None
                )
                return True
        return False


class Outage:
    """Tells when the store has not answered for `PATIENCE`, and when it answers again."""

    def __init__(
        self,
        settings: Config,
        *,
        host: str,
        # Tells which hooks are told. Hooks that need the store must not be among them.
        hooks_of: HooksOf,
        deliverer: Deliverer,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._settings = settings
        self._host = host
        self._hooks_of = hooks_of
        self._clock = clock
        self._since: float | None = None
        self._began = 0.0
        self._is_told = False
        self._kept = _Shelf(clock)
        self._deliveries = Deliveries(self._kept, "this monitor", deliverer, clock=clock, wake=wake)

    def failed(self, error: Exception) -> None:
        """Note that the store has not answered."""
        now = self._clock.monotonic()
        if self._since is None:
            self._since, self._began = now, self._clock.wall()
        if self._is_told or now < self._since + PATIENCE:
            return
        self._is_told = True
        on_raise, on_close = self._hooks_of(Rule.UNREACHABLE, self._settings)
        self._kept.add(
            Alert(
                key="",
                host=self._host,
                rule=Rule.UNREACHABLE,
                since=round(self._began * 1000),
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
            self._kept.close_last("the store answers the monitor again")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered."""
        return self._deliveries.is_idle

    def step(self, *, takes: bool = True) -> None:
        """Deliver what is due."""
        self._deliveries.step(self._kept.now, takes=takes)

    def close(self) -> None:
        """Let the threads end."""
        self._deliveries.close()
