"""The kill ladder: the signals that stop a process, TERM first and KILL later, and their times."""

import signal
from dataclasses import dataclass, field

_AGAIN = 1.0
"""Seconds between two KILLs. KILL is repeated while the process has not died yet."""


@dataclass(slots=True)
class KillLadder:
    """Says when to send TERM, which is repeated, and when to send KILL, which is repeated, too.

    Args:
        started: when the first signal is due, in seconds of the monotonic clock.
        interval: seconds between two TERMs.
        limit: seconds from ``started`` to the first KILL.

    Attributes:
        killing: whether `due` has returned KILL.
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
        """When the next signal is due, in seconds of the monotonic clock."""
        return self._next if self.killing else min(self._next, self.started + self.limit)

    def due(self, now: float) -> signal.Signals | None:
        """The signal to send now; None if none is due. The next one is due an interval later."""
        if now < self.wakes:
            return None
        self.killing = now >= self.started + self.limit
        self._next = now + (_AGAIN if self.killing else self.interval)
        return signal.SIGKILL if self.killing else signal.SIGTERM

    def hasten(self, now: float, limit: float) -> None:
        """Send the first KILL ``limit`` seconds after ``now``, unless it is due earlier anyway."""
        self.limit = min(self.limit, now + limit - self.started)
