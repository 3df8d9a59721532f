"""Starts extra runs, each only with the lease of its schedule; see `core.operations.extra_runs`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Protocol

from psched.base.clock import Clock
from psched.base.errors import InvalidError
from psched.base.lease_times import Deadlines
from psched.config import Config
from psched.core.model import Row, Settlement
from psched.core.operations.extra.overlap import beside_another_run, unsupported, without_lease
from psched.core.operations.extra.turns import Turns
from psched.core.operations.extra_runs import QUEUE, needed_schedule
from psched.core.policy import Run, postpone, quarantine
from psched.core.store_protocol import ClaimUnknownError, LeasesByKey, Store
from psched.worker.claims.unknown_claims import UnknownClaims
from psched.worker.lease import Lease
from psched.worker.store_gateway import StoreGateway, debug_requests
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

_UNANSWERED_PAUSE = 1
"""If the store does not answer the request for the leases of schedules: seconds for which the extra
runs are postponed."""


@dataclass(frozen=True, slots=True, eq=False)
class ExtraRun:
    """A claimed row that can run as soon as this worker also holds the lease of its schedule.

    Attributes:
        lease: the lease of the row.
        run: what to run.
        schedule: the key of the schedule.
        overlap: ``queue`` or ``skip``.
    """

    lease: Lease
    run: Run
    schedule: str
    overlap: str


class Starter(Protocol):
    """What `ExtraRuns` needs of the `psched.worker.claimer.Claimer`."""

    def new_owner(self) -> str:
        """A text that this worker has never used as the owner of a lease."""
        ...

    def fresh(self, granted: Sequence[Lease]) -> Sequence[Lease]:
        """Extend new leases if one of them is due."""
        ...

    def start(self, lease: Lease, run: Run, *, following: int, schedule: Lease) -> None:
        """Start a task, or give back its row and its schedule."""
        ...

    def settle(self, row: Row, settlement: Settlement) -> None:
        """Have the lease of a row with nothing to run settled."""
        ...


class ExtraRuns:
    """Decides which extra runs of a claim can start, and leases their schedules.

    Args:
        store: where the schedules are.
        gateway: sends the requests.
        settings: contain the default length of a lease.
        clock: measures the leases.
        unknown: asks later what unanswered requests have leased.
        tasks: knows which schedules this worker runs, and which leases it holds for extra runs.
        unstarted: knows the other leases of this worker.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        settings: Config,
        *,
        clock: Clock,
        unknown: UnknownClaims,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
    ) -> None:
        self._store = store
        self._by_key = store if isinstance(store, LeasesByKey) else None
        self._gateway = gateway
        self._settings = settings
        self._clock = clock
        self._unknown = unknown
        self._tasks = tasks
        self._unstarted = unstarted
        self._turns = Turns()

    def needing_schedule(self, lease: Lease, run: Run) -> ExtraRun | Settlement | None:
        """The extra run of a claimed row that needs the lease of its schedule.

        Returns:
            The extra run; None if the row can run without another lease; or the settlement that
            quarantines the row, because it can never run.
        """
        try:
            needed = needed_schedule(lease.row)
        except InvalidError as error:
            return quarantine(lease.row, str(error))
        if needed is None:
            return None
        if self._by_key is None:
            return quarantine(lease.row, unsupported(needed[0]))
        return ExtraRun(lease, run, *needed)

    def begin(self, found: Sequence[ExtraRun], now: float, starter: Starter) -> None:
        """Start those of the extra runs whose schedules are free; have the others settled.

        One request leases the schedules, unless their leases have to be of different lengths.
        """
        left = [*found]
        try:
            self._begin(left, now, starter)
        finally:
            # If the store has answered, none is left.
            for each in left:
                starter.settle(each.lease.row, postpone(each.lease.row, _UNANSWERED_PAUSE))

    def _begin(self, left: list[ExtraRun], now: float, starter: Starter) -> None:
        wanted: dict[str, ExtraRun] = {}
        for each in left:
            if not self._holds(each.schedule) and not self._unknown.may_hold(each.schedule):
                wanted.setdefault(each.schedule, each)
        missing = {*wanted}
        # Both leases of a task have the same length, so that they are extended together, and the
        # one that was extended first decides when the task must have been killed.
        for length in sorted({each.lease.deadlines.lease for each in wanted.values()}):
            keys = [key for key, each in wanted.items() if each.lease.deadlines.lease == length]
            leases = self._lease(keys, length, starter)
            starter.fresh([*(wanted[key].lease for key in leases), *leases.values()])
            for place, (key, schedule) in enumerate(leases.items()):
                missing.remove(key)
                each = wanted[key]
                left.remove(each)
                following = len(leases) - place - 1
                starter.start(each.lease, each.run, following=following, schedule=schedule)
        rows = self._gateway.request(partial(self._store.look, [*missing])) if missing else {}
        for each in [*left]:
            left.remove(each)
            starter.settle(each.lease.row, self._not_started(each, missing, rows, now))

    def _lease(self, keys: Sequence[str], length: float, starter: Starter) -> Mapping[str, Lease]:
        """Lease the schedules that are free; return their leases, of this length, by key."""
        store = self._by_key
        if store is None:
            return {}
        owner = starter.new_owner()
        sent = asked = 0.0

        def send() -> Sequence[Row]:
            nonlocal sent, asked
            sent, asked = self._clock.boottime(), self._clock.monotonic()
            alive_time = self._settings.alive_time
            return store.claim_keys(owner, keys, alive_time=alive_time, shortest=ceil(length))

        try:
            rows = self._gateway.request(send)
        except ClaimUnknownError as error:
            self._unknown.note(error, sent, keys)
            raise
        debug_requests("leased", [row.key for row in rows], self._clock.monotonic() - asked)
        deadlines = Deadlines(sent, length, self._settings.driver_timeout)
        return {row.key: Lease(row, deadlines) for row in rows}

    def _not_started(
        self, each: ExtraRun, missing: set[str], rows: Mapping[str, Row], now: float
    ) -> Settlement:
        """The settlement of an extra run that does not start now."""
        row, own, key = each.lease.row, each.run.definition.settings, each.schedule
        if key in missing:
            needed = key, each.overlap
            return without_lease(row, own, needed, rows.get(key), now=now, turns=self._turns)
        holder = self._tasks.fence_of(key)
        # If no run is going on, the lease is being given back, so the next claim succeeds.
        needed = key, QUEUE if holder is None else each.overlap
        return beside_another_run(row, own, needed, holder, now=now, turns=self._turns)

    def _holds(self, key: str) -> bool:
        """Whether this worker holds the lease of the schedule with this key."""
        return key in self._tasks or key in self._tasks.lent or key in self._unstarted
