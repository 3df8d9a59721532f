"""Claims that were not answered: finds out which rows they have leased."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial

from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError
from psched.worker.context import Context
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.unstarted import UnstartedLeases

_LATE = 2.0
"""The maximum time of a request on the server, in seconds: one second to wait for a lock, one
second for everything else."""

UNKNOWN_PAUSE = 0.5
"""Seconds until the store is asked again which rows an unanswered claim has leased."""


@dataclass(slots=True, eq=False)
class _UnknownClaim:
    """A claim that was not answered: the store might have applied it, or might still apply it.

    After the driver has given up, the request can reach the server for up to one more driver
    timeout, and the server can then still execute it. Only when that time has passed is it certain
    which rows the claim has leased. Until then the store is asked several times.

    Attributes:
        error: contains the owner that the claim writes, and the keys of the rows that the claim
            might have leased.
        sent: when the claim was sent, seconds of the boot-time clock.
        until: when it is certain which rows the claim has leased, seconds of the monotonic clock.
            After this time the store is asked once more, for the last time.
        next: when to ask the store again, seconds of the monotonic clock.
    """

    error: ClaimUnknownError
    sent: float
    until: float
    next: float = 0.0


class UnknownClaims:
    """The claims of one worker whose outcome is unknown.

    Attributes:
        claims: the claims; read only.
    """

    def __init__(
        self,
        context: Context,
        gateway: StoreGateway,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
    ) -> None:
        self._store = context.store
        self._gateway = gateway
        self._driver_timeout = context.settings.driver_timeout
        self._clock = context.clock
        self._tasks = tasks
        self._unstarted = unstarted
        self._store_clock = context.recorder.clock
        self.claims: list[_UnknownClaim] = []

    @property
    def certain_at(self) -> float:
        """When no request that has failed now can be applied any more.

        In seconds of the monotonic clock, see `_UnknownClaim`.
        """
        return self._clock.monotonic() + self._driver_timeout + _LATE

    def note(self, error: ClaimUnknownError, sent: float) -> None:
        """Add a claim that was sent at this time of the boot-time clock."""
        self.claims.append(_UnknownClaim(error, sent, self.certain_at))

    def resolve(self) -> Iterator[tuple[Claimed, float]]:
        """Ask the store which rows the claims have leased, if it is time for that."""
        for claim in [*self.claims]:
            mono = self._clock.monotonic()
            if mono < claim.next:
                continue
            error = claim.error
            rows = self._gateway.request(partial(self._store.held, error.owner, error.keys))
            # The rows contain the end of their leases. It is not known when they fell due.
            rows = [changed(row, next_run_time=None) for row in rows if not self._knows(row)]
            now = self._gateway.request(self._read_clock) if rows else None
            claim.next = min(mono + UNKNOWN_PAUSE, claim.until)
            if mono >= claim.until:
                self.claims.remove(claim)
            yield Claimed(rows=rows, now=now), claim.sent

    def _read_clock(self) -> float:
        """Ask for the time of the store's clock, which no answer to a claim may have told yet."""
        sent = self._clock.boottime()
        now = self._store.now()
        self._store_clock.read(now, sent, self._clock.boottime())
        return now

    def _knows(self, row: Row) -> bool:
        """Whether this worker knows already that it holds the lease of a row."""
        task = self._tasks.running.get(row.key)
        if task is not None and task.row.token == row.token:
            return True
        return self._unstarted.holds(row)
