"""Delivers the events of alerts to hooks, each hook in a thread of its own.

The store says what must be delivered, how often that was tried, and when it is tried next. A
monitor leases an alert while it delivers it. If the monitor dies, another one goes on when the
lease has ended, so a receiver can be told twice.
"""

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace as changed
from typing import Any, NamedTuple, Protocol

from psched.base.clock import Clock
from psched.base.errors import PschedError
from psched.base.texts import brief
from psched.config import Config
from psched.config.monitoring import READ_TEMPLATES, MailHook, TaskHook, Webhook
from psched.core.alerts.alert import Alert, Delivery, Rule
from psched.core.alerts.watching import light_rows
from psched.core.columns import note_of
from psched.core.history.protocol import RunSelection
from psched.core.history.records import Outcome
from psched.core.model import WAITING
from psched.core.output import Output, OutputSelection
from psched.core.store_protocol import Store
from psched.notify.notification import (
    CLOSED,
    RAISED,
    Context,
    Deliver,
    DeliveryError,
    Digest,
    Notification,
    Told,
    next_wait,
)
from psched.notify.webhook import WARNINGS
from psched.reports.raising import hooks_of
from psched.reports.redaction import Redaction
from psched.triggers.zone import find_zone

_log = logging.getLogger("psched.monitor")

_LEASE = 150.0
"""Seconds for which an alert is leased. A webhook takes at most a minute, and so does each of the
few that are before it. A program may run longer: then another monitor can run it, too."""

_MOST_TAKEN = 50  # the most alerts that are leased at the same time

_LONGEST_QUEUE = 5.0
"""About so many seconds of work wait for one hook. Further deliveries are put off, so that a slow
receiver does not keep the alerts from the other hooks."""

_MINUTE = 60.0
MOST_TOLD = 10
"""So many messages a minute people read one by one. What comes then is told in one message."""

_FIRST_GUESS = 0.5  # how long a delivery takes, in seconds, before one has ended
_SMOOTHING = 0.3  # the weight of the last delivery in the mean time of a delivery


class HookCaller:
    """Delivers events by the hooks of the configuration; called in the threads of the hooks."""

    def __init__(self, deliverers: Mapping[str, Deliver], settings: Config, host: str) -> None:
        self._deliverers = deliverers
        self._settings = settings
        self._host = host
        self._redaction = Redaction(settings.redact)
        self._zone = find_zone(settings.timezone)

    @property
    def names(self) -> Collection[str]:
        """The names of the hooks."""
        return self._deliverers.keys()

    def tries(self, hook: str) -> int:
        """The largest number of tries of a delivery by a hook."""
        return self._settings.hooks[hook].tries

    def is_read(self, hook: str) -> bool:
        """Whether people read what is delivered, so that many events become one message."""
        made = self._settings.hooks[hook]
        return isinstance(made, MailHook) or (
            isinstance(made, Webhook) and made.template in READ_TEMPLATES
        )

    def deliver(self, hook: str, told: Sequence[Told]) -> None:
        """Deliver an event by a hook, or several in one message, or raise `DeliveryError`."""
        common: dict[str, Any] = {
            "installation": self._settings.table,
            "host": self._host,
            "redaction": self._redaction,
            "zone": self._zone,
        }
        # A message about several events is as urgent as its first one.
        first, *others = (
            Notification(event=event, alert=alert, context=context, **common)
            for event, alert, context in sorted(
                told, key=lambda each: (each.event == CLOSED, each.alert.rule in WARNINGS)
            )
        )
        notification = first
        if others:
            notification = Digest(
                event=first.event, alert=first.alert, members=[first, *others], **common
            )
        self._deliverers[hook](notification)


class Delivered(Protocol):
    """What `Deliveries` needs of a store: a part of `psched.core.alerts.protocol.KeepsAlerts`."""

    def take_alerts(self, owner: str, *, lease: float, limit: int) -> Sequence[Alert]:
        """Lease alerts whose deliveries are due."""
        ...

    def note_deliveries(self, alert: Alert) -> bool:
        """Store what has become of the deliveries of a leased alert, and end the lease."""
        ...


class _Job(NamedTuple):
    name: str  # as in Alert.deliveries
    tries: int
    told: Told


class _Done(NamedTuple):
    jobs: Sequence[_Job]
    error: DeliveryError | None
    took: float


class _Taken:
    """An alert that is leased, and what has become of its deliveries so far."""

    def __init__(self, alert: Alert) -> None:
        self.alert = alert
        self.going_on: set[str] = set()  # the names of the deliveries that are going on

    def note(self, name: str, delivery: Delivery) -> None:
        """Note what has become of a delivery."""
        self.alert = changed(self.alert, deliveries={**self.alert.deliveries, name: delivery})


