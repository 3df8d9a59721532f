"""The leases of one worker whose tasks have not been started."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psched.base.lease_times import Deadlines
from psched.core.model import Row, Settlement
from psched.worker.lease import Lease
from psched.worker.trigger_helpers import Question

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(slots=True)
class WaitingLease(Lease):
    """A lease that waits while the trigger of its row is asked whether there is something to run.

    Attributes:
        question: the question to the trigger.
    """

    question: Question = field(kw_only=True)


class UnstartedLeases:
    """The leases that wait for triggers' answers, and the leases that are to be ended unrun.

    Attributes:
        waiting: the leases that wait for an answer of a trigger, by key; read only.
        settlements: the settlements to be written for rows with nothing to run, by key; read only.
        releases: the rows that are to be given back unchanged, by key; read only.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, WaitingLease] = {}
        self._settlements: dict[str, Settlement] = {}
        self._releases: dict[str, Row] = {}
        self.waiting: Mapping[str, WaitingLease] = self._waiting
        self.settlements: Mapping[str, Settlement] = self._settlements
        self.releases: Mapping[str, Row] = self._releases

    def __bool__(self) -> bool:
        return bool(self._waiting or self._settlements or self._releases)

    def wait(self, row: Row, deadlines: Deadlines, question: Question) -> None:
        """Add a lease that waits for the answer of its row's trigger."""
        self._waiting[row.key] = WaitingLease(row, deadlines, question=question)

    def waited(self, key: str) -> None:
        """Drop a lease that does not wait for an answer any more."""
        del self._waiting[key]

    def settle(self, settlement: Settlement) -> None:
        """Add a settlement for a row with nothing to run; it will end the row's lease."""
        self._settlements[settlement.key] = settlement

    def settled(self, key: str) -> None:
        """Drop a settlement that the store has answered: it was written, or it was refused."""
        del self._settlements[key]

    def release(self, row: Row) -> None:
        """Add a row that is to be given back, because this worker will not run it."""
        self._releases[row.key] = row

    def released(self, key: str) -> bool:
        """Drop a row that was given back or lost; return whether it was to be given back."""
        return self._releases.pop(key, None) is not None

    def holds(self, row: Row) -> bool:
        """Whether the lease with the row's token is one of these leases."""
        if (waiting := self._waiting.get(row.key)) and waiting.row.token == row.token:
            return True
        ending = self._settlements.get(row.key) or self._releases.get(row.key)
        return ending is not None and ending.token == row.token
