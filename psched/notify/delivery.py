"""What all kinds of hook have in common: how they deliver, and when a failed delivery is repeated.

==============  ===============
after this try  the pause is
==============  ===============
1st to 6th      1, 2, 4, 8, 16, 32 minutes
7th to 11th     1 hour each
12th            no more tries: 6 hours have passed
==============  ===============
"""

from typing import Protocol

from psched.base.errors import PschedError
from psched.config.monitoring.hooks import MOST_TRIES
from psched.notify.notification import Notification

_FIRST_PAUSE = 60
_LONGEST_PAUSE = 3600


class DeliveryError(PschedError):
    """A notification was not delivered; the text says why, in one line without secrets."""

    def __init__(self, problem: str, *, retry: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.retry = retry  # whether another try may succeed


class Deliverer(Protocol):
    """Delivers notifications by one hook. Several threads may use it at the same time."""

    @property
    def tries(self) -> int:
        """The largest number of tries of a delivery."""
        ...

    def deliver(self, notification: Notification) -> None:
        """Deliver a notification within the time limit of the hook, or raise `DeliveryError`."""
        ...


def next_wait(tries: int, most: int = MOST_TRIES) -> int | None:
    """The seconds from a failed try to the next one; None if there is none."""
    if tries >= most:
        return None
    return min(_LONGEST_PAUSE, _FIRST_PAUSE << min(tries - 1, 32))
