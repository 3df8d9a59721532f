"""The pipe that carries what a runner and its programs print."""

import os


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
