"""Sends a worker's requests to its store; guards tasks and extends due leases before each request.

To guard the tasks is to send them the signals that are due; see `psched.worker.task_guard`.
A request can block the worker for two driver timeouts, and a tick can send several requests. So it
would not be enough to guard and extend once per tick.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from math import ceil
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, StoreUnavailableError, TransientStoreError
from psched.base.texts import cut
from psched.config import Config
from psched.core.store_protocol import HoldsSchedules, Store
from psched.worker.running_task import Hold, Lease, RunningTask
from psched.worker.store_backoff import StoreBackoff
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

T = TypeVar("T")

_log = logging.getLogger("psched.worker")

_MOST_KEYS = 10
"""The most keys in a debug message."""

_LONGEST_KEY = 100
"""The number of characters to which a key in a debug message is cut."""


class StoreGateway:
    """Sends a worker's requests to the store, and extends the worker's leases.

    Args:
        store: where the leases are extended.
        backoff: sends the requests, and pauses after a failure.
        settings: contain the default length of a lease.
        clock: measures when a lease is to be extended.
        tasks: owns the running tasks, which are guarded before each request, and whose leases are
            extended.
        unstarted: owns the leases whose tasks have not been started. Those that wait for a
            trigger's answer are extended.
    """

    def __init__(
        self,
        store: Store,
        backoff: StoreBackoff,
        settings: Config,
        *,
        clock: Clock,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
    ) -> None:
        self._store = store
        self._backoff = backoff
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._unstarted = unstarted
        self._keeping = False

    def request(self, send: Callable[[], T]) -> T:
        """Guard the tasks and extend the leases that are due, then send a request."""
        if self._backoff.ready:
            self.keep_leases()
        return self._backoff.ask(send)

    def request_aside(self, send: Callable[[], T]) -> T:
        """Send a request about which only its sender cares, such as one about the run history.

        It is sent like `request`, but its failure does not count as an outage of the store, so the
        requests about leases go on.
        """
        if not self._backoff.ready:
            raise StoreUnavailableError("the store is away")
        self.keep_leases()
        return send()

    def keep_leases(self) -> None:
        """Guard the tasks (see `TaskTable.guard`), and extend the leases that are due.

        Call this between any two steps that can take long. If the store does not answer, the
        failure is logged, and nothing is raised.
        """
        self._tasks.guard_before_blocking()
        if self._keeping or not self._backoff.ready:
            return
        # The flag prevents an endless recursion, because `extend_due` calls `request`, and
        # `request` calls this method.
        self._keeping = True
        try:
            if self.extend_due(self._held):
                # The extended leases end later, so the tasks are guarded again: this also postpones
                # the time at which the timer of `TaskGuard` kills this process.
                self._tasks.guard_before_blocking()
        except TransientStoreError:
            pass
        finally:
            self._keeping = False

    @property
    def next_extension(self) -> float:
        """When the next extend is due, seconds of the boot-time clock; inf if no lease is held."""
        return min(
            (lease.deadlines.extend for lease in self._held if not lease.lost),
            default=float("inf"),
        )

    def extend_due(self, leases: Sequence[Lease]) -> bool:
        """Extend all of these leases if one of them is due; return whether one was due."""
        boot = self._clock.boottime()
        held = [lease for lease in leases if not lease.lost]
        due = any(boot >= lease.deadlines.extend for lease in held)
        for length in sorted({lease.deadlines.lease for lease in held}) if due else ():
            self._extend([lease for lease in held if lease.deadlines.lease == length], length)
        return due

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
        held: list[Lease] = [*self._tasks, *self._unstarted.waiting.values()]
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
            return self._store.extend(
                tokens, alive_time=self._settings.alive_time, shortest=ceil(length)
            )

        try:
            held = self.request(send)
        except StoreBusyError as busy:
            # One of the rows was locked. Before the error is raised, the answers about the other
            # rows are recorded.
            _note(leases, busy.answered, sent if since is None else since)
            raise
        debug_requests("extended", held, self._clock.monotonic() - asked)
        answered = {key: key in held for key in tokens}
        _note(leases, answered, sent if since is None else since)

    def hold(self, holds: Collection[Hold], length: float) -> frozenset[str]:
        """Hold schedules for extra runs; return the keys of those that are held.

        Args:
            holds: the schedules.
            length: the shortest length of each hold in seconds.
        """
        return self.request(partial(self._hold, holds, length))

    def _hold(self, holds: Collection[Hold], length: float) -> frozenset[str]:
        store: object = self._store
        if not isinstance(store, HoldsSchedules):
            return frozenset()
        return store.hold(
            {hold.key: hold.holder for hold in holds},
            alive_time=self._settings.alive_time,
            shortest=ceil(length),
        )


def debug_requests(done: str, keys: Collection[str], seconds: float) -> None:
    """Log a debug message about one answered request to the store, if such messages are logged."""
    if not _log.isEnabledFor(logging.DEBUG):
        return
    shown = ", ".join(cut(key, _LONGEST_KEY) for key in islice(keys, _MOST_KEYS))
    more = f" and {len(keys) - _MOST_KEYS} more" if len(keys) > _MOST_KEYS else ""
    _log.debug("%s %d in %.1f ms: %s%s", done, len(keys), seconds * 1000, shown, more)


def _note(leases: Sequence[Lease], held: Mapping[str, bool], sent: float) -> None:
    """Record which leases the store has extended, and which are lost.

    Args:
        leases: the leases that were to be extended.
        held: whether each lease is still held, by key; a key is missing if the store has not
            answered about it.
        sent: the time just before the request was sent, seconds of the boot-time clock.
    """
    for lease in leases:
        if lease.row.key in held:
            if held[lease.row.key]:
                lease.extended(sent)
            else:
                lease.refused()
