"""What was printed, and by whom, as the worker knows it."""

import os
from dataclasses import dataclass
from typing import NamedTuple

from psched.output.messages import LONGEST_TAIL


class Whose(NamedTuple):
    """Whose output a pipe carries, and what is to be done with it.

    Attributes:
        name: stands before each line in the service's output.
        keep: how many bytes of its end are kept.
        forward: whether its lines are written to the service's output.
    """

    name: str
    keep: int
    forward: bool


UNKNOWN = Whose("runner", LONGEST_TAIL, forward=True)
"""The output of a runner that runs no task.

It is kept, as a part of the next task's output: the collector can read the first output of that
task before it is told of the task.
"""


@dataclass(frozen=True, slots=True)
class CapturedOutput:
    """The output of one attempt.

    Attributes:
        tail: its last bytes; empty if the attempt has printed nothing, or if it is lost.
        dropped: the number of bytes before the tail; None if output was lost.
    """

    tail: bytes
    dropped: int | None


NO_OUTPUT = CapturedOutput(b"", 0)
LOST_OUTPUT = CapturedOutput(b"", None)


class LiveOutput(NamedTuple):
    """Some output of a running attempt, for one reader.

    Attributes:
        reader: the reader's number.
        output: the next bytes; empty if nothing was printed when the reader began.
        dropped: how many bytes were left out before them; None if output was lost.
        waiting: how many bytes wait to be sent after them.
    """

    reader: int
    output: bytes
    dropped: int | None
    waiting: int


class Pipe:
    """The pipe that carries the output of one runner.

    The worker keeps both ends: the read end for the next collector if one dies, and the write end
    so that the collector does not wake up each time that a runner ends.

    Attributes:
        number: identifies the pipe in messages.
        reader: the read end.
        writer: the write end, which the runner inherits.
        prints: whether the present attempt has printed something, as far as is known.
        lost: whether a collector has died that had read some of the present attempt's output.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        # The write end stays in blocking mode: it has another file description.
        os.set_blocking(self.reader, False)
        self.prints = self.lost = False

    def close(self) -> None:
        """Close both ends in this process."""
        os.close(self.reader)
        os.close(self.writer)
