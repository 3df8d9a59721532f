"""The messages between a worker and the collector that reads its tasks' output."""

from psched.output.live import LONGEST_LIVE
from psched.process.channel import MOST_DESCRIPTORS
from psched.process.message_shapes import Shapes, flag, line, listed, whole

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
