"""One lease as its worker knows it."""

from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.lease_times import Deadlines
from psched.core.model import Row


@dataclass(slots=True)
class Lease:
    """The right to run one occurrence.

    Attributes:
        row: the row as it was claimed.
        deadlines: of the lease.
        lost: the lease is another worker's, or nobody's.
    """

    row: Row
    deadlines: Deadlines
    lost: bool = False

    def extended(self, sent: float) -> None:
        """Note that the store has extended the lease.

        Args:
            sent: just before the request was sent, seconds of the boot-time clock.
        """
        self.deadlines, self.lost = changed(self.deadlines, sent=sent), False

    def refused(self) -> None:
        """Note that this worker does not hold the lease any more, as the store has said."""
        self.lost = True
