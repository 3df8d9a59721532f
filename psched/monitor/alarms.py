"""The duty that raises and closes alerts, and tells hooks about them.

It works in a thread of its own, because the store can take long to answer. That thread owns the
connection to the store. If the store does not answer, `Outage` tells hooks that need no store.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace as changed
from typing import Protocol

from psched.base.clock import Clock
from psched.base.errors import TransientStoreError
from psched.base.fault_log import FaultLog
from psched.base.texts import brief
from psched.config import Config
from psched.core.alerts.alert import Alert, Rule
from psched.core.alerts.protocol import KeepsAlerts
from psched.core.store_protocol import Store
from psched.monitor.delivering import Deliveries, HookCaller, hooks_without_store
from psched.reports.raising import Judged

PATIENCE = 60.0  # seconds for which the store does not answer before somebody is told


_MOST_KEPT = 10  # the most outages whose alerts are kept until they are delivered


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
        deliverer: HookCaller,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._settings = settings
        self._host = host
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
        on_raise, on_close = hooks_without_store(Rule.UNREACHABLE, self._settings)
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


_log = logging.getLogger("psched.monitor")

LONGEST_PAUSE = 10.0  # the longest time between two looks at the store, in seconds
_PER_POLL = 10  # the workers search for due rows so many times as often as the monitor judges
_BUSY = 1.0  # seconds between two looks while something is being delivered
_REPAIRS = 60.0  # seconds until the store is asked again whether it keeps alerts
_TRIMS = 3600.0  # seconds between two deletions of old alerts
_TRIMMED = 500  # the most alerts that one deletion deletes
_LOOK = 5.0  # seconds between two looks whether the thread has ended

_LAST_WAIT = 2.0
"""Seconds for which the end of the monitor waits for deliveries. The master kills a monitor that
takes 5 seconds to end, and the pings need 2."""

_SHORT = 0.1  # the longest pause between two looks for deliveries that have ended


class Source(Protocol):
    """Judges something, and raises and closes alerts."""

    def step(self) -> Judged:
        """Judge, and say what was raised and closed."""
        ...


def _problems(what: str, clock: Clock) -> FaultLog:
    """Logs what lasts: the workers log an outage, or a table that is too old, at once."""
    return FaultLog(what, _log, clock, patience=PATIENCE)


class _Timed:
    """A source, when it is due, and why it cannot judge."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self.source = source
        self.due = float("-inf")
        self.problems = _problems("some alerts are not raised", clock)


