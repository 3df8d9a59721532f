"""Sends a worker's requests to its store; guards tasks and extends due leases before each request.

A request may block the worker for two driver timeouts. Guarding and extending once in a tick would
not be enough, because a tick may send several requests.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import ceil
from typing import TypeVar

from psched.base.clock import Clock
from psched.base.errors import StoreBusyError, TransientStoreError
from psched.config import Config
from psched.core.store_protocol import Store
from psched.worker.lease import Lease
from psched.worker.running_task import RunningTask
from psched.worker.store_backoff import StoreBackoff
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

T = TypeVar("T")


class StoreGateway:
    """Sends requests, and keeps this worker's leases.

    Args:
        store: where the leases are extended.
        backoff: sends the requests, and pauses after a failure.
        settings: the lengths of leases.
        clock: tells when a lease is to be extended.
        tasks: the running tasks: they are guarded before each request, and their leases are
            extended.
        unstarted: the leases that wait for their triggers' answers, which are extended.
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
        """Guard the tasks, extend the leases that are due, then send a request.

        Raises:
            TransientStoreError: the store did not answer, or the request was not sent because of
                an earlier failure; see `StoreBackoff.ask`.
        """
        if self._backoff.ready:
            self.keep_leases()
        return self._backoff.ask(send)

    def keep_leases(self) -> None:
        """Guard the tasks, and extend the leases that are due.

        Call this between any two steps that may take long. If the store does not answer, the
        failure is logged, and nothing is raised.
        """
        self._tasks.guard_before_blocking()
        if self._keeping or not self._backoff.ready:
            return
        # The flag ends the recursion: `request`, which extends the leases, calls this method.
        self._keeping = True
        try:
            if self.extend_due(self._held):
                # The kernel's timer is set again, because the leases end later now.
                self._tasks.guard_before_blocking()
        except TransientStoreError:
            pass
        finally:
            self._keeping = False

    @property
    def next_extension(self) -> float:
        """When the next lease is due to be extended, seconds of the boot-time clock."""
        return min(
            (lease.deadlines.extend for lease in self._held if not lease.lost),
            default=float("inf"),
        )

    def extend_due(self, leases: Sequence[Lease]) -> bool:
        """Extend all of these leases if one of them is due; return whether one was due.

        Raises:
            TransientStoreError: the store did not answer.
        """
        boot = self._clock.boottime()
        held = [lease for lease in leases if not lease.lost]
        due = any(boot >= lease.deadlines.extend for lease in held)
        for length in sorted({lease.deadlines.lease for lease in held}) if due else ():
            self._extend([lease for lease in held if lease.deadlines.lease == length], length)
        return due

    def extend_now(self, task: RunningTask) -> bool:
        """Extend the lease of a task that asks for it; return whether it was still held.

        Raises:
            TransientStoreError: the store did not answer.
        """
        self._extend([task], task.deadlines.lease)
        return not task.lost

    def update_data(self, task: RunningTask, data: str) -> bool:
        """Replace the payload of a task's schedule; return whether the lease was still held.

        Raises:
            TransientStoreError: the store did not answer.
        """
        row = task.row
        return self.request(partial(self._store.update_data, row.key, row.token, data))

    @property
    def _held(self) -> Sequence[Lease]:
        """All leases that this gateway extends."""
        return [*self._tasks, *self._unstarted.waiting.values()]

    def _extend(self, leases: Sequence[Lease], length: float) -> None:
        """Extend leases that have the same length, by at least that length.

        A schedule's lease length may have been shortened since the claim. The shorter length
        applies only from the next claim on, because the deadlines of the current lease were
        computed from the length at its claim.
        """
        tokens = {lease.row.key: lease.row.token for lease in leases}
        sent = 0.0

        def send() -> frozenset[str]:
            nonlocal sent
            sent = self._clock.boottime()
            return self._store.extend(
                tokens, alive_time=self._settings.alive_time, shortest=ceil(length)
            )

        try:
            held = self.request(send)
        except StoreBusyError as busy:
            # One of the rows is locked; the results for the other rows are recorded.
            _note(leases, busy.answered, sent)
            raise
        _note(leases, {key: key in held for key in tokens}, sent)


def _note(leases: Sequence[Lease], held: Mapping[str, bool], sent: float) -> None:
    """Record the answer to an extend.

    Args:
        leases: the leases that were to be extended.
        held: whether each lease is still held, by key; a key is missing if there was no answer.
        sent: the time just before the request was sent, seconds of the boot-time clock.
    """
    for lease in leases:
        if lease.row.key in held:
            if held[lease.row.key]:
                lease.extended(sent)
            else:
                lease.refused()
