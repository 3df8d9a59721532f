"""The messages between a worker and the collector that reads its tasks' output."""

from collections.abc import Iterator

from psched.process.channel import MOST_DESCRIPTORS
from psched.process.message_shapes import Shapes, flag, line, listed, whole

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


LONGEST_TAIL = 2**20
"""The most bytes of an attempt's output that can be kept; the limit of ``output_limit``."""

MOST_FORGOTTEN = 16
"""The most pipes that one message closes."""

TO_COLLECTOR = Shapes(
    {
        # New pipes: carries the read end of each. "forget": pipes to which nobody writes any more.
        "watch": {
            "watch": listed(whole(1), MOST_DESCRIPTORS),
            "forget": listed(whole(1), MOST_FORGOTTEN),
        },
        # Whose output the pipe carries now.
        "whose": {
            "whose": whole(1),
            "name": line,
            "keep": whole(0, LONGEST_TAIL),
            "forward": flag,
        },
        # The attempt has ended, and no process can write to the pipe meanwhile.
        "end": {"end": whole(1)},
        # Asks for the output of the present attempt so far.
        "peek": {"peek": whole(1)},
        # Somebody wants to read the output of the present attempt while it runs.
        "follow": {"follow": whole(1), "reader": whole()},
        # The worker has passed on the last "live" message to this reader.
        "more": {"more": whole(1), "reader": whole()},
        "unfollow": {"unfollow": whole(1), "reader": whole()},
        # Asks for an answer.
        "ping": {"ping": flag},
    },
    longest=2**14,
)
"""The messages that a collector accepts from its worker."""

FROM_COLLECTOR = Shapes(
    {
        # Sent before the collector reads the first output of an attempt.
        "prints": {"prints": whole(1)},
        # Answers "end"; carries the descriptor of a memory file with the tail, if it is not empty.
        "tail": {"tail": whole(1), "size": whole(0, LONGEST_TAIL), "dropped": whole()},
        # Answers "peek", like "tail".
        "peeked": {"peeked": whole(1), "size": whole(0, LONGEST_TAIL), "dropped": whole()},
        # Output for a reader, like "tail". "dropped" counts the bytes that were left out before it,
        # and "waiting" those that can be sent after it.
        "live": {
            "live": whole(),
            "size": whole(0, LONGEST_LIVE),
            "dropped": whole(),
            "waiting": whole(),
        },
        # Answers "ping".
        "pong": {"pong": flag},
    },
    longest=2**12,
)
"""The messages that a worker accepts from its collector."""
