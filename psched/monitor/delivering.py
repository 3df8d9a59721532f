"""Delivers the events of alerts to hooks, each hook in a thread of its own.

The store says what must be delivered, how often that was tried, and when it is tried next. A
monitor leases an alert while it delivers it. If the monitor dies, another one goes on when the
lease has ended, so a receiver can be told twice.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from typing import NamedTuple, Protocol

from psched.base.clock import Clock
from psched.base.texts import brief
from psched.core.alerts.alert import Alert, Delivery

_log = logging.getLogger("psched.monitor")

RAISED = "raised"
CLOSED = "closed"
"""The two events of an alert."""

_LEASE = 150.0
"""Seconds for which an alert is leased. A webhook takes at most a minute, and waits for at most
`_MOST_QUEUED` others. A program may run longer: then another monitor can run it, too."""

_MOST_TAKEN = 50
"""The most alerts that are leased at the same time."""

_MOST_QUEUED = 1
"""The most deliveries that wait for one hook, besides the one that is going on. Further ones are
put off, so that a slow receiver does not keep the alerts from the other hooks."""

_PUT_OFF = 0.2
"""Seconds for which a delivery is put off."""

_SLOW = 2.0
"""Seconds of one delivery after which a receiver counts as slow."""

_PUT_OFF_LONG = 30.0
"""Seconds for which a delivery to a slow receiver is put off."""


class DeliveryFailedError(Exception):
    """A delivery has failed.

    Args:
        problem: what went wrong, in one line.
        wait: seconds until it is tried again; None if it is not.
    """

    def __init__(self, problem: str, wait: float | None) -> None:
        super().__init__(problem)
        self.wait = wait


Deliver = Callable[[str, str, Alert, int], None]
"""Delivers an event to a hook. The arguments are the name of the hook, the event, the alert, and
how often the delivery was tried before. Raises `DeliveryFailedError`."""


class Delivered(Protocol):
    """What `Deliveries` needs of a store: a part of `psched.core.alerts.protocol.KeepsAlerts`."""

    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Lease alerts whose deliveries are due."""
        ...

    def note_deliveries(self, alert: Alert) -> bool:
        """Store what has become of the deliveries of a leased alert, and end the lease."""
        ...


class _Job(NamedTuple):
    alert: Alert
    name: str  # as in Alert.deliveries
    tries: int


class _Done(NamedTuple):
    job: _Job
    error: DeliveryFailedError | None


class _Taken:
    """An alert that is leased, and what has become of its deliveries so far.

    Attributes:
        alert: the alert.
        going_on: the names of the deliveries that are going on.
    """

    def __init__(self, alert: Alert) -> None:
        self.alert = alert
        self.going_on: set[str] = set()

    def note(self, name: str, delivery: Delivery) -> None:
        """Note what has become of a delivery."""
        self.alert = changed(self.alert, deliveries={**self.alert.deliveries, name: delivery})


