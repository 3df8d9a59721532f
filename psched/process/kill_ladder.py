"""The kill ladder as a function of time: which signal is sent at which second."""

import signal
from dataclasses import dataclass, field

_AGAIN = 1.0
"""Seconds between two KILLs: a process in uninterruptible sleep dies late."""


@dataclass(slots=True)
class KillLadder:
    """TERM, TERM again …, then KILL until the process is dead.

    Args:
        started: when the first signal is due, seconds of the monotonic clock.
        interval: seconds between two TERMs.
        limit: seconds from the start to the first KILL.

    Attributes:
        killing: the last signal was KILL.
    """

    started: float
    interval: float
    limit: float
    _next: float = field(init=False)
    killing: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._next = self.started

    @property
    def wakes(self) -> float:
        """When the next signal is due."""
        return self._next if self.killing else min(self._next, self.started + self.limit)

    def due(self, now: float) -> signal.Signals | None:
        """The signal to send now, if one is due."""
        if now < self.wakes:
            return None
        self.killing = now >= self.started + self.limit
        self._next = now + (_AGAIN if self.killing else self.interval)
        return signal.SIGKILL if self.killing else signal.SIGTERM

    def hasten(self, now: float, limit: float) -> None:
        """Bring the KILL forward to ``limit`` seconds from now, if that is earlier."""
        self.limit = min(self.limit, now + limit - self.started)
