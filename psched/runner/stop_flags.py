"""Two bytes that a worker shares with a runner: why it is being stopped, and whether it has begun.

A message on their link would not do, because TERM interrupts the runner anywhere, even while it
reads that link. If the flags name no reason, TERM was not sent by the worker: it was sent to every
process of the service, as ``systemctl kill`` does, and does not stop the task. That a runner has
begun its task is a flag, and not a message, so that the worker is not woken for it.
"""

import mmap
from enum import IntEnum

_SIZE = 2


class Reason(IntEnum):
    """Why a task is asked to stop; a handler is told the name in lower case."""

    NONE = 0
    TIMEOUT = 1
    """The task has run for ``kill_timeout``."""
    SHUTDOWN = 2
    """The task's worker must exit."""
    DELETED = 3
    """The task's schedule was deleted."""
    LEASE = 4
    """The task's lease cannot be extended."""
    CANCELLED = 5
    """The task was cancelled, or finished by force."""


class StopFlagTable:
    """The flags of every runner's place; made before the fork.

    Args:
        count: how many places.
    """

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, count * _SIZE)

    def at(self, place: int) -> "StopFlags":
        """The flags of a place."""
        return StopFlags(self._page, place * _SIZE)


class StopFlags:
    """The flags of one runner.

    Args:
        page: the shared memory.
        offset: the position of the flags in the page.
    """

    def __init__(self, page: mmap.mmap, offset: int) -> None:
        self._page: mmap.mmap | bytearray = page
        self._offset = offset

    def write(self, reason: Reason) -> None:
        """For the worker: set a reason, or NONE to withdraw it."""
        self._page[self._offset] = reason

    def read(self) -> Reason:
        """Read the reason; for the runner."""
        value = self._page[self._offset]
        # Usually there is no reason, and an enumeration's functions cost a runner time.
        return Reason(value) if value else Reason.NONE

    @property
    def begun(self) -> bool:
        """Whether the runner has begun a task since this was last unset."""
        return bool(self._page[self._offset + 1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[self._offset + 1] = value

    def close(self) -> None:
        """Leave the shared page, because another runner may get the place; ignore later writes."""
        self._page, self._offset = bytearray(_SIZE), 0
