"""Alerts about this host: due rows wait because no slot is free, or workers have died."""

from collections.abc import Callable, Sequence

from psched.base.clock import Clock
from psched.base.texts import counted
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import AlertSelection, KeepsAlerts
from psched.core.history.protocol import KeepsHistory
from psched.core.store_protocol import Store
from psched.master.totals import Host
from psched.reports.raising import Judged, hooks_of

WAITED = 60  # so many seconds a due row waits for a slot before an alert is raised

QUIET = 600.0
"""Seconds without a further death of a worker after which the alert about deaths is over."""

_GONE = 300  # seconds after which a host counts as gone on which no worker is alive
_EVERY = 60.0  # seconds between two searches for alerts about hosts that are gone

_FORGOTTEN = 3600.0
"""Seconds after which this host's alerts are closed that another master has raised."""

_MOST = 1000  # the most open alerts about hosts that are read


class HostAlerts:
    """Raises and closes the alerts about this host, and closes those about hosts that are gone.

    What the master says decides whether an alert is on, and the store decides whether it is open.
    So nothing is forgotten if an answer of the store is lost, or if a monitor is replaced.
    """

    def __init__(
        self,
        store: Store,
        history: KeepsHistory,
        alerts: KeepsAlerts,
        settings: Config,
        *,
        host: str,
        # Returns what is true of the workers of this host; None if that is not known.
        observe: Callable[[], Host | None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._history = history
        self._alerts = alerts
        self._settings = settings
        self._host = host
        self._observe = observe
        self._clock = clock
        self._told_death: float | None = None
        # A new master does not know of earlier deaths, and another master on this host can have
        # seen some. So without a death, the quiet time begins here.
        self._began = clock.boottime()
        self._is_any_open = False
        self._look_at = clock.monotonic()
        # Another master on this host may have raised an alert of the same name. Those that are not
        # ours are closed only if nobody has closed them for long.
        self._ours: set[str] | None = None

    def step(self) -> Judged:
        """Raise and close what is due."""
        host = self._observe()
        if host is None:
            return Judged()
        wanted, over = self._judged(host)
        now = self._clock.monotonic()
        if not (wanted or self._is_any_open or now >= self._look_at):
            return Judged()
        found = [*self._alerts.find_alerts(AlertSelection(key="", only_open=True, limit=_MOST))]
        mine = {alert.rule: alert for alert in found if alert.host == self._host}
        if self._ours is None:
            self._ours = {*mine}
        raised: list[Alert] = []
        closed: list[Alert] = []
        for rule, text in wanted.items():
            if rule not in mine:
                self._ours.add(rule)  # also if the answer is lost
                raised += self._raise(rule, text)
        if Rule.WORKER_DIED in wanted:
            self._told_death = host.last_death
        for rule, alert in mine.items():
            is_old = now >= self._look_at and self._age(alert) > _FORGOTTEN
            if rule in over and (rule in self._ours or is_old):
                closed += self._alerts.close_alerts([alert], over[rule])
        if now >= self._look_at:
            closed += self._close_gone([alert for alert in found if alert.host != self._host])
            self._look_at = now + _EVERY
        self._is_any_open = bool(mine or raised)
        return Judged(raised, closed)

    def _judged(self, host: Host) -> tuple[dict[str, str], dict[str, str]]:
        """The texts of the alerts that are on, by rule; and why the others are over."""
        wanted: dict[str, str] = {}
        over: dict[str, str] = {}
        if host.due and not host.free and host.slots and host.late >= WAITED:
            wanted[Rule.NO_SLOT] = (
                f"{counted(host.due, 'due row')} cannot start, the oldest is {host.late} s late:"
                f" none of {counted(host.slots, 'slot')} is free;"
                f" {host.problem or 'raise concurrency or processors'}"
            )
        elif host.slots and not host.due:
            over[Rule.NO_SLOT] = "no due row waits for a slot any more"
        last = host.last_death
        if self._clock.boottime() - (self._began if last is None else last) >= QUIET:
            over[Rule.WORKER_DIED] = f"no worker has died for {QUIET / 60:.0f} minutes"
        elif last is not None and last != self._told_death:
            # So that a death is told once, even if somebody closes the alert.
            died = counted(host.deaths, "worker")
            wanted[Rule.WORKER_DIED] = (
                f"{died} died unexpectedly since psched-master started; its log says how"
            )
        return wanted, over

    def _raise(self, rule: str, text: str) -> Sequence[Alert]:
        on_raise, on_close = hooks_of(rule, self._settings)
        alert = Alert(
            key="",
            host=self._host,
            rule=rule,
            since=round(self._store.now() * 1000),
            text=text,
            on_raise=on_raise,
            on_close=on_close,
        )
        return self._alerts.raise_alerts([alert])

    def _age(self, alert: Alert) -> float:
        return self._store.now() - alert.raised / 1000

    def _close_gone(self, others: Sequence[Alert]) -> Sequence[Alert]:
        """Close the alerts about hosts that have no worker any more: nobody else would."""
        if not others:
            return ()
        alive = {each.host for each in self._history.workers(int(self._store.now()) - _GONE)}
        gone = [alert for alert in others if alert.host not in alive]
        return self._alerts.close_alerts(gone, "no worker of the host is alive any more")
