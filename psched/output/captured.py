"""What was printed, and by whom, as the worker knows it."""

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
