"""Two bytes that a worker shares with a runner: why it is being stopped, and whether it has begun.

A message on their link would not do: TERM interrupts the runner anywhere, in the middle of
reading that link too. And a TERM without a note is no order of the worker's: it was sent to
every process of the service, as ``systemctl kill`` does, and costs no task. That a runner has
taken up its task is noted rather than said, so that no worker is woken to hear it.
"""

import mmap
from enum import IntEnum

_SIZE = 2


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


class StopFlagTable:
    """One for each place that a runner can have; to be made before the fork.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, count * _SIZE)

    def at(self, place: int) -> "StopFlags":
        """That of a place."""
        return StopFlags(self._page, place * _SIZE)


class StopFlags:
    """The bytes."""

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page: mmap.mmap | bytearray = page
        self._offset = offset

    def write(self, reason: Reason) -> None:
        """The parent's side: take down a reason, or NONE to take it back."""
        self._page[self._offset] = reason

    def read(self) -> Reason:
        """The child's side."""
        value = self._page[self._offset]
        # Mostly there is none, and a runner pays for each function of an enumeration's.
        return Reason(value) if value else Reason.NONE

    @property
    def begun(self) -> bool:
        """The parent's side: whether the child has taken up a task since it was last unset."""
        return bool(self._page[self._offset + 1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[self._offset + 1] = value

    def close(self) -> None:
        """Let go of the page, where another may have the place; this can still be written."""
        self._page, self._offset = bytearray(_SIZE), 0