class _HookThread:
    """Calls one hook, one delivery after the other."""

    def __init__(
        self,
        hook: str,
        deliverer: HookCaller,
        done: "queue.Queue[_Done]",
        *,
        clock: Clock,
        wake: threading.Event,
    ) -> None:
        self._hook = hook
        self._deliverer = deliverer
        self._done = done
        self._clock = clock
        self._wake = wake
        self._is_read = deliverer.is_read(hook)
        self._added = list[_Job]()
        self._begun = deque[float](maxlen=MOST_TOLD)  # when the last messages were
        self._jobs: queue.Queue[Sequence[_Job] | None] = queue.Queue()
        self._waiting = 0  # messages whose results were not reaped yet
        self._usual = _FIRST_GUESS
        self._free_at = 0.0
        threading.Thread(target=self._run, name=f"hook {hook}", daemon=True).start()

    def put_off(self, now: float) -> float | None:
        """Until when one more delivery is put off, by the store's clock; None if it is not.

        What a slow hook puts off gets different times, so that each is put off once. What is too
        much to read gets one time, so that it becomes one message.
        """
        if self._is_read and not self._room(now):
            return self._begun[0] + _MINUTE
        ahead = self._waiting + (0 if self._is_read else len(self._added))
        if ahead and ahead * self._usual > _LONGEST_QUEUE:
            self._free_at = max(self._free_at, now + _LONGEST_QUEUE) + self._usual
            return self._free_at
        return None

    def add(self, job: _Job) -> None:
        """Have something delivered by `begin`."""
        self._added.append(job)

    def _room(self, now: float) -> int:
        """How many messages more this minute has."""
        return MOST_TOLD - sum(now - _MINUTE < each <= now for each in self._begun)

    def begin(self, now: float) -> None:
        """Begin the deliveries that were added: in one message if they are too many to read."""
        added, self._added = self._added, []
        together = self._is_read and len(added) > self._room(now)
        for jobs in [added] if together else [[job] for job in added]:
            self._begun.append(now)
            self._waiting += 1
            self._jobs.put(jobs)

    def reaped(self, took: float) -> None:
        """Note that the delivery of a message has ended."""
        self._waiting -= 1
        self._usual += _SMOOTHING * (took - self._usual)

    def end(self) -> None:
        """Let the thread end after what it does now."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (jobs := self._jobs.get()) is not None:
            begun = self._clock.monotonic()
            error = None
            try:
                self._deliverer.deliver(self._hook, [job.told for job in jobs])
            except DeliveryError as failure:
                error = failure
            except Exception as fault:  # noqa: BLE001  # a hook's fault must not end its thread
                _log.exception("a fault in hook %s", self._hook)
                error = DeliveryError(f"a fault: {brief(str(fault))}", retry=False)
            self._done.put(_Done(jobs, error, self._clock.monotonic() - begun))
            self._wake.set()


class Deliveries:
    """Takes alerts whose deliveries are due, has them delivered, and notes the results.

    All methods are called in one thread, which owns the store.
    """

    def __init__(
        self,
        store: Delivered,
        owner: str,  # a text that no other monitor uses
        deliverer: HookCaller,
        *,
        clock: Clock,
        wake: threading.Event,  # set when a delivery has ended, so that `step` can be called
        context_of: Callable[[str, Alert], Context] = lambda _event, _alert: Context(),
    ) -> None:
        self._store = store
        self._context_of = context_of
        self._owner = owner
        self._deliverer = deliverer
        self._clock = clock
        self._wake = wake
        self._done: queue.Queue[_Done] = queue.Queue()
        self._threads: dict[str, _HookThread] = {}
        self._taken: dict[tuple[str, str, str, int], _Taken] = {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is being delivered."""
        return not self._taken

    def step(self, tell_time: Callable[[], float], *, takes: bool = True) -> None:
        """Note what was delivered, and take what is due."""
        if self._taken:
            now = tell_time()
            self._reap(now)
            for taken in self._taken.values() if takes else ():
                self._add(taken, now)
            self._begin(now)
        free = _MOST_TAKEN - len(self._taken)
        if not takes or free <= 0:
            return
        if found := self._store.take_alerts(self._owner, lease=_LEASE, limit=free):
            now = tell_time()
            for alert in found:
                if (known := self._taken.get(_identity(alert))) is not None:
                    # A delivery takes longer than the lease, so the lease was taken again.
                    known.alert = changed(alert, deliveries=known.alert.deliveries)
                else:
                    taken = self._taken[_identity(alert)] = _Taken(alert)
                    self._add(taken, now)
            self._begin(now)

    def close(self) -> None:
        """Let the threads end."""
        for thread in self._threads.values():
            thread.end()

    def _begin(self, now: float) -> None:
        """Have made what was added, and note what needs nothing more."""
        for thread in self._threads.values():
            thread.begin(now)
        self._note()

    def _add(self, taken: _Taken, now: float) -> None:
        """Have the deliveries of an alert made that are due and not going on."""
        for name in due_deliveries(taken.alert, now):
            if name in taken.going_on:
                continue
            hook = name.partition("/")[2]
            seen = taken.alert.deliveries.get(name, Delivery())
            if hook not in self._deliverer.names:
                # A row can name any hook, so no thread is started. Another host may define it.
                error = DeliveryError(f"hooks does not define {hook} on this host", retry=True)
                taken.note(name, _result(seen.tries + 1, error, next_wait(seen.tries + 1), now))
                continue
            thread = self._thread(hook)
            if (put_off := thread.put_off(now)) is not None:
                taken.note(name, changed(seen, next_try=_milliseconds(put_off)))
                continue
            taken.going_on.add(name)
            told = self._told(name.partition("/")[0], taken.alert)
            thread.add(_Job(name, seen.tries, told))

    def _told(self, event: str, alert: Alert) -> Told:
        try:
            return Told(event, alert, self._context_of(event, alert))
        except PschedError:  # what is wrong is told without it
            return Told(event, alert)

    def _thread(self, hook: str) -> _HookThread:
        if (thread := self._threads.get(hook)) is None:
            thread = self._threads[hook] = _HookThread(
                hook, self._deliverer, self._done, clock=self._clock, wake=self._wake
            )
        return thread

    def _reap(self, now: float) -> None:
        while not self._done.empty():
            jobs, error, took = self._done.get()
            hook = jobs[0].name.partition("/")[2]
            self._threads[hook].reaped(took)
            for job in jobs:
                taken = self._taken[_identity(job.told.alert)]
                taken.going_on.remove(job.name)
                tries, wait = job.tries + 1, None
                if error is not None:
                    wait = next_wait(tries, self._deliverer.tries(hook)) if error.retry else None
                    again = "given up" if wait is None else f"tried again in {wait} s"
                    _log.error("hook %s: %s: %s", hook, error, again)
                taken.note(job.name, _result(tries, error, wait, now))

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


