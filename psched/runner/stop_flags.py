"""Memory that a worker shares with a runner: stop reason, whether the task has begun, its progress.

The first byte is the reason. It is not sent as a message over the link between the two processes,
because TERM can interrupt the runner while it reads from that link. If TERM arrives while the byte
contains no reason, the worker has not sent it. Then the task is not stopped, because TERM was sent
to every process of the service, as ``systemctl kill`` does.

The second byte tells whether the runner has begun its task. A message would tell this as well, but
it would wake the worker. The further bytes are the task's progress, see `psched.runner.progress`.
"""

import mmap
from enum import IntEnum

from psched.runner import progress
from psched.runner.progress import Progress

_PROGRESS = 2
"""The position of the progress, after the two flags."""

_SIZE = _PROGRESS + progress.SIZE

_READS = 3
"""How often the progress is read if it is not valid, because the runner writes it just then."""


class Reason(IntEnum):
    """Why a task is asked to stop; a handler receives the name in lower case."""

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
    """The flags of all runners of one fork server, in memory that these processes share.

    Create the table before the fork server is forked.

    Args:
        count: the number of slots, one for each runner.
    """

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, count * _SIZE)

    def at(self, place: int) -> "StopFlags":
        """The flags of the runner that has this slot number."""
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
        """Set the reason for stopping the task; NONE removes it. Only the worker calls this."""
        self._page[self._offset] = reason

    def read(self) -> Reason:
        """Read the reason for stopping the task; NONE if the worker has set no reason."""
        value = self._page[self._offset]
        # The usual value, 0, is not converted, because a conversion costs a runner time.
        return Reason(value) if value else Reason.NONE

    @property
    def begun(self) -> bool:
        """Whether the runner has begun a task since the worker has last set this to False."""
        return bool(self._page[self._offset + 1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[self._offset + 1] = value

    def write_progress(self, packed: bytes) -> None:
        """Set the task's progress, a result of `progress.pack`; `progress.NOTHING` removes it."""
        start = self._offset + _PROGRESS
        self._page[start : start + len(packed)] = packed

    @property
    def progress(self) -> Progress | None:
        """The task's progress; None if it has reported none."""
        start = self._offset + _PROGRESS
        for _ in range(_READS):
            stored = bytes(self._page[start : start + progress.SIZE])
            if (found := progress.unpack(stored)) is not None:
                return found
        return None

    def close(self) -> None:
        """Detach from the shared memory, because another runner can get the slot.

        After this, `write` has no effect on that runner.
        """
        self._page, self._offset = bytearray(_SIZE), 0
