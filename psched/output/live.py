"""What a running attempt prints, for somebody who reads it meanwhile."""

from collections.abc import Iterator

LONGEST_LIVE = 2**16
"""The most bytes of one message with live output."""

MOST_PENDING = 2**18
"""The most bytes that wait for one reader. Of more output, the oldest is left out."""

PAUSE = 0.1
"""Seconds between two messages to one reader. With `LONGEST_LIVE`, this limits the work that a task
which prints much causes in its worker and in the master."""


class LiveReader:
    """One reader of the output of a running attempt.

    Args:
        begin: the output so far, as far as it is kept.
        dropped: how many bytes precede it.

    Attributes:
        may_send: whether the worker has passed on the message before.
        due: the earliest time of the next message, seconds of the monotonic clock.
    """

    def __init__(self, begin: bytes, dropped: int) -> None:
        self.may_send = True
        self.due = 0.0
        self._pending = bytearray()
        self._dropped = dropped
        self._begins = True
        self.add(begin)

    @property
    def waiting(self) -> int:
        """How many bytes can be sent now."""
        return len(self._pending)

    @property
    def has_news(self) -> bool:
        """Whether there is something to send. The first message is sent in any case."""
        return self._begins or bool(self._pending)

    def add(self, chunk: bytes) -> None:
        """Add output that was read."""
        self._pending += chunk
        if (excess := len(self._pending) - MOST_PENDING) > 0:
            del self._pending[:excess]
            self._dropped += excess

    def take(self) -> tuple[bytes, int]:
        """Return the next bytes, and how many were left out before them."""
        taken, dropped = bytes(self._pending[:LONGEST_LIVE]), self._dropped
        del self._pending[:LONGEST_LIVE]
        self._begins, self._dropped = False, 0 if taken else dropped
        return taken, dropped if taken else 0

    def rest(self) -> Iterator[tuple[bytes, int]]:
        """Yield what is left, like `take`; nothing follows."""
        while self.has_news:
            yield self.take()