def _result(tries: int, error: DeliveryError | None, wait: float | None, now: float) -> Delivery:
    if error is None:
        return Delivery(tries=tries, done=True)
    again = None if wait is None else _milliseconds(now + wait)
    return Delivery(tries=tries, next_try=again, problem=brief(str(error)))


def _wanted(alert: Alert) -> Iterator[tuple[str, Delivery | None]]:
    """The deliveries that an alert needs now, by name, and what has become of them.

    A hook is told of the end only after it was told of the beginning; and not at all if that was
    given up.
    """
    for hook in alert.on_raise:
        name = f"{RAISED}/{hook}"
        yield name, alert.deliveries.get(name)
    for hook in alert.on_close if alert.closed is not None else ():
        begun = alert.deliveries.get(f"{RAISED}/{hook}")
        if hook not in alert.on_raise or (begun is not None and begun.done):
            name = f"{CLOSED}/{hook}"
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


_OF_RUN = frozenset({Rule.LONGEST, Rule.UNUSUAL})
"""The rules about a run that is going on; they are over when it ends, however it ends."""

_PRINTED = frozenset({Rule.FAILED, Rule.GAVE_UP, Rule.LOST})
"""The rules about a run that may have printed why it has failed."""

_FAILED: Mapping[str, str] = {
    Outcome.FAILED: "the run has failed",
    Outcome.TIMED_OUT: "the run was stopped at its time limit",
    Outcome.LOST: "the run was lost",
    Outcome.PREEMPTED: "the run has lost its lease",
    Outcome.CANCELLED: "the run was stopped",
}

_BROKEN = frozenset(_FAILED) - {Outcome.CANCELLED}
"""The outcomes of attempts that may have printed why."""

_NEWEST = 5  # the most records that are searched for the run of an alert

_TOLERANCE = 2000
"""Milliseconds: the claim's time, since which an alert counts, is known in whole seconds."""

_LINES, _CHARACTERS = 15, 2000
"""The most lines and characters of the output that are told."""


def context_of(store: Store, event: str, alert: Alert) -> Context:
    """Read what people want to know besides an alert about a schedule."""
    row = light_rows(store, [alert.key]).get(alert.key) if alert.key else None
    if row is None:
        return Context()
    waits = row.status == WAITING and row.owner is None
    context = Context(note=note_of(row), next_run=row.next_run_time if waits else None)
    history, output = store.history, store.output
    if history is None or history.problem() is not None:
        return context
    if event == CLOSED:
        if alert.rule in _OF_RUN:
            runs = history.runs(RunSelection(key=alert.key, since=alert.since, limit=_NEWEST))
            ends = (run.outcome for run in runs if run.began <= alert.since + _TOLERANCE)
            context = changed(context, failed=_FAILED.get(next(ends, None) or ""))
        return context
    if alert.rule in _PRINTED and output is not None and not output.problem():
        newest = RunSelection(key=alert.key, with_extra_runs=True, outcomes=_BROKEN, limit=1)
        for run in history.runs(newest):
            place = OutputSelection(key=run.key, scheduled_time=run.scheduled_time, limit=_NEWEST)
            for record in output.outputs(place):
                if record.attempt == run.attempt:
                    lines = Output(record).text.rstrip().splitlines()[-_LINES:]
                    return changed(context, output="\n".join(lines)[-_CHARACTERS:])
    return context


def hooks_without_store(rule: str, settings: Config) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The hooks that are told about an alert, without those that need the store."""

    def kept(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in names if not isinstance(settings.hooks.get(name), TaskHook))

    told, told_later = hooks_of(rule, settings)
    return kept(told), kept(told_later)
