"""Leasing occurrences by hand, for programs that do without workers."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from psched.application.task import Task, assignment
from psched.base import lease_times
from psched.base.clock import Clock
from psched.base.errors import InvalidError, PreemptedError
from psched.config import Config
from psched.core.columns import encode, payload_text
from psched.core.model import Decision, Row
from psched.core.policy import Run, after_claim, quarantine
from psched.core.settling import Ending, Settler
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled, Store

if TYPE_CHECKING:
    from psched.client.collection import ScheduleCollection

T = TypeVar("T")


class Patience(Protocol):
    """Sends a request, again and again while the store is unavailable."""

    def __call__(self, request: Callable[[], T], /) -> T:
        """Send it."""
        ...


class Poller:
    """Leases one occurrence at a time for this very process.

    Args:
        store: the store.
        settings: the installation's.
        clock: this host's clocks.
        draw_nonce: draws a text that was never drawn before.
        patiently: how requests are repeated.
        schedules: the collection this belongs to.
    """

    def __init__(
        self,
        store: Store,
        settings: Config,
        *,
        clock: Clock,
        draw_nonce: Callable[[], str],
        patiently: Patience,
        schedules: "ScheduleCollection",
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock = clock
        self.patiently = patiently
        self.schedules = schedules
        self.shortest = lease_times.shortest_alive_time(settings.driver_timeout)
        self._draw_nonce = draw_nonce

    def poll(self) -> Task | None:
        """Lease one due occurrence, if there is one; see `ScheduleCollection.poll`."""
        while True:
            sent = self.clock.boottime()
            claimed = self._claim()
            for row in claimed.rows:
                if task := self._open(row, claimed.now or 0, sent):
                    return task
            # Without rows but with more, others were faster: there may be another.
            if not (claimed.rows or claimed.more):
                return None

    def _open(self, leased: Row, now: float, sent: float) -> Task | None:
        """The task of a leased row; None: there was nothing to run, or the lease was lost."""
        row: Row | None = leased
        # Ends because every further round needs a person to change a definition in between.
        while row is not None and row.token == leased.token:
            verdict = after_claim(row, self.settings, now)
            if isinstance(verdict, Run):
                holder = _Owner(self, row, sent + self.lease_time(row))
                run = assignment(row, verdict.definition, verdict.scheduled_time)
                try:
                    text = payload_text(row.data, self.settings.data_limit)
                    return Task({**run, "data": text}, holder)
                except InvalidError as error:
                    verdict = quarantine(row, str(error))
            results = self.patiently(partial(self.store.settle, [verdict]))
            if results[row.key] is not Settled.REDEFINED:
                return None
            row = self.patiently(partial(self.store.get, row.key))
        return None

    def lease_time(self, row: Row) -> int:
        """Seconds for which a row is leased."""
        return lease_times.lease_time(row.alive_time, self.settings.alive_time, self.shortest)

    def _claim(self) -> Claimed:
        owner = self._draw_nonce()
        settings = self.settings
        unsure: list[ClaimUnknownError] = []

        def request() -> Claimed:
            if unsure:
                # Not again: the first may have been applied.
                held = self.store.held(owner, unsure[0].keys)
                return Claimed(rows=held, now=self.store.now())
            try:
                return self.store.claim(
                    owner,
                    limit=1,
                    alive_time=settings.alive_time,
                    shortest=self.shortest,
                    horizon=0,
                )
            except ClaimUnknownError as unknown:
                unsure.append(unknown)
                raise

        return self.patiently(request)


class _Owner:
    """Holds the lease of a task that this very process has polled."""

    def __init__(self, poller: Poller, row: Row, deadline: float) -> None:
        self._poller = poller
        self._row = row
        self._deadline = deadline
        self._lost = False
        self._settler = Settler(poller.settings, poller.clock)

    def decide(self, decision: Decision) -> None:
        """See `Holder.decide`; the lease ends here and now."""
        self._refuse_if_over()
        ending = Ending(self._row, decision, 0.0 if self._lost else self._deadline)
        poller = self._poller
        results = poller.patiently(lambda: self._settler.settle(poller.store, [ending]))
        # A row that is gone counts as removed by us, unless the lease was lost before.
        self._require(done=results[self._row.key] is Settled.DONE and not self._lost)

    def extend(self) -> None:
        """See `Holder.extend`."""
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

        self._require(done=poller.patiently(request))

    def update_data(self, data: Mapping[str, Any]) -> None:
        """See `Holder.update_data`."""
        text = encode("data", data, most=self._poller.settings.data_limit)
        self._refuse_if_over()
        poller, row = self._poller, self._row
        self._require(
            done=poller.patiently(lambda: poller.store.update_data(row.key, row.token, text))
        )

    @property
    def schedules(self) -> "ScheduleCollection":
        """See `Holder.schedules`."""
        return self._poller.schedules

    def _refuse_if_over(self) -> None:
        self._require(done=self._poller.clock.boottime() < self._deadline)

    def _require(self, *, done: bool) -> None:
        if not done:
            self._lost = True
            raise PreemptedError(f"the lease of {self._row.key!r} is over or another worker's")
