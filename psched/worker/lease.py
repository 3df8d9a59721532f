"""One lease as its worker knows it."""

from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.lease_times import Deadlines
from psched.core.model import Row


@dataclass(slots=True)
class Lease:
    """The right to run one occurrence.

    Attributes:
        row: as it was claimed.
        deadlines: of the lease.
        lost: the lease is another worker's, or nobody's.
    """

    row: Row
    deadlines: Deadlines
    lost: bool = False

    def extended(self, sent: float) -> None:
        """The store has extended it.

        Args:
            sent: just before the request was sent, seconds of the boot-time clock.
        """
        self.deadlines, self.lost = changed(self.deadlines, sent=sent), False

    def refused(self) -> None:
        """The store has said that this worker does not hold it any more."""
        self.lost = True
