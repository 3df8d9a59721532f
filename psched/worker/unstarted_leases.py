"""Those leases of one worker for which no task has been started."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psched.base.lease_times import Deadlines
from psched.core.model import Row, Settlement
from psched.core.policy import Run
from psched.worker.running_task import Lease
from psched.worker.trigger_helpers import Question

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class WaitingLease(Lease):
    """The lease of a row for which a trigger must first compute whether there is something to run.

    Attributes:
        question: the question that a helper process answers by calling the trigger.
    """

    question: Question = field(kw_only=True)


@dataclass(slots=True)
class PrefetchedLease(Lease):
    """The lease of a row that starts as soon as a slot is free; see `worker.claims.prefetch`.

    Attributes:
        run: what to run.
        until: when the row is given back, seconds of the monotonic clock.
    """

    run: Run = field(kw_only=True)
    until: float = field(kw_only=True)


@dataclass(slots=True)
class EndingHold:
    """A hold of a schedule that is to end.

    Attributes:
        key: the key of the schedule.
        until: until when a request that was not answered can still make the hold, seconds of the
            monotonic clock. The hold is ended once more after this time.
        next: when to end it, seconds of the monotonic clock.
    """

    key: str
    until: float
    next: float = 0.0


class UnstartedLeases:
    """The leases that wait for triggers' answers, and the leases that are to end without a run.

    Attributes:
        prefetched: the leases whose tasks start as soon as slots are free, by key, in the order of
            their starts; read only.
        waiting: the leases that wait for a trigger's answer, by key; read only.
        settlements: the settlements to be written for rows with nothing to run, by key; read only.
        releases: the rows that are to be given back unchanged, by key; read only.
        ending_holds: the holds of schedules that are to end, or that an unanswered request may have
            made, by what identifies them; read only.
    """

    def __init__(self) -> None:
        self._prefetched: dict[str, PrefetchedLease] = {}
        self._waiting: dict[str, WaitingLease] = {}
        self._settlements: dict[str, Settlement] = {}
        self._releases: dict[str, Row] = {}
        self._ending_holds: dict[str, EndingHold] = {}
        self.prefetched: Mapping[str, PrefetchedLease] = self._prefetched
        self.waiting: Mapping[str, WaitingLease] = self._waiting
        self.settlements: Mapping[str, Settlement] = self._settlements
        self.releases: Mapping[str, Row] = self._releases
        self.ending_holds: Mapping[str, EndingHold] = self._ending_holds

    def __bool__(self) -> bool:
        waiting = self._prefetched or self._waiting
        return bool(waiting or self._settlements or self._releases or self._ending_holds)

    def __contains__(self, key: str) -> bool:
        ending = key in self._settlements or key in self._releases
        held = any(hold.key == key for hold in self._ending_holds.values())
        return ending or held or key in self._waiting or key in self._prefetched

    def prefetch(self, lease: PrefetchedLease) -> None:
        """Add a lease whose task starts as soon as a slot is free."""
        self._prefetched[lease.row.key] = lease

    def remove_prefetched(self, key: str) -> None:
        """Drop a lease whose task is started now, or whose row is given back."""
        del self._prefetched[key]

    def wait(self, row: Row, deadlines: Deadlines, question: Question) -> None:
        """Add a lease that waits for the answer of its row's trigger."""
        self._waiting[row.key] = WaitingLease(row, deadlines, question=question)

    def waited(self, key: str) -> None:
        """Drop a lease that does not wait for an answer any more."""
        del self._waiting[key]

    def settle(self, settlement: Settlement) -> None:
        """Add a settlement that is to end the lease of a row with nothing to run."""
        self._settlements[settlement.key] = settlement

    def settled(self, key: str) -> None:
        """Drop a settlement, because the store has written or refused it."""
        del self._settlements[key]

    def release(self, row: Row) -> None:
        """Add a row that is to be given back, because this worker will not run it."""
        self._releases[row.key] = row

    def released(self, key: str) -> bool:
        """Drop a row whose lease has ended; return whether the row was to be given back."""
        return self._releases.pop(key, None) is not None

    def end_hold(self, key: str, holder: str, until: float = 0.0) -> None:
        """Add a hold of a schedule that is to end; see `EndingHold`."""
        self._ending_holds[holder] = EndingHold(key, until)

    def ended_hold(self, holder: str) -> None:
        """Drop a hold that has ended."""
        del self._ending_holds[holder]

    def holds(self, row: Row) -> bool:
        """Whether the lease that the row's token identifies is one of these leases."""
        for leases in self._waiting, self._prefetched:
            if (lease := leases.get(row.key)) and lease.row.token == row.token:
                return True
        ending = self._settlements.get(row.key) or self._releases.get(row.key)
        return ending is not None and ending.token == row.token
