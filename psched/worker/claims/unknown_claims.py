"""Claims that were not answered: finds out which rows they have leased."""

from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from math import inf

from psched.base.clock import Clock
from psched.core.history.store_clock import StoreClock
from psched.core.model import Row
from psched.core.store_protocol import Claimed, ClaimUnknownError, Store
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

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

    Args:
        store: knows which rows are leased.
        gateway: sends the requests.
        driver_timeout: the driver timeout in seconds.
        clock: measures when to ask.
        tasks: knows leases of which the worker knows already.
        unstarted: knows the others.
        store_clock: is read before the rows of a claim are returned, because that claim, which may
            be the worker's first one, has not told the store's time.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        driver_timeout: float,
        *,
        clock: Clock,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
        store_clock: StoreClock,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._driver_timeout = driver_timeout
        self._clock = clock
        self._tasks = tasks
        self._unstarted = unstarted
        self._store_clock = store_clock
        self._claims: list[_UnknownClaim] = []

    def __bool__(self) -> bool:
        return bool(self._claims)

    @property
    def wakes(self) -> float:
        """When to call `resolve` again, seconds of the monotonic clock; inf if there is none."""
        return min((claim.next for claim in self._claims), default=inf)

    @property
    def certain_at(self) -> float:
        """When no request that has failed now can be applied any more.

        In seconds of the monotonic clock, see `_UnknownClaim`.
        """
        return self._clock.monotonic() + self._driver_timeout + _LATE

    def note(self, error: ClaimUnknownError, sent: float) -> None:
        """Add a claim.

        Args:
            error: the error that the store has raised.
            sent: when the claim was sent, seconds of the boot-time clock.
        """
        self._claims.append(_UnknownClaim(error, sent, self.certain_at))

    def resolve(self) -> Iterator[tuple[Claimed, float]]:
        """Ask the store which rows the claims have leased, if it is time for that."""
        for claim in [*self._claims]:
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
                self._claims.remove(claim)
            yield Claimed(rows=rows, now=now), claim.sent

    def _read_clock(self) -> float:
        """Ask for the time of the store's clock."""
        sent = self._clock.boottime()
        now = self._store.now()
        self._store_clock.read(now, sent, self._clock.boottime())
        return now

    def _knows(self, row: Row) -> bool:
        """Whether this worker knows already that it holds the lease of a row."""
        if row.key in self._tasks and self._tasks[row.key].row.token == row.token:
            return True
        return self._unstarted.holds(row)
