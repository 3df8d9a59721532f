"""Starts extra runs, each only while it holds its schedule; see `core.operations.extra_runs`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from psched.base.errors import InvalidError, TransientStoreError
from psched.core.model import Row, Settlement
from psched.core.operations.extra_runs import QUEUE, needed_schedule
from psched.core.operations.overlap import (
    Turns,
    beside_another_run,
    unsupported,
    without_hold,
)
from psched.core.policy import Run, postpone, quarantine
from psched.core.store_protocol import HoldsSchedules, Store
from psched.worker.claims.unknown_claims import UnknownClaims
from psched.worker.running_task import Hold, Lease
from psched.worker.store_gateway import StoreGateway
from psched.worker.task_table import TaskTable
from psched.worker.unstarted_leases import UnstartedLeases

_UNANSWERED_PAUSE = 1
"""If the store does not answer the request to hold schedules: seconds for which the extra runs are
postponed."""


@dataclass(frozen=True, slots=True, eq=False)
class ExtraRun:
    """A claimed row that can run as soon as this worker also holds its schedule.

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

    def start(self, lease: Lease, run: Run, *, following: int) -> None:
        """Start a task, or give its row back, and release its schedule."""
        ...

    def settle(self, row: Row, settlement: Settlement) -> None:
        """Have the lease of a row with nothing to run settled."""
        ...


class ExtraRuns:
    """Decides which extra runs of a claim can start, and holds their schedules.

    Args:
        store: where the schedules are.
        gateway: sends the requests.
        unknown: knows when an unanswered request cannot be applied any more.
        tasks: knows which schedules this worker runs, and which it holds for extra runs.
        unstarted: knows the other leases of this worker, and has holds ended.
    """

    def __init__(
        self,
        store: Store,
        gateway: StoreGateway,
        *,
        unknown: UnknownClaims,
        tasks: TaskTable,
        unstarted: UnstartedLeases,
    ) -> None:
        self._store = store
        self._gateway = gateway
        self._unknown = unknown
        self._tasks = tasks
        self._unstarted = unstarted
        self._turns = Turns()

    def needing_schedule(self, lease: Lease, run: Run) -> ExtraRun | Settlement | None:
        """The extra run of a claimed row that needs to hold its schedule.

        Returns:
            The extra run; None if the row can run without that; or the settlement that
            quarantines the row, because it can never run.
        """
        try:
            needed = needed_schedule(lease.row)
        except InvalidError as error:
            return quarantine(lease.row, str(error))
        if needed is None:
            return None
        if not isinstance(self._store, HoldsSchedules):
            return quarantine(lease.row, unsupported(needed[0]))
        return ExtraRun(lease, run, *needed)

    def begin(self, found: Sequence[ExtraRun], now: float, starter: Starter) -> None:
        """Start those of the extra runs whose schedules are free; have the others settled.

        One request holds the schedules, unless the leases are of different lengths.
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
            if not self._holds(each.schedule):
                wanted.setdefault(each.schedule, each)
        missing = {*wanted}
        # A hold lasts at least as long as the lease of its extra run, and is extended with it.
        for length in sorted({each.lease.deadlines.lease for each in wanted.values()}):
            alike = [each for each in wanted.values() if each.lease.deadlines.lease == length]
            held = self._hold(alike, length, starter)
            starter.fresh([each.lease for each in held])
            for place, each in enumerate(held):
                missing.remove(each.schedule)
                left.remove(each)
                starter.start(each.lease, each.run, following=len(held) - place - 1)
        rows = self._gateway.request(partial(self._store.look, [*missing])) if missing else {}
        for each in [*left]:
            left.remove(each)
            starter.settle(each.lease.row, self._not_started(each, missing, rows, now))

    def _hold(
        self, extra_runs: Sequence[ExtraRun], length: float, starter: Starter
    ) -> Sequence[ExtraRun]:
        """Hold the schedules of extra runs; return those of them whose schedules were free."""
        holds = {each.schedule: Hold(each.schedule, starter.new_owner()) for each in extra_runs}
        try:
            held = self._gateway.hold(holds.values(), length)
        except TransientStoreError:
            # The store may have applied the request, or may still apply it.
            until = self._unknown.certain_at
            for hold in holds.values():
                self._unstarted.end_hold(hold.key, hold.holder, until)
            raise
        for each in extra_runs:
            if each.schedule in held:
                each.lease.hold = holds[each.schedule]
        return [each for each in extra_runs if each.schedule in held]

    def _not_started(
        self, each: ExtraRun, missing: set[str], rows: Mapping[str, Row], now: float
    ) -> Settlement:
        """The settlement of an extra run that does not start now."""
        row, own, key = each.lease.row, each.run.definition.settings, each.schedule
        if key in missing:
            needed = key, each.overlap
            return without_hold(row, own, needed, rows.get(key), now=now, turns=self._turns)
        holder = self._tasks.holder_of(key)
        # If no run is going on, the hold is about to end, so the next claim succeeds.
        needed = key, QUEUE if holder is None else each.overlap
        return beside_another_run(row, own, needed, holder, now=now, turns=self._turns)

    def _holds(self, key: str) -> bool:
        """Whether this worker runs or holds the schedule with this key."""
        return key in self._tasks or key in self._tasks.holding or key in self._unstarted
