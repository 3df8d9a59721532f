"""Starts extra runs, each only while it holds its schedule; see `core.operations.extra_runs`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

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
from psched.worker.claims import UNKNOWN_PAUSE, Claims
from psched.worker.context import Context
from psched.worker.running_task import Hold, Lease

if TYPE_CHECKING:
    from psched.worker.execution import Execution

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


class ExtraRuns:
    """Decides which extra runs of a claim can start, and holds their schedules."""

    def __init__(self, context: Context, execution: "Execution") -> None:
        self._store = context.store
        self._clock = context.clock
        self._execution = execution
        self._gateway = execution.gateway
        self._claims: Claims = execution.claims
        self._tasks = execution.tasks
        self._unstarted = execution.unstarted
        self._turns = Turns()

    def needing_schedule(self, lease: Lease, run: Run) -> ExtraRun | Settlement | None:
        """The extra run of a claimed row that needs to hold its schedule; None if it needs not.

        If it can never run, the settlement that quarantines the row.
        """
        try:
            needed = needed_schedule(lease.row)
        except InvalidError as error:
            return quarantine(lease.row, str(error))
        if needed is None:
            return None
        if self._store.holds is None:
            return quarantine(lease.row, unsupported(needed[0]))
        return ExtraRun(lease, run, *needed)

    def begin(self, found: Sequence[ExtraRun], now: float) -> None:
        """Start those of the extra runs whose schedules are free; have the others settled.

        One request holds the schedules, unless the leases are of different lengths.
        """
        left = [*found]
        try:
            self._begin(left, now)
        finally:
            # If the store has answered, none is left.
            for each in left:
                row = each.lease.row
                self._execution.rows.settle(row, postpone(row, _UNANSWERED_PAUSE))

    def _begin(self, left: list[ExtraRun], now: float) -> None:
        wanted: dict[str, ExtraRun] = {}
        for each in left:
            if not self._holds(each.schedule):
                wanted.setdefault(each.schedule, each)
        missing = {*wanted}
        # A hold lasts at least as long as the lease of its extra run, and is extended with it.
        for length in sorted({each.lease.deadlines.lease for each in wanted.values()}):
            alike = [each for each in wanted.values() if each.lease.deadlines.lease == length]
            held = self._hold(alike, length)
            self._gateway.fresh([each.lease for each in held])
            for place, each in enumerate(held):
                missing.remove(each.schedule)
                left.remove(each)
                self._execution.start(each.lease, each.run, following=len(held) - place - 1)
        rows = self._gateway.request(partial(self._store.look, [*missing])) if missing else {}
        for each in [*left]:
            left.remove(each)
            ending = self._not_started(each, missing, rows, now)
            self._execution.rows.settle(each.lease.row, ending)

    def _hold(self, extra_runs: Sequence[ExtraRun], length: float) -> Sequence[ExtraRun]:
        """Hold the schedules of extra runs; return those of them whose schedules were free."""
        new_owner = self._claims.new_owner
        holds = {each.schedule: Hold(each.schedule, new_owner()) for each in extra_runs}
        try:
            held = self._gateway.hold(holds.values(), length)
        except TransientStoreError:
            # The store may have applied the request, or may still apply it.
            until = self._claims.certain_at
            for hold in holds.values():
                self._unstarted.end_hold(hold, until)
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
        tasks = self._tasks
        return key in tasks.running or key in tasks.holding or key in self._unstarted

    def release_schedules(self) -> None:
        """End the holds of schedules whose extra runs have ended, or were not started."""
        mono, able = self._clock.monotonic(), self._store.holds
        holds = {h: each for h, each in self._unstarted.ending_holds.items() if each.next <= mono}
        if not holds or able is None:
            return
        # Of several holds of one schedule, at most one exists. The others end by the next calls.
        ends = {each.key: holder for holder, each in holds.items()}
        self._gateway.request(partial(able.release, ends))
        for holder in ends.values():
            if mono >= holds[holder].until:
                del self._unstarted.ending_holds[holder]
            else:
                holds[holder].next = min(mono + UNKNOWN_PAUSE, holds[holder].until)
        self._execution.pacing.next_poll = 0.0
