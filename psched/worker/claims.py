"""The claims of a worker: sends them, and finds out what those have leased that nobody answered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from functools import partial
from typing import TypedDict

from psched.base import lease_times
from psched.base.errors import TransientStoreError
from psched.core.history.recording import CLAIMS
from psched.core.model import Row, Settlement
from psched.core.store_protocol import Claimed, ClaimUnknownError, Settled
from psched.worker.context import Context
from psched.worker.pacing import Pacing
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.unstarted import UnstartedLeases

_LATE = 2.0
"""The maximum time of a request on the server, in seconds: one second to wait for a lock, one
second for everything else."""

UNKNOWN_PAUSE = 0.5
"""Seconds until the store is asked again which rows an unanswered claim has leased."""


class _Terms(TypedDict):
    """The arguments of `Store.claim` besides the owner."""

    limit: int
    alive_time: int
    shortest: int
    horizon: float


@dataclass(slots=True)
class Claim:
    """A claim that is sent by itself, or together with settlements.

    Attributes:
        owner: the owner of the leases.
        limit: the most rows to lease.
        sent: when it was sent, seconds of the boot-time clock.
        asked: the same in seconds of the monotonic clock.
        answered: when it was answered, seconds of the boot-time clock.
        answer: the answer; None if there is none.
    """

    owner: str
    limit: int
    sent: float = 0.0
    asked: float = 0.0
    answered: float = 0.0
    answer: Claimed | None = None


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


class Claims:
    """Sends the claims of one worker.

    Attributes:
        unknown: the claims that were not answered, whose rows are not all known yet; read only.
    """

    def __init__(
        self,
        context: Context,
        gateway: StoreGateway,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
        pacing: Pacing,
    ) -> None:
        self._store = context.store
        self._settings = context.settings
        self._driver_timeout = context.settings.driver_timeout
        self._shortest = lease_times.shortest_alive_time(self._driver_timeout)
        self._clock = context.clock
        self._recorder = context.recorder
        self._nonce = context.place.nonce
        self._gateway = gateway
        self._tasks = tasks
        self._unstarted = unstarted
        self._pacing = pacing
        self._owners = 0
        self.unknown: list[_UnknownClaim] = []

    def new_owner(self) -> str:
        """A text that this worker has never used as the owner of a lease."""
        self._owners += 1
        return f"{self._nonce}.{self._owners}"

    # --- Send ---

    def prepare(self, ending: int = 0) -> Claim | None:
        """What to claim, given how many leases end before; None if nothing can be claimed."""
        pacing = self._pacing
        room, most = pacing.room + ending, pacing.most_rows + ending
        if pacing.stopped or most <= 0:
            return None
        # Runners are forked before the claim, so that no lease grows old during a fork.
        if room > 0 and not pacing.prepare(room if pacing.backlog else 1):
            return None
        # While forks fail, only one row is claimed, because rows without a runner would have to be
        # given back.
        return Claim(self.new_owner(), 1 if self._tasks.no_forks.ongoing else most)

    def send(self, claim: Claim) -> None:
        """Send a claim by itself; its answer is in the claim afterwards."""
        try:
            self._gateway.request(partial(self._send, claim))
        except TransientStoreError as error:
            self.failed(claim, error)
            raise

    def _send(self, claim: Claim) -> None:
        claim.answer = self._store.claim(claim.owner, **self._terms_of(claim))
        claim.answered = self._clock.boottime()

    def send_with(self, claim: Claim, settlements: Sequence[Settlement]) -> Mapping[str, Settled]:
        """Send settlements and a claim in one request; return the answer to the settlements."""
        results, claim.answer = self._store.settle_and_claim(
            settlements, claim.owner, **self._terms_of(claim)
        )
        claim.answered = self._clock.boottime()
        return results

    def _terms_of(self, claim: Claim) -> _Terms:
        """The arguments of a claim, just before it is sent.

        The clocks are read here and not earlier, because `request` can first extend leases, which
        takes time.
        """
        claim.sent, claim.asked = self._clock.boottime(), self._clock.monotonic()
        return {
            "limit": claim.limit,
            "alive_time": self._settings.alive_time,
            "shortest": self._shortest,
            "horizon": self._settings.poll_interval,
        }

    def failed(self, claim: Claim, error: TransientStoreError) -> None:
        """Note that a claim was not answered."""
        self._recorder.counts.add(CLAIMS, "failed")
        if isinstance(error, ClaimUnknownError):
            self.unknown.append(_UnknownClaim(error, claim.sent, self.certain_at))

    def note(self, claim: Claim, claimed: Claimed) -> None:
        """Note what the answer to a claim tells, besides its rows."""
        self._recorder.counts.add(CLAIMS, "rows" if claimed.rows else "empty")
        if claimed.now is not None:
            self._recorder.clock.read(claimed.now, claim.sent, claim.answered)
        self._pacing.claimed(claimed, claim.asked)
        if claimed.rows:
            self._gateway.debug("claimed", [row.key for row in claimed.rows], claim.asked)

    # --- Unknown claims ---

    @property
    def certain_at(self) -> float:
        """When no request that has failed now can be applied any more.

        In seconds of the monotonic clock, see `_UnknownClaim`.
        """
        return self._clock.monotonic() + self._driver_timeout + _LATE

    def resolve(self) -> Iterator[tuple[Claimed, float]]:
        """Ask the store which rows unknown claims have leased, if it is time for that."""
        for claim in [*self.unknown]:
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
                self.unknown.remove(claim)
            yield Claimed(rows=rows, now=now), claim.sent

    def _read_clock(self) -> float:
        """Ask for the time of the store's clock, which no answer to a claim may have told yet."""
        sent = self._clock.boottime()
        now = self._store.now()
        self._recorder.clock.read(now, sent, self._clock.boottime())
        return now

    def _knows(self, row: Row) -> bool:
        """Whether this worker knows already that it holds the lease of a row."""
        task = self._tasks.running.get(row.key)
        if task is not None and task.row.token == row.token:
            return True
        return self._unstarted.holds(row)
