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


class Notes:
    """Notes for so many runners at once; to be made before the fork.

    Args:
        count: how many.
    """

    def __init__(self, count: int) -> None:
        self._page = mmap.mmap(-1, count * _SIZE)
        self._free = [*range(count)]

    def take(self) -> "StopNote | None":
        """The parent's side: one that nobody uses; None: there is none."""
        if not self._free:
            return None
        note = self.at(self._free.pop())
        note.write(Reason.NONE)
        note.begun = False
        return note

    def at(self, place: int) -> "StopNote":
        """The child's side: the one that is meant for it."""
        return StopNote(self._page, place)

    def give_back(self, note: "StopNote") -> None:
        """Its child has ended: another's may use it."""
        if note.close():
            self._free.append(note.place)


class StopNote:
    """The bytes.

    Attributes:
        place: which of the notes it is.
    """

    def __init__(self, page: mmap.mmap, place: int) -> None:
        self.place = place
        self._page: mmap.mmap | bytearray = page
        self._offset = place * _SIZE

    def write(self, reason: Reason) -> None:
        """The parent's side: take down a reason, or NONE to take it back."""
        self._page[self._offset] = reason

    def read(self) -> Reason:
        """The child's side."""
        return Reason(self._page[self._offset])

    @property
    def begun(self) -> bool:
        """The parent's side: whether the child has taken up a task since it was last unset."""
        return bool(self._page[self._offset + 1])

    @begun.setter
    def begun(self, value: bool) -> None:
        self._page[self._offset + 1] = value

    def close(self) -> bool:
        """Let go of the page: a note that nobody reads any more can still be written.

        Returns:
            Whether it was not let go of before.
        """
        held = isinstance(self._page, mmap.mmap)
        self._page, self._offset = bytearray(_SIZE), 0
        return held
