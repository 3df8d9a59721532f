"""Standard output and standard error of a runner: a pipe to the collector, or the service's own."""

import os

PIPE, RAW, NONE = "pipe", "raw", "none"
"""Where a task's output goes: to the collector, to the service's output unchanged, nowhere."""

PLACES = (PIPE, RAW, NONE)


class StandardStreams:
    """Switches standard output and standard error between the places that tasks want.

    The fork server calls `save`; each runner calls `use` before each task. A runner begins with the
    pipe. If it has none, because no descriptor was left, it has the service's streams, and the
    worker never sends `PIPE`.

    Args:
        reused: whether the runner runs several tasks. Then `use` restores the streams that a task
            has closed or redirected.
    """

    def __init__(self, *, reused: bool) -> None:
        self._is_reused = reused
        self._service = (1, 2)
        self._pipe = -1
        self._place = PIPE

    def save(self) -> tuple[int, int]:
        """Keep the service's streams, because runners replace them by a pipe; return them."""
        if self._service == (1, 2):
            self._service = os.dup(1), os.dup(2)
        return self._service

    def use(self, place: str) -> None:
        """Switch the streams of this process."""
        # If nothing was saved, no output is collected, and the streams are the service's own.
        if self._service == (1, 2) or (place == self._place and not self._is_reused):
            return
        if self._pipe < 0:
            self._pipe = os.dup(1)
        if place == NONE:
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            self._switch(null, null)
            if null not in {1, 2}:  # a task can have closed these
                os.close(null)
        elif place == RAW:
            self._switch(*self._service)
        else:
            # A task, or a program that it has started, can have set the mode of the pipe itself.
            os.set_blocking(self._pipe, True)  # it takes no keywords
            self._switch(self._pipe, self._pipe)
        self._place = place

    @staticmethod
    def _switch(output: int, error: int) -> None:
        os.dup2(output, 1)
        os.dup2(error, 2)
