"""Those leases of one worker for which no task has been started."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psched.base.lease_times import Deadlines
from psched.core.attempts import returned
from psched.core.model import Row, Settlement
from psched.core.policy import Run
from psched.worker.lease import Lease
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


class UnstartedLeases:
    """The leases that wait for triggers' answers, and the leases that are to end without a run.

    Attributes:
        prefetched: the leases whose tasks start as soon as slots are free, by key, in the order of
            their starts; read only.
        waiting: the leases that wait for a trigger's answer, by key; read only.
        settlements: the settlements to be written for rows with nothing to run, by key; read only.
        releases: the rows that are to be given back unchanged, by key; read only.
        borrowed: the schedules that were leased for extra runs, and are to be given back unchanged,
            by key; read only.
    """

    def __init__(self) -> None:
        self._prefetched: dict[str, PrefetchedLease] = {}
        self._waiting: dict[str, WaitingLease] = {}
        self._settlements: dict[str, Settlement] = {}
        self._releases: dict[str, Row] = {}
        self._borrowed: dict[str, Row] = {}
        self._news: set[str] = set()
        self.prefetched: Mapping[str, PrefetchedLease] = self._prefetched
        self.waiting: Mapping[str, WaitingLease] = self._waiting
        self.settlements: Mapping[str, Settlement] = self._settlements
        self.releases: Mapping[str, Row] = self._releases
        self.borrowed: Mapping[str, Row] = self._borrowed

    def __bool__(self) -> bool:
        waiting = self._prefetched or self._waiting
        return bool(waiting or self._settlements or self._releases or self._borrowed)

    def __contains__(self, key: str) -> bool:
        ending = key in self._settlements or key in self._releases or key in self._borrowed
        return ending or key in self._waiting or key in self._prefetched

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

    def settle(self, settlement: Settlement, *, is_news: bool) -> None:
        """Add a settlement that is to end the lease of a row with nothing to run."""
        self._settlements[settlement.key] = settlement
        if is_news:
            self._news.add(settlement.key)

    def settled(self, key: str) -> None:
        """Drop a settlement, because the store has written or refused it."""
        del self._settlements[key]
        self._news.discard(key)

    def is_news(self, key: str) -> bool:
        """Whether the reason of the settlement of a row is to be logged."""
        return key in self._news

    def release(self, row: Row) -> None:
        """Add a row that is to be given back, because this worker will not run it."""
        if returned(row) is None:
            self._releases[row.key] = row
        else:
            # The row was claimed after the death of a worker that had leased it for an extra run,
            # and has its times back with the next settlement. It is not due.
            self.give_back(row)

    def released(self, key: str) -> bool:
        """Drop a row whose lease has ended; return whether the row was to be given back."""
        return self._releases.pop(key, None) is not None

    def give_back(self, row: Row) -> None:
        """Add a schedule that was leased for an extra run, and is to be given back."""
        self._borrowed[row.key] = row

    def gave_back(self, key: str) -> bool:
        """Drop a schedule whose lease has ended; return whether it was to be given back."""
        return self._borrowed.pop(key, None) is not None

    def holds(self, row: Row) -> bool:
        """Whether the lease that the row's token identifies is one of these leases."""
        for leases in self._waiting, self._prefetched:
            if (lease := leases.get(row.key)) and lease.row.token == row.token:
                return True
        borrowed = self._borrowed.get(row.key)
        if borrowed is not None and borrowed.token == row.token:
            return True
        ending = self._settlements.get(row.key) or self._releases.get(row.key)
        return ending is not None and ending.token == row.token