class AlarmLoop:
    """One look after the other; a fault of a source stops neither the others nor the deliveries."""

    def __init__(
        self,
        store: Store,
        alerts: KeepsAlerts,
        sources: Sequence[Source],
        deliveries: Deliveries,
        outage: Outage,
        *,
        keep: int,  # seconds for which closed alerts are kept; 0 means for ever
        pause: float,  # seconds between two looks
        clock: Clock,
    ) -> None:
        self._store = store
        self._alerts = alerts
        self._sources = [_Timed(source, clock) for source in sources]
        self._deliveries = deliveries
        self._outage = outage
        self._keep = keep
        self._pause = pause
        self._clock = clock
        self._problems = _problems("no alerts are raised", clock)
        self._silence = _problems("the store does not answer the monitor", clock)
        self._usable_until = self._trim_at = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered."""
        return self._deliveries.is_idle and self._outage.is_idle

    def step(self) -> float:
        """Judge and deliver what is due; return the seconds until the next step."""
        pause = self._pause
        try:
            if self._is_usable():
                self._deliveries.step(self._store.now)
                if self._judge():
                    self._deliveries.step(self._store.now)  # so that it is told at once
                self._trim()
                self._problems.passed()
                pause = self._until_due()
            else:
                pause = _REPAIRS
        except TransientStoreError as error:
            self._silence.failed(error)
            self._outage.failed(error)
        except Exception as error:  # noqa: BLE001  # for example, a right on the table is missing
            self._problems.failed(error)
            self._usable_until = float("-inf")
            self._answered()
            pause = _REPAIRS
        else:
            self._answered()
        self._outage.step()
        return pause if self.is_idle else min(pause, _BUSY)

    def finish(self) -> None:
        """Note what was delivered, and begin nothing more."""
        with suppress(Exception):
            self._deliveries.step(self._store.now, takes=False)
        self._outage.step(takes=False)

    def close(self) -> None:
        """Let the threads of the hooks end."""
        self._deliveries.close()
        self._outage.close()

    def _answered(self) -> None:
        self._silence.passed()
        self._outage.passed()

    def _until_due(self) -> float:
        now = self._clock.monotonic()
        dues = (each.due - now for each in self._sources)
        return max(0.0, min([self._pause, *dues]))

    def _is_usable(self) -> bool:
        now = self._clock.monotonic()
        if now < self._usable_until:
            return True
        if (problem := self._alerts.problem()) is not None:
            self._problems.failed(problem)
            return False
        self._usable_until = now + _REPAIRS
        return True

    def _judge(self) -> bool:
        """Let the sources judge that are due; return whether something was raised or closed."""
        is_news = False
        for each in self._sources:
            if self._clock.monotonic() < each.due:
                continue
            try:
                done = each.source.step()
            except Exception as error:  # noqa: BLE001  # it must not stop the others
                # The deliveries have reached the store just before, so this is no outage.
                each.problems.failed(error)
                is_short = isinstance(error, TransientStoreError)
                each.due = self._clock.monotonic() + (self._pause if is_short else _REPAIRS)
                continue
            each.problems.passed()
            each.due = self._clock.monotonic() + (self._pause if done.wait is None else done.wait)
            for note in done.notes:
                _log.warning("%s", note)
            for alert in done.raised:
                _log.warning("alert, %s: %s", _name(alert), alert.text)
            for alert in done.closed:
                _log.info("alert closed, %s: %s", _name(alert), alert.closed_text)
            is_news = is_news or bool(done.raised or done.closed)
        return is_news

    def _trim(self) -> None:
        now = self._clock.monotonic()
        if not self._keep or now < self._trim_at:
            return
        before = round((self._store.now() - self._keep) * 1000)
        deleted = self._alerts.trim_alerts(before=before, limit=_TRIMMED)
        self._trim_at = now if deleted >= _TRIMMED else now + _TRIMS


def _name(alert: Alert) -> str:
    return f"{alert.rule}, {alert.key or f'host {alert.host}'}"


def pause_of(poll_interval: float) -> float:
    """Seconds between two looks at the store of an installation with a ``poll_interval``."""
    return min(LONGEST_PAUSE, max(_BUSY, _PER_POLL * poll_interval))


class Alarms:
    """The duty; see the module. The loop is made in its thread; None: nothing to do."""

    name = "the alarms"

    def __init__(self, make_loop: Callable[[], AlarmLoop | None], wake: threading.Event) -> None:
        self._make_loop = make_loop
        self._wake = wake
        self._is_closing = False
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None

    def step(self, now: float) -> float:
        """Start the thread, if it does not run."""
        del now
        if self._error is not None:
            self._thread = None
            error, self._error = self._error, None
            raise error
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="alarms", daemon=True)
            self._thread.start()
        return _LOOK

    def close(self) -> None:
        """End the thread; what is being delivered is waited for, for a short time."""
        self._is_closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_LAST_WAIT)

    def _run(self) -> None:
        loop = None
        try:
            loop = self._make_loop()
            while loop is not None and not self._is_closing:
                self._wake.wait(loop.step())
                self._wake.clear()
            while loop is not None and not loop.is_idle:
                loop.finish()
                self._wake.wait(_SHORT)
                self._wake.clear()
        except Exception as error:  # noqa: BLE001  # reported by the next step
            self._error = error
        finally:
            if loop is not None:
                loop.close()
