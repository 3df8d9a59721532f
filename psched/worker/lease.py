"""What a worker knows about a lease that it has claimed."""

from dataclasses import dataclass
from dataclasses import replace as changed

from psched.base.lease_times import Deadlines
from psched.core.model import Row


@dataclass(slots=True)
class Hold:
    """A schedule that nobody else runs meanwhile, see `psched.core.store_protocol.HoldsSchedules`.

    Attributes:
        key: the key of the schedule.
        holder: the text that identifies the hold.
        lost: whether the store has answered that the schedule is not held any more.
    """

    key: str
    holder: str
    lost: bool = False


@dataclass(slots=True)
class Lease:
    """A worker's right to run one occurrence until the lease ends.

    Attributes:
        row: the row as it was claimed.
        deadlines: when to extend the lease, and when its task must have been killed.
        lost: whether the store has answered that this worker does not hold the lease any more.
        hold: what an extra run needs besides the lease; None for any other run. It is extended with
            the lease, and not later, so that it lasts at least as long.
    """

    row: Row
    deadlines: Deadlines
    lost: bool = False
    hold: Hold | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the lease or its hold is lost."""
        return self.lost or (self.hold is not None and self.hold.lost)

    def extended(self, sent: float) -> None:
        """Note that the store has extended the lease.

        Args:
            sent: the time just before the request was sent, seconds of the boot-time clock.
        """
        self.deadlines, self.lost = changed(self.deadlines, sent=sent), False

    def refused(self) -> None:
        """Note the store's answer that this worker does not hold the lease any more."""
        self.lost = True
