"""Sends a worker's requests to its store; guards tasks and extends due leases before each request.

To guard the tasks is to send them the signals that are due; see `psched.worker.task_table`.
A request can block the worker for two driver timeouts, and a tick can send several requests. So it
would not be enough to guard and extend once per tick. After a failure, no request is sent until a
pause has passed, and each outage is logged.
"""

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import ceil, inf
from typing import TypeVar

from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import (
    SchemaError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
    TransientStoreError,
    UnknownOutcomeError,
)
from psched.base.texts import brief, cut
from psched.config import Config
from psched.core.history.counts import STORE_ERRORS, STORE_SECONDS, Counts
from psched.worker.context import Context
from psched.worker.running_task import Hold, Lease, RunningTask
from psched.worker.task_table import TaskTable
from psched.worker.unstarted import UnstartedLeases

T = TypeVar("T")

_log = logging.getLogger("psched.worker")

_LONGEST_PAUSE = 5.0
"""The longest pause, in seconds, between two attempts to reach an unavailable store. If a twentieth
of the setting ``alive_time`` is shorter, it is used instead.
"""

_FIRST_PAUSE = 0.1
"""Seconds of the pause after a first failure; each consecutive failure doubles the pause."""

_FAST_AGAIN_AFTER = 10.0
"""Seconds without a slow answer after which the store counts as fast enough again."""

_MOST_REASONS = 5
"""The maximum number of different reasons that are logged for one outage, each of them once. The
reason can change during an outage."""


_KINDS = {
    UnknownOutcomeError: "unknown_outcome",
    StoreBusyError: "busy",
    StoreUnavailableError: "unavailable",
    SchemaError: "schema",
}
"""For classes of errors, subclasses first: their names in metrics. Others are \"refused\"."""


_MOST_KEYS = 10
"""The most keys in a debug message."""

_LONGEST_KEY = 100
"""The number of characters to which a key in a debug message is cut."""