class HookThread:
    """Calls one hook, one delivery after the other.

    Args:
        name: the name of the hook.
        deliver: see `Deliver`.
        done: receives the results.
        clock: measures how long a delivery takes.
        wake: set after each result.
    """

    def __init__(
        self,
        name: str,
        deliver: Deliver,
        done: "queue.Queue[_Done]",
        *,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._done = done
        self._clock = clock
        self._wake = wake
        self._since = clock.monotonic()
        self._jobs: queue.Queue[_Job] = queue.Queue()
        threading.Thread(target=self._run, name=f"hook {name}", daemon=True).start()

    @property
    def put_off(self) -> float:
        """Seconds for which a further delivery is put off; 0 if it can wait here."""
        if self._jobs.qsize() < _MOST_QUEUED:
            return 0.0
        return _PUT_OFF_LONG if self._clock.monotonic() > self._since + _SLOW else _PUT_OFF

    def add(self, job: _Job) -> None:
        """Have something delivered."""
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            self._since = self._clock.monotonic()
            error = None
            try:
                self._deliver(self._name, job.name.partition("/")[0], job.alert, job.tries)
            except DeliveryFailedError as failure:
                error = failure
            except Exception as fault:  # noqa: BLE001  # a hook's fault must not end its thread
                _log.exception("a fault in hook %s", self._name)
                error = DeliveryFailedError(f"a fault: {brief(str(fault))}", None)
            self._done.put(_Done(job, error))
            self._wake.set()


class Deliveries:
    """Takes alerts whose deliveries are due, has them delivered, and notes the results.

    All methods are called in one thread, which owns the store.

    Args:
        store: contains the alerts.
        owner: a text that no other monitor uses.
        deliver: see `Deliver`; called in other threads.
        clock: measures how long deliveries take.
        wake: set when a delivery has ended, so that `step` can be called.
    """

    def __init__(
        self,
        store: Delivered,
        owner: str,
        deliver: Deliver,
        *,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._store = store
        self._owner = owner
        self._deliver = deliver
        self._clock = clock
        self._wake = wake
        self._done: queue.Queue[_Done] = queue.Queue()
        self._threads: dict[str, HookThread] = {}
        self._taken: dict[tuple[str, str, str, int], _Taken] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered."""
        return not self._taken

    def step(self, tell_time: Callable[[], float]) -> None:
        """Note what was delivered, and take what is due.

        Args:
            tell_time: returns the time of the store's clock, in Unix seconds; called if needed.

        Raises:
            StoreError: the store does not answer. What is not noted is noted by a later step.
        """
        if self._taken:
            now = tell_time()
            self._reap(now)
            for taken in self._taken.values():
                self._begin(taken, now)
            self._note()
        if (free := _MOST_TAKEN - len(self._taken)) <= 0:
            return
        if found := self._store.take_alerts(self._owner, lease=_LEASE, limit=free):
            now = tell_time()
            for alert in found:
                if (known := self._taken.get(_identity(alert))) is not None:
                    # A delivery takes longer than the lease, so the lease was taken again.
                    known.alert = changed(alert, deliveries=known.alert.deliveries)
                else:
                    taken = self._taken[_identity(alert)] = _Taken(alert)
                    self._begin(taken, now)
            self._note()

    def _begin(self, taken: _Taken, now: float) -> None:
        """Have the deliveries of an alert made that are due and not going on."""
        for name in due_deliveries(taken.alert, now):
            if name in taken.going_on:
                continue
            hook = name.partition("/")[2]
            if (thread := self._threads.get(hook)) is None:
                thread = self._threads[hook] = HookThread(
                    hook, self._deliver, self._done, clock=self._clock, wake=self._wake
                )
            seen = taken.alert.deliveries.get(name, Delivery())
            if put_off := thread.put_off:
                taken.note(name, changed(seen, next_try=_milliseconds(now + put_off)))
            else:
                taken.going_on.add(name)
                thread.add(_Job(taken.alert, name, seen.tries))

    def _reap(self, now: float) -> None:
        while not self._done.empty():
            job, error = self._done.get()
            taken = self._taken[_identity(job.alert)]
            taken.going_on.remove(job.name)
            taken.note(job.name, _result(job.tries + 1, error, now))
            if error is not None:
                again = "tried again" if error.wait is not None else "given up"
                _log.error("hook %s: %s: %s", job.name.partition("/")[2], error, again)

    def _note(self) -> None:
        """Store the deliveries of the alerts of which none is going on."""
        for identity, taken in [*self._taken.items()]:
            if not taken.going_on:
                alert = taken.alert
                self._store.note_deliveries(changed(alert, next_try=next_try(alert)))
                del self._taken[identity]


def _identity(alert: Alert) -> tuple[str, str, str, int]:
    return *alert.subject, alert.since


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def _result(tries: int, error: DeliveryFailedError | None, now: float) -> Delivery:
    if error is None:
        return Delivery(tries=tries, done=True)
    again = None if error.wait is None else _milliseconds(now + error.wait)
    return Delivery(tries=tries, next_try=again, problem=brief(str(error)))


def _wanted(alert: Alert) -> Iterator[tuple[str, Delivery | None]]:
    """The deliveries that an alert needs, by name, and what has become of them."""
    events: Mapping[str, tuple[str, ...]] = {RAISED: alert.on_raise}
    if alert.closed is not None:
        events = {**events, CLOSED: alert.on_close}
    for event, hooks in events.items():
        for hook in hooks:
            name = f"{event}/{hook}"
            yield name, alert.deliveries.get(name)


def due_deliveries(alert: Alert, now: float) -> list[str]:
    """The names of the deliveries of an alert that are due, in the order in which they are made."""
    return [
        name
        for name, seen in _wanted(alert)
        if seen is None or (seen.next_try is not None and seen.next_try <= _milliseconds(now))
    ]


def next_try(alert: Alert) -> int | None:
    """When the next delivery of an alert is due, in milliseconds; None if there is none."""
    times = [
        alert.raised if seen is None else seen.next_try
        for _, seen in _wanted(alert)
        if seen is None or seen.next_try is not None
    ]
    return min((time for time in times if time is not None), default=None)
