"""What was printed, and by whom; and the messages between a worker and its collector of output."""

import os
import sys
from dataclasses import dataclass
from fcntl import ioctl
from termios import FIONREAD
from typing import NamedTuple

from psched.process.link import MOST_DESCRIPTORS, Shapes, flag, line, listed, whole

LONGEST_LIVE = 2**16
"""The most bytes of one message with live output."""

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


_NOTHING = bytes(4)
"""What FIONREAD returns for an empty pipe."""


class Whose(NamedTuple):
    """Whose output a pipe carries, and what is to be done with it."""

    name: str  # stands before each line in the service's output
    keep: int  # how many bytes of its end are kept
    forward: bool  # whether its lines are written to the service's output


UNKNOWN = Whose("runner", LONGEST_TAIL, forward=True)
"""The output of a runner that runs no task.

It is kept, as a part of the next task's output: the collector can read the first output of that
task before it is told of the task.
"""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of one attempt."""

    tail: bytes  # its last bytes; empty if the attempt has printed nothing, or if it is lost
    dropped: int | None  # the number of bytes before the tail; None if output was lost


NO_OUTPUT = CapturedOutput(b"", 0)
LOST_OUTPUT = CapturedOutput(b"", None)


class LiveOutput(NamedTuple):
    """Some output of a running attempt, for one reader."""

    reader: int  # the reader's number
    output: bytes  # the next bytes; empty if nothing was printed when the reader began
    dropped: int | None  # how many bytes were left out before them; None if output was lost
    waiting: int  # how many bytes wait to be sent after them


class Pipe:
    """The pipe that carries the output of one runner.

    The worker keeps both ends: the read end for the next collector if one dies, and the write end
    so that the collector does not wake up each time that a runner ends.
    """

    def __init__(self, number: int) -> None:
        self.number = number  # identifies the pipe in messages
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)  # the runner inherits the write end
        # The write end stays in blocking mode: it has another file description.
        os.set_blocking(self.reader, False)
        self.prints = False  # whether the present attempt has printed something, as far as is known
        # Whether a collector has died that had read some of the present attempt's output.
        self.lost = False

    def close(self) -> None:
        """Close both ends in this process."""
        os.close(self.reader)
        os.close(self.writer)


def is_empty(descriptor: int) -> bool:
    """Whether nothing can be read from a pipe, or from a socket."""
    return unread(descriptor) == 0


def unread(descriptor: int) -> int:
    """How many bytes can be read from a pipe, or from a socket, now."""
    return int.from_bytes(ioctl(descriptor, FIONREAD, _NOTHING), sys.byteorder)
