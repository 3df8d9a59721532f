"""Leasing occurrences without a worker: the caller runs each task itself."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from typing_extensions import override

from psched.application.task import Holder, Task, assignment
from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import InvalidError, PreemptedError
from psched.base.retry import Send
from psched.config import Config
from psched.core.columns import encode, payload_text
from psched.core.lost_answers import LostAnswers
from psched.core.model import Decision, Row
from psched.core.policy import Run, after_claim, quarantine
from psched.core.schedule import Schedules
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Claimed, Settled, Store


class Poller:
    """Leases one occurrence at a time, which this process runs itself.

    Args:
        store: holds the schedules.
        settings: the installation's settings.
        clock: measures the leases.
        draw_nonce: returns a random text that was never returned before.
        send: sends each request.
        schedules: the collection that each task offers as `Task.schedules`.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        draw_nonce: Callable[[], str],
        send: Send,
        schedules: Schedules,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.send = send
        self.schedules = schedules
        self.shortest = lease_times.shortest_alive_time(settings.driver_timeout)
        self._draw_nonce = draw_nonce

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one; see `ScheduleCollection.poll`."""
        while True:
            sent = self.clock.boottime()
            claimed = self._claim()
            for row in claimed.rows:
                if task := self._task_of(row, claimed.now or 0, sent):
                    return task
            # If ``more`` is set without rows, other workers were faster. The loop claims again,
            # because another row may be due.
            if not (claimed.rows or claimed.more):
                return None

    def lease_time(self, row: Row) -> int:
        """The length of a row's lease in seconds."""
        return lease_times.lease_time(row.alive_time, self.settings.alive_time, self.shortest)

    def _task_of(self, leased: Row, now: float, sent: float) -> Task | None:
        """The task of a leased row; None: there is nothing to run, or the lease was lost.

        If there is nothing to run, this method settles the row.
        """
        row: Row | None = leased
        # The loop ends, because it repeats only if somebody has changed the definition meanwhile.
        while row is not None and row.token == leased.token:
            verdict = after_claim(row, self.settings, now)
            if isinstance(verdict, Run):
                holder = _CallersLease(self, row, sent + self.lease_time(row))
                run = assignment(row, verdict.definition, verdict.scheduled_time)
                try:
                    text = payload_text(row.data, self.settings.data_limit)
                    return Task({**run, "data": text}, holder)
                except InvalidError as error:
                    verdict = quarantine(row, str(error))
            results = self.send(partial(self.store.settle, [verdict]))
            if results[row.key] is not Settled.REDEFINED:
                return None
            row = self.send(partial(self.store.get, row.key))
        return None

    def _claim(self) -> Claimed:
        owner = self._draw_nonce()
        lost = LostAnswers[str]()
        claim = partial(
            self.store.claim,
            owner,
            limit=1,
            alive_time=self.settings.alive_time,
            shortest=self.shortest,
            horizon=0,
        )

        def request() -> Claimed:
            if lost:
                # The claim is not repeated, because the first one may have been applied. The store
                # is asked for the rows that the first claim has leased.
                return Claimed(rows=self.store.held(owner, ()), now=self.store.now())
            return lost.send(owner, claim)

        return self.send(request)


class _CallersLease(Holder):
    """The lease of a task that this process has polled."""

    def __init__(self, poller: Poller, row: Row, deadline: float) -> None:
        self._poller = poller
        self._row = row
        self._deadline = deadline
        self._lost = False
        self._settler = Settler(poller.settings, poller.clock)

    @override
    def decide(self, decision: Decision) -> None:
        # The lease is settled at once, because there are no processes whose end must be awaited.
        self._refuse_if_over()
        ending = Ending(self._row, decision, 0.0 if self._lost else self._deadline)
        poller = self._poller
        results = poller.send(lambda: self._settler.settle(poller.store, [ending]))
        # The result DONE does not count if the lease was lost before: for a missing row, the store
        # answers DONE, as if this settle had removed the row.
        self._require(done=results[self._row.key] is Settled.DONE and not self._lost)

    @override
    def extend(self) -> None:
        self._refuse_if_over()
        poller, leases = self._poller, {self._row.key: self._row.token}

        def request() -> bool:
            sent = poller.clock.boottime()
            held = poller.store.extend(
                leases, alive_time=poller.settings.alive_time, shortest=poller.shortest
            )
            if held:
                self._deadline = sent + poller.lease_time(self._row)
            return bool(held)

        self._require(done=poller.send(request))

    @override
    def update_data(self, data: Mapping[str, Any]) -> None:
        text = encode("data", data, most=self._poller.settings.data_limit)
        self._refuse_if_over()
        poller, row = self._poller, self._row
        self._require(done=poller.send(lambda: poller.store.update_data(row.key, row.token, text)))

    @property
    @override
    def schedules(self) -> Schedules:
        return self._poller.schedules

    def _refuse_if_over(self) -> None:
        self._require(done=self._poller.clock.boottime() < self._deadline)

    def _require(self, *, done: bool) -> None:
        if not done:
            self._lost = True
            raise PreemptedError(f"the lease of {self._row.key!r} is over or another worker's")
