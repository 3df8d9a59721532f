"""One byte that a worker shares with a runner: why it is being stopped.

A message on their link would not do: TERM interrupts the runner anywhere, in the middle of
reading that link too. And a TERM without a note is no order of the worker's: it was sent to
every process of the service, as ``systemctl kill`` does, and costs no task.
"""

import mmap
from enum import IntEnum


class Reason(IntEnum):
    """Why a task is asked to stop; its name in lower case is what a handler is told."""

    NONE = 0
    TIMEOUT = 1
    """It has run for ``kill_timeout``."""
    SHUTDOWN = 2
    """Its worker is to go."""
    DELETED = 3
    """Its schedule has been deleted."""
    LEASE = 4
    """Its lease cannot be extended."""


class StopNote:
    """The byte; to be made before the fork."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, 1)

    def write(self, reason: Reason) -> None:
        """The parent's side: take down a reason, or NONE to take it back."""
        self._page[0] = reason

    def read(self) -> Reason:
        """The child's side."""
        return Reason(self._page[0])

    def close(self) -> None:
        """Give the page back."""
        self._page.close()
