"""Standard output and standard error of a runner: a pipe to the collector, or the service's own."""

import os

PIPE, RAW, NONE = "pipe", "raw", "none"
"""Where a task's output goes: to the collector, to the service's output unchanged, nowhere."""

PLACES = (PIPE, RAW, NONE)


class StandardStreams:
    """Switches standard output and standard error between the places that tasks want.

    The fork server calls `save`; each runner calls `use` before each task.
    """

    def __init__(self) -> None:
        self._service: tuple[int, int] | None = None
        self._pipe: int | None = None
        self._place: str | None = None

    def save(self) -> None:
        """Keep the service's streams, because runners replace them by a pipe."""
        if self._service is None:
            self._service = os.dup(1), os.dup(2)

    def use(self, place: str) -> str:
        """Switch the streams of this process; return their place.

        Args:
            place: one of `PLACES`. A runner without a pipe keeps the service's streams instead.
        """
        if self._service is None:
            return RAW
        if self._place is None:
            own, service = os.fstat(1), os.fstat(self._service[0])
            self._place = RAW if os.path.samestat(own, service) else PIPE
        if place == self._place or (place == PIPE and self._place == RAW and self._pipe is None):
            return self._place
        if self._place == PIPE:
            self._pipe = os.dup(1)
        if place == NONE:
            null = os.open(os.devnull, os.O_WRONLY)
            self._switch(null, null)
            os.close(null)
        elif place == RAW:
            self._switch(*self._service)
        elif self._pipe is not None:
            self._switch(self._pipe, self._pipe)
            os.close(self._pipe)
            self._pipe = None
        self._place = place
        return place

    @staticmethod
    def _switch(output: int, error: int) -> None:
        os.dup2(output, 1)
        os.dup2(error, 2)
