"""Two bytes that a worker shares with a runner: why it is being stopped, and whether it has begun.

A message on their link would not do: TERM interrupts the runner anywhere, in the middle of
reading that link too. And a TERM without a note is no order of the worker's: it was sent to
every process of the service, as ``systemctl kill`` does, and costs no task. That a runner has
taken up its task is noted rather than said, so that no worker is woken to hear it.
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
    CANCELLED = 5
    """It was cancelled, or finished by force."""


class StopNote:
    """The bytes; to be made before the fork."""

    def __init__(self) -> None:
        self._mapping = mmap.mmap(-1, 2)
        self._page: mmap.mmap | bytearray = self._mapping

    def write(self, reason: Reason) -> None:
        """The parent's side: take down a reason, or NONE to take it back."""
        self._page[0] = reason

    def read(self) -> Reason:
        """The child's side."""
        return Reason(self._page[0])

    @property
    def begun(self) -> bool:
        """The parent's side: whether the child has taken up a task since it was last unset."""
        return bool(self._page[1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[1] = value

    def close(self) -> None:
        """Give the page back; a note that nobody reads any more can still be written."""
        self._page = bytearray(2)
        self._mapping.close()
