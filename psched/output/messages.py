"""The messages between a worker and the collector that reads its tasks' output."""

from psched.output.live import LONGEST_LIVE
from psched.process.message_shapes import Shapes, flag, line, whole

LONGEST_TAIL = 2**20
"""The most bytes of an attempt's output that can be kept; the limit of ``output_limit``."""

TO_COLLECTOR = Shapes(
    {
        # Carries the read end of a new runner's pipe. "watch" is the pipe's number.
        "watch": {"watch": whole()},
        # Whose output the pipe carries now.
        "whose": {
            "whose": whole(),
            "name": line,
            "keep": whole(0, LONGEST_TAIL),
            "forward": flag,
        },
        # The attempt has ended, and no process can write to the pipe meanwhile.
        "end": {"end": whole()},
        # Somebody wants to read the output of the present attempt while it runs.
        "follow": {"follow": whole(), "reader": whole()},
        # The worker has passed on the last "live" message to this reader.
        "more": {"more": whole(), "reader": whole()},
        "unfollow": {"unfollow": whole(), "reader": whole()},
        # Nothing can be written to the pipe any more.
        "forget": {"forget": whole()},
    },
    longest=2**14,
)
"""The messages that a collector accepts from its worker."""

FROM_COLLECTOR = Shapes(
    {
        # Sent before the collector reads the first output of an attempt.
        "prints": {"prints": whole()},
        # Answers "end"; carries the descriptor of a memory file that contains the tail.
        "tail": {"tail": whole(), "size": whole(0, LONGEST_TAIL), "dropped": whole()},
        # Output for a reader, like "tail". "dropped" counts the bytes that were left out before it,
        # and "waiting" those that can be sent after it.
        "live": {
            "live": whole(),
            "size": whole(0, LONGEST_LIVE),
            "dropped": whole(),
            "waiting": whole(),
        },
    },
    longest=2**12,
)
"""The messages that a worker accepts from its collector."""