class Slowness:
    """Warns when the store begins to answer too slowly for the leases, and logs when this ends."""

    def __init__(self, settings: Config, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._limit = lease_times.slow_request(settings.alive_time, settings.driver_timeout)
        self._since: float | None = None
        self._last = 0.0
        self._given_back = 0

    def answered(self, took: float) -> None:
        """Note that a request was answered."""
        now = self._clock.monotonic()
        if took > self._limit:
            self._begin(f"the store answers slowly: a request took {took:.1f} s", took, now)
        elif self._since is not None and now >= self._last + _FAST_AGAIN_AFTER:
            text = "the store answers in time again, after %.1f s; leases given back unrun: %d"
            _log.warning(text, now - self._since, self._given_back)
            self._since, self._given_back = None, 0

    def gave_back(self, key: str, lease: float) -> None:
        """Note that a row was given back because its lease was too old to start the task."""
        now = self._clock.monotonic()
        text = f"{key}: given back unrun, its lease of {lease:g} s was too old when it could start"
        self._begin(text, self._limit, now)
        self._given_back += 1

    def _begin(self, text: str, took: float, now: float) -> None:
        self._last = now
        if self._since is not None:
            return
        self._since = now
        # ``took`` can be the time of a claim, which waits for two answers. The calculation treats
        # it as the time of one answer, so that it does not recommend too short an alive_time.
        enough = lease_times.sufficient_alive_time(took, self._settings.database_timeout)
        _log.warning(
            "%s; with alive_time %d, tasks can be killed although the store answers: set"
            " alive_time to %d or more, or make the store or the way to it faster",
            text,
            self._settings.alive_time,
            max(enough, self._settings.alive_time + 1),
        )


def _kind(error: StoreError) -> str:
    """The kind of an error, for metrics."""
    for kind, name in _KINDS.items():
        if isinstance(error, kind):
            return name
    return "refused"


class StoreBackoff:
    """Sends requests to the store; after a failure, sends none until a pause has passed.

    Attributes:
        not_before: the earliest time of the next request, seconds of the monotonic clock.
        away: why the store does not answer; None if it answers.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rng: random.Random,
        longest_pause: float,
        slowness: Slowness,
        counts: Counts | None,
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._longest_pause = longest_pause
        self._slowness = slowness
        self._counts = counts
        self._pause = _FIRST_PAUSE
        self.not_before = 0.0
        self.away: str | None = None
        self._away_since = 0.0
        self._answered = False
        self._logged: set[str] = set()

    @property
    def ready(self) -> bool:
        """Whether a request can be sent now, because no pause is running."""
        return self._clock.monotonic() >= self.not_before

    def ask(self, request: Callable[[], T]) -> T:
        """Send a request, and return the answer."""
        begun = self._clock.monotonic()
        if begun < self.not_before:
            raise StoreUnavailableError(self.away or "")
        try:
            answer = request()
        except TransientStoreError as error:
            self._failed(error)
            raise
        except StoreError as error:
            self._failed(error)
            raise StoreUnavailableError(str(error)) from error
        self._answered = True
        took = self._clock.monotonic() - begun
        self._slowness.answered(took)
        if self._counts is not None:
            self._counts.observe(STORE_SECONDS, took)
        return answer

    def all_answered(self) -> None:
        """Note that all requests of a tick were answered, which ends an outage.

        A single answer does not end an outage, because some stores that fail still answer reads.
        """
        if self.away is not None and self._answered:
            away = self._clock.monotonic() - self._away_since
            _log.warning("the store answers again, after %.1f s", away)
            self.away, self._pause = None, _FIRST_PAUSE

    def _failed(self, error: StoreError) -> None:
        now, was_away = self._clock.monotonic(), self.away is not None
        self.away = reason = brief(str(error))
        if self._counts is not None:
            self._counts.add(STORE_ERRORS, _kind(error))
            self._counts.has_news = True
        self._answered = False
        if not was_away:
            self._away_since, self._logged = now, {reason}
            _log.error("%s; running tasks go on while their leases last", error)
        elif reason not in self._logged and len(self._logged) < _MOST_REASONS:
            self._logged.add(reason)
            _log.info("the store is still away: %s", error)
        self.not_before = now + self._pause * self._rng.uniform(0.5, 1)
        self._pause = min(2 * self._pause, self._longest_pause)


class StoreGateway:
    """Sends a worker's requests to the store, and extends the worker's leases.

    Attributes:
        slowness: warns of answers that are too slow for the leases.
        backoff: sends the requests, and pauses after a failure.
    """

    def __init__(self, context: Context, tasks: TaskTable, unstarted: UnstartedLeases) -> None:
        self._store = context.store
        self._alive_time = context.settings.alive_time
        self._clock = context.clock
        self.tasks = tasks
        self._unstarted = unstarted
        self._keeping = False
        self.slowness = Slowness(context.settings, context.clock)
        self.backoff = StoreBackoff(
            clock=context.clock,
            rng=context.rng,
            longest_pause=min(_LONGEST_PAUSE, self._alive_time / 20),
            slowness=self.slowness,
            counts=context.recorder.counts if context.settings.metrics else None,
        )

    def request(self, send: Callable[[], T]) -> T:
        """Guard the tasks and extend the leases that are due, then send a request."""
        if self.backoff.ready:
            self.keep_leases()
        return self.backoff.ask(send)

    def request_aside(self, send: Callable[[], T]) -> T:
        """Send a request about which only its sender cares, such as one about the run history.

        It is sent like `request`, but its failure does not count as an outage of the store, so the
        requests about leases go on.
        """
        if not self.backoff.ready:
            raise StoreUnavailableError("the store is away")
        self.keep_leases()
        return send()

    def keep_leases(self) -> None:
        """Guard the tasks (see `TaskTable.guard`), and extend the leases that are due.

        Call this between any two steps that can take long. If the store does not answer, the
        failure is logged, and nothing is raised.
        """
        self.tasks.guard_before_blocking()
        if self._keeping or not self.backoff.ready:
            return
        # The flag prevents an endless recursion, because `extend_due` calls `request`, and
        # `request` calls this method.
        self._keeping = True
        try:
            if self.extend_due(self._held):
                # The extended leases end later, so the tasks are guarded again: this also postpones
                # the time at which the timer of `TaskGuard` kills this process.
                self.tasks.guard_before_blocking()
        except TransientStoreError:
            pass
        finally:
            self._keeping = False

    @property
    def next_extension(self) -> float:
        """When the next extend is due, seconds of the boot-time clock; inf if no lease is held."""
        return min(
            (lease.deadlines.extend for lease in self._held if not lease.lost),
            default=inf,
        )

    def extend_due(self, leases: Sequence[Lease]) -> bool:
        """Extend all of these leases if one of them is due; return whether one was due."""
        boot = self._clock.boottime()
        held = [lease for lease in leases if not lease.lost]
        due = any(boot >= lease.deadlines.extend for lease in held)
        for length in sorted({lease.deadlines.lease for lease in held}) if due else ():
            self._extend([lease for lease in held if lease.deadlines.lease == length], length)
        return due

    def fresh(self, granted: Sequence[Lease]) -> Sequence[Lease]:
        """Extend new leases if one of them is due; return those that this worker still holds.

        Without this, the leases of a slow claim would be too old for their tasks to be started.
        """
        # A failure has been logged, and is ignored here, because no task is started when its lease
        # is too old.
        with suppress(TransientStoreError):
            self.extend_due(granted)
        for lease in granted:
            if lease.lost:
                _log.warning("%s: preempted before it was started", lease.row.key)
        return [lease for lease in granted if not lease.lost]

    def extend_now(self, task: RunningTask) -> bool:
        """Extend a task's lease at its request; return whether it was still held."""
        self._extend([task], task.deadlines.lease)
        return not task.is_lost

    def update_data(self, task: RunningTask, data: str) -> bool:
        """Replace the payload of a task's schedule; return whether the lease was still held."""
        row = task.row
        return self.request(partial(self._store.update_data, row.key, row.token, data))

    @property
    def _held(self) -> Sequence[Lease]:
        """All leases that this gateway extends."""
        held: list[Lease] = [*self.tasks.running.values(), *self._unstarted.waiting.values()]
        held += self._unstarted.prefetched.values()
        return held

    def _extend(self, leases: Sequence[Lease], length: float) -> None:
        """Extend leases, all of which have this length, and the holds of extra runs.

        Leases without a hold come first, so that a locked schedule delays only its extra run.
        """
        if plain := [lease for lease in leases if lease.hold is None]:
            self._extend_leases(plain, length)
        if holds := {lease.hold.key: lease.hold for lease in leases if lease.hold is not None}:
            sent = self._clock.boottime()
            held = self.hold(holds.values(), length)
            for key, hold in holds.items():
                hold.lost = key not in held
            # An extra run must end before its hold does, so that both count from here.
            self._extend_leases([each for each in leases if each.hold is not None], length, sent)

    def _extend_leases(
        self, leases: Sequence[Lease], length: float, since: float | None = None
    ) -> None:
        """Extend leases, all of which have this length; each lease gets at least this length again.

        The setting for a row's lease can have been shortened since the row was claimed. The shorter
        length applies only from the next claim on, because the deadlines of the current lease were
        computed from the longer one. The leases count from ``since`` by the boot-time clock, or
        else from just before the request is sent.
        """
        tokens = {lease.row.key: lease.row.token for lease in leases}
        sent = asked = 0.0

        def send() -> frozenset[str]:
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            return self._store.extend(tokens, alive_time=self._alive_time, shortest=ceil(length))

        try:
            held = self.request(send)
        except StoreBusyError as busy:
            # One of the rows was locked. Before the error is raised, the answers about the other
            # rows are recorded.
            _note(leases, busy.answered, sent if since is None else since)
            raise
        self.debug("extended", held, asked)
        answered = {key: key in held for key in tokens}
        _note(leases, answered, sent if since is None else since)

    def hold(self, holds: Collection[Hold], length: float) -> frozenset[str]:
        """Hold schedules for extra runs, for ``length`` seconds at least; return the held keys."""
        return self.request(partial(self._hold, holds, length))

    def debug(self, done: str, keys: Collection[str], asked: float) -> None:
        """Log a debug message about a request that was sent then, if such messages are logged."""
        if not _log.isEnabledFor(logging.DEBUG):
            return
        shown = ", ".join(cut(key, _LONGEST_KEY) for key in islice(keys, _MOST_KEYS))
        more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
        took = (self._clock.monotonic() - asked) * 1000
        _log.debug("%s %d in %.1f ms: %s%s", done, len(keys), took, shown, more)

    def _hold(self, holds: Collection[Hold], length: float) -> frozenset[str]:
        if self._store.holds is None:
            return frozenset()
        return self._store.holds.hold(
            {hold.key: hold.holder for hold in holds},
            alive_time=self._alive_time,
            shortest=ceil(length),
        )


def _note(leases: Sequence[Lease], held: Mapping[str, bool], sent: float) -> None:
    """Record which leases the store has extended, and which are lost, by the keys of their rows.

    A key is missing if the store has not answered about it.
    """
    for lease in leases:
        if lease.row.key in held:
            lease.answered(sent, held=held[lease.row.key])
