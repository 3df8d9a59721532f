"""The leases of one worker on which nothing runs."""

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
    """A lease whose row's trigger is being asked whether there is something to run.

    Attributes:
        question: what is asked.
    """

    question: Question = field(kw_only=True)


class UnstartedLeases:
    """The leases that wait for their triggers' answers, and those that are to be ended.

    Attributes:
        waiting: the leases whose rows' triggers are being asked; read only.
        settlements: those of rows of which there is nothing to run, to be written; read only.
        releases: the rows that are to be given back as they were; read only.
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
        """Add a lease whose row's trigger is being asked."""
        self._waiting[row.key] = WaitingLease(row, deadlines, question=question)

    def waited(self, key: str) -> None:
        """Drop a waiting lease, because it has been decided what to do with its row."""
        del self._waiting[key]

    def settle(self, settlement: Settlement) -> None:
        """Add a settlement that ends a lease on which there is nothing to run."""
        self._settlements[settlement.key] = settlement

    def settled(self, key: str) -> None:
        """Drop a settlement that was written, or came too late."""
        del self._settlements[key]

    def release(self, row: Row) -> None:
        """Add a row that is to be given back, because it is not run here."""
        self._releases[row.key] = row

    def released(self, key: str) -> bool:
        """Drop a row that was given back or lost; false: it was not to be given back."""
        return self._releases.pop(key, None) is not None

    def holds(self, row: Row) -> bool:
        """Whether this very lease is here."""
        if (waiting := self._waiting.get(row.key)) and waiting.row.token == row.token:
            return True
        ending = self._settlements.get(row.key) or self._releases.get(row.key)
        return ending is not None and ending.token == row.token
